"""What workers tell each other as they read the batches of a step, in one sum of one number.

* How many replicas have data: with none the epoch ends, on all workers together.
* How many rows these have, by which a step weighs what its replicas compute (`shares.py`).
* Whether a worker wants the data to end (`stop_together.py`).
"""

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable

# A row counts more than all replicas together, and a veto more than all rows.
_ROW = 1 << 16
_VETO = -(1 << 48)


class StepCount:
    """This process's part in the count, and what came of the last one.

    Args:
        device: where numbers are kept, a CPU.
    """

    def __init__(self, device: str):
        self._device = device
        with tf.init_scope(), tf.device(device):
            self._vote = ResourceVariable(0, dtype=tf.int64)
            self._rows = ResourceVariable(0, dtype=tf.int64)

    def ask(self, end: bool) -> None:
        """Votes from now on for the end of the data, or no longer does."""
        self._vote.assign(_VETO if end else 0)

    def packed(self, replicas: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """The number to sum, int64: of this process's replicas with data, and of their rows."""
        with tf.device(self._device):
            return replicas + _ROW * rows + self._vote.read_value()

    def unpacked(self, total: tf.Tensor) -> tf.Tensor:
        """Takes the replicas with data from the sum, and keeps the rows for `read_rows`.

        After a veto the result raises an OutOfRangeError.
        """
        with tf.device(self._device):
            end = tf.cond(tf.reduce_all(total < 0), _end_of_data, lambda: tf.constant(0, tf.int64))
            with tf.control_dependencies([self._rows.assign(tf.reshape(total // _ROW, []))]):
                return total % _ROW + end

    def read_rows(self) -> tf.Tensor:
        """Rows of all replicas in the step whose batches were read last, an int64 scalar.

        0 where they were not counted.
        """
        return self._rows.read_value()

    def forget_rows(self) -> None:
        """Is told that batches come which nobody counts."""
        self._rows.assign(0)


def _end_of_data():
    # What Keras takes for the end of an epoch; no operation raises it but an iterator at its end.
    return iter(tf.data.Dataset.range(0)).get_next()
