"""`CompressionMonitor`: what compression sends and holds back, into logs, TensorBoard and CSV."""

import csv
import itertools
import math
import numbers
import os
import re

import keras
import tensorflow as tf

from tf_scalecom.state.traffic import Traffic, compressing_optimizer
from tf_scalecom.state.training_state import build_optimizer

# A measurement reads the gradients once, which compressing them does seven times: a share of it
# that stays below 1 % of a step.
_STEPS_PER_GRADIENT_NORM = 20


class CompressionMonitor(keras.callbacks.Callback):
    """Reports what a `ScaleComOptimizer` sends, and what it has not sent yet.

    At the end of each epoch it adds to Keras's logs, so that `History`, the progress bar and the
    callbacks after this one have them too:

    * `bytes_sent`, `bytes_dense`: what a worker transmits for gradients in a step, and would with
      dense ones, by the layout's formula; means over the epoch's steps, those of the warm-up
      included. `ratio`: bytes_dense / bytes_sent, 1 where nothing is sent.
    * `total_bytes_sent`, `total_bytes_dense`, `total_ratio`: the same summed over all steps that
      the optimizer has made, with as many workers as there are now.
    * `skipped_steps`: steps skipped so far for a gradient, or residual + gradient, that was not
      finite.
    * `residual_norm`: Euclidean norm of the residuals, in the gradients' units.
    * `residual_to_gradient`: residual_norm by the norm of the gradients of the same variables, in
      a step among the last 20 (among the last `update_freq`, if that is less). NaN if none was
      finite, they were all zero, or XLA compiles the step. Large and growing: much is held back
      for long.
    * `caught`: energy of what is sent by that of the best choice of as many elements, which would
      know the sum over all workers; an estimate by what of this worker's own best choice the
      leader's catches, in a step among the last 20 or so. NaN during the warm-up, with
      `selection="exact"`, and where XLA compiles the step. Small: few workers with large batches
      learn better than many with small ones.

    The two norms and `caught` are of a worker's own first replica; everything else is the same on
    all. The monitor does nothing that workers must do together, so it may be given to all of them,
    or to one. Only the first worker writes files.

    Args:
        log_dir: folder for TensorBoard, with scalars "compression/<name>" by the optimizer's step;
            None for none.
        csv_path: file for one line per report; None for none. Lines of steps that training has
            behind it when it begins stay, e.g. after a restart; those of steps that it makes again
            go, and so do all when it begins at step 0.
        update_freq: "epoch", or a number of batches after which TensorBoard and CSV get a report,
            of means over these batches; the last one is of what is left. Each report reads all
            residuals.

    Raises:
        ValueError: `update_freq` is out of its range; in `fit`, if the model's optimizer is no
            `ScaleComOptimizer`.

    Example:
        ```
        monitor = sc.callbacks.CompressionMonitor("logs", csv_path="compression.csv")
        model.fit(data, epochs=3, callbacks=[monitor])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike | None = None,
        csv_path: str | os.PathLike | None = None,
        update_freq: str | int = "epoch",
    ):
        super().__init__()
        is_int = isinstance(update_freq, numbers.Integral) and not isinstance(update_freq, bool)
        if update_freq != "epoch" and not (is_int and int(update_freq) > 0):
            raise ValueError(
                "CompressionMonitor: expected `update_freq` to be 'epoch' or a number of batches "
                f">= 1; received {update_freq!r}. Correct it."
            )
        self.log_dir = log_dir
        self.csv_path = csv_path
        self.update_freq = update_freq
        # Without reports in an epoch, Keras need not wait for each batch to hand it over here.
        self.async_safe = update_freq == "epoch"
        self._reports = None

    def on_train_begin(self, logs=None):
        self._optimizer = compressing_optimizer(self.model.optimizer)
        if self._optimizer is None:
            raise ValueError(
                "CompressionMonitor: expected a model whose optimizer is a ScaleComOptimizer; "
                f"received {type(self.model.optimizer).__name__}. Wrap the optimizer, or leave the "
                "monitor out."
            )
        build_optimizer(self.model)
        every = _STEPS_PER_GRADIENT_NORM
        if self.update_freq != "epoch":
            every = min(every, self.update_freq)
        measures = self._measures()
        if any([measure.start(every) for measure in measures]):
            self.model.make_train_function(force=True)
        self._traffic = Traffic(self._optimizer)
        self._reports = None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._epoch_start = self._step()
        self._last_batch = -1
        if self._reports is None:  # not before all callbacks have begun: one may restore a backup
            self._batches = 0
            self._report_start = self._epoch_start
            chief = self.model.distribute_strategy.extended.should_checkpoint
            self._reports = [
                *([_TensorBoard(self.log_dir)] if chief and self.log_dir else []),
                *([_Csv(self.csv_path, self._epoch_start)] if chief and self.csv_path else []),
            ]

    def on_train_batch_end(self, batch, logs=None):
        if self.update_freq == "epoch" or not self._reports:
            return
        # Counted by `batch`: with several steps per execution not every batch ends here.
        self._batches += batch - self._last_batch
        self._last_batch = batch
        if self._batches >= self.update_freq:
            self._batches = 0
            self._report()

    def on_epoch_end(self, epoch, logs=None):
        values = self._values(self._epoch_start)
        if logs is not None:
            logs.update(values)
        if self.update_freq == "epoch":
            self._write(values)

    def on_train_end(self, logs=None):
        if self.update_freq != "epoch" and self._reports:
            self._report()
        self._reports = None  # closes their files
        # A fit that ends by an error does not come here: the next one with a monitor does.
        for measure in self._measures():
            measure.stop()

    def _measures(self):
        return self._optimizer.gradient_norm, self._optimizer.leader_choice

    def _step(self):
        return int(self._optimizer.iterations.numpy())

    def _values(self, start):
        step = self._step()
        mean = self._traffic.between(start, step).per_step(step - start)
        total = self._traffic.between(0, step)
        residual = self._residual_norm()
        gradient = self._optimizer.gradient_norm.value()
        replicas = self._optimizer.compression_report().num_replicas
        return {
            "bytes_sent": mean.sent,
            "bytes_dense": mean.dense,
            "ratio": mean.ratio,
            "total_bytes_sent": total.sent,
            "total_bytes_dense": total.dense,
            "total_ratio": total.ratio,
            "skipped_steps": int(self._optimizer.skipped_steps.numpy()),
            "residual_norm": residual,
            "residual_to_gradient": residual / gradient if gradient else math.nan,
            "caught": self._optimizer.leader_choice.caught(replicas),
        }

    def _residual_norm(self):
        unwrap = self.model.distribute_strategy.experimental_local_results
        first = [unwrap(residual.value)[0] for residual in self._optimizer.residual_variables]
        return math.sqrt(sum(2 * float(tf.nn.l2_loss(part)) for part in first))

    def _report(self):
        """Writes a report of the steps since the last one, if there were any."""
        step = self._step()
        if step > self._report_start:
            self._write(self._values(self._report_start))
            self._report_start = step

    def _write(self, values):
        for report in self._reports:
            report.write(self._epoch, self._step(), values)


class _TensorBoard:
    """Scalars in an event file. Writing them takes TensorFlow alone, not the package TensorBoard.

    Args:
        folder: where the file is.
    """

    def __init__(self, folder):
        self._writer = tf.summary.create_file_writer(os.fspath(folder))
        self._metadata = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR"
        )

    def write(self, epoch, step, values):
        # Whatever another callback, such as Keras's own, leaves out in this step.
        with self._writer.as_default(step), tf.summary.record_if(True):
            for name, value in values.items():
                value = tf.constant(value, tf.float32)
                tf.summary.write(f"compression/{name}", value, metadata=self._metadata)
        self._writer.flush()


class _Csv:
    """One line per report, and names above.

    Args:
        path: the file.
        start: steps made when the training begins. Lines of later ones go, as do lines that are
            not whole and what follows them.
    """

    _LINE = re.compile(rb"\d+,(?P<step>\d+),.*\n")

    def __init__(self, path, start):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._path = path

        def is_behind(line):
            found = self._LINE.fullmatch(line)
            return found is not None and int(found["step"]) <= start

        with open(path, "a+b") as file:
            file.seek(0)
            names, *lines = file.readlines() or [b""]
            kept = list(itertools.takewhile(is_behind, lines)) if start else []
            self._is_empty = not kept
            file.truncate(len(names) + sum(map(len, kept)) if kept else 0)

    def write(self, epoch, step, values):
        line = {"epoch": epoch, "step": step, **values}
        with open(self._path, "a", newline="") as file:
            lines = csv.DictWriter(file, line, lineterminator="\n")
            if self._is_empty:
                lines.writeheader()
            lines.writerow(line)
        self._is_empty = False
