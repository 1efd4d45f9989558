"""`MultiWorkerMirroredStrategy`: TensorFlow's, on which Keras 3 trains and which can compress."""

import tensorflow as tf

from tf_scalecom.extended import Extended
from tf_scalecom.fit import calls_from_keras, made_in_scope


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous training on several workers, with or without compressed gradients.

    A drop-in replacement for `tf.distribute.MultiWorkerMirroredStrategy` under which Keras 3's
    `fit`, `evaluate` and `predict` work, with any optimizer:

    * Workers may hold different numbers of batches, partial ones, or none: an epoch ends on all
      of them together, when the last one has no data left.
    * Where all workers are given all data, each sample counts once in an epoch: they shuffle alike,
      with a seed or without, and a warning says so if their data differ.
    * `predict` returns the rows of all workers on each, step by step and within a step in the
      order of the workers: the order of the data where they are shared out by the strategy.
      Strings can be predicted; ragged, sparse and scalar outputs are refused, and rows whose size
      differs between workers too. `predict_on_batch` returns all workers' rows likewise.
    * A loss scale is lowered, and a step skipped, on all workers if one sees a NaN.
    * All local devices train: the GPUs, or the logical devices into which
      `tf.config.set_logical_device_configuration` has split the CPU.
    * No wait is without end. The workers meet before TensorFlow starts, and those that do not
      come are named (environment variables TF_SCALECOM_REPORT_MISSING_SECONDS, default 30, and
      TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS, default 300). A worker that dies or is stopped is
      named by the others, which end seconds later. A collective that waits 600 s for a worker
      that lives fails with a tf.errors.DeadlineExceededError.
    * A callback that stops training on one worker stops it on all, in the same step.

    With `ScaleComOptimizer` gradients travel compressed; everything else that is reduced, e.g.
    metrics, is exact.

    Example:
        ```
        strategy = tf_scalecom.MultiWorkerMirroredStrategy()  # reads TF_CONFIG
        with strategy.scope():
            model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(0.1), loss="mse")
        model.fit(dataset, epochs=2)
        ```
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
    ):
        """Joins the cluster, as soon as all its workers have come.

        Args:
            cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. By default the
                cluster is read from TF_CONFIG; without one, this process trains alone.
            communication_options: `tf.distribute.experimental.CommunicationOptions`. Its
                `timeout_seconds` is the longest that a collective may wait for other workers, 600
                by default; 0 is no limit.

        Raises:
            ValueError: The description of the cluster is incomplete or contradicts itself.
            RuntimeError: The port of this worker is taken.
            TimeoutError: Not all workers have come.
        """
        calls_from_keras.install()
        # Past the constructor of the base class, which would build TensorFlow's own extended.
        tf.distribute.Strategy.__init__(
            self,
            Extended(
                self,
                cluster_resolver=cluster_resolver,
                communication_options=communication_options
                or tf.distribute.experimental.CommunicationOptions(),
            ),
        )
        made_in_scope.watch_fit_outside(self)

    def reduce(self, reduce_op, value, axis=None):
        """Reduces a value over all replicas and, given an axis, over that axis.

        Like TensorFlow's, but the axis may be given for scalars too, as Keras does for metrics.
        """
        if axis is not None and all(
            getattr(result, "shape", None) == ()
            for result in self.experimental_local_results(value)
        ):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def gather(self, value, axis):
        """Concatenates the values of all replicas along an axis, on every worker.

        Like TensorFlow's, but takes strings too.

        Raises:
            ValueError: The value is ragged, sparse or a scalar.
        """
        for part in self.experimental_local_results(value):
            composite = isinstance(part, (tf.RaggedTensor, tf.SparseTensor))
            if composite or getattr(part, "shape", ()) == ():
                raise ValueError(
                    "gather: expected dense tensors of one dimension or more, received "
                    f"{part!r}. If it is what a model predicts, have it return a dense tensor "
                    "with one row per sample, e.g. by `to_tensor()` or `tf.sparse.to_dense()`."
                )
        return super().gather(value, axis)
