"""`ScaleComOptimizer`: any Keras optimizer, with gradients that travel as CLT-k."""

from collections.abc import Mapping, Sequence

import keras

from tf_scalecom.compressed_optimizer import CompressedOptimizer
from tf_scalecom.reduction.clt_k import CltK


@keras.saving.register_keras_serializable(package="tf_scalecom")
class ScaleComOptimizer(CompressedOptimizer):
    """Wraps a Keras optimizer; its gradients travel as ScaleCom's CLT-k instead of dense.

    Every step one replica, the leader (step mod replicas), picks the elements of largest
    |residual + gradient|. All replicas send just those, and keep what they did not send in a
    low-pass-filtered residual (`reduction.clt_k` has the equations). The inner optimizer then
    makes its update from the sum, on every replica the same. All else is as of
    `CompressedOptimizer`, of which this is the form with `methods.CltK`.

    Args:
        inner_optimizer: a Keras optimizer, or its name, as of `CompressedOptimizer`.
        compression_ratio: elements / kept elements. A number >= 1; "auto", the paper's per-layer
            rule; or a dict {regex: ratio} of which the first pattern found in a variable's path
            counts, and a variable without one travels dense.
        beta: low-pass filter of the residual, in (0, 1]. 1 is plain error feedback; the paper
            takes 0.1 with scaled-up batch and learning rate.
        warmup_steps: updates at the start in which more is sent, as of `CompressedOptimizer`.
        exclude: regexes of paths of variables that travel dense. An excluded embedding's
            IndexedSlices stay sparse; all others are summed and densified.
        selection: "chunk" takes the `chunk_keep` largest of each chunk of
            chunk_keep * compression_ratio elements; "exact" the largest of the whole variable.
        chunk_keep: elements kept per chunk. 1 is the paper's cheap selection, about 10 is nearly
            exact.
        value_dtype: dtype of the kept values on the wire: "float32", "bfloat16", or with a scale
            "float16" or "int8". What the cast loses stays in the residual.
        name, hierarchical, warmup: as of `CompressedOptimizer`.

    Raises:
        ValueError: an argument is out of its range.

    Example:

    ```python
    strategy = tf_scalecom.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model.compile(
            optimizer=tf_scalecom.ScaleComOptimizer(keras.optimizers.SGD(0.1)), loss="mse"
        )
    model.fit(dataset)
    print(model.optimizer.compression_report())
    ```

    Reference: Chen et al., ScaleCom, NeurIPS 2020, https://arxiv.org/abs/2104.11125
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str,
        compression_ratio: float | str | Mapping[str, float] = 100,
        beta: float = 1.0,
        warmup_steps: int = 0,
        exclude: str | Sequence[str] = (),
        selection: str = "chunk",
        chunk_keep: int = 1,
        value_dtype: str = "float32",
        name: str | None = None,
        *,
        hierarchical: bool = False,
        warmup: str = "dense",
    ):
        method = CltK(compression_ratio, beta, exclude, selection, chunk_keep, value_dtype)
        super().__init__(
            inner_optimizer,
            method,
            warmup_steps,
            name,
            hierarchical=hierarchical,
            warmup=warmup,
        )

    def get_config(self):
        config = super().get_config()
        del config["method"]
        return {**config, **self.method.get_config()}
