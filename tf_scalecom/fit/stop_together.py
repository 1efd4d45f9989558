"""`model.stop_training`, set by a callback of one worker, stops all of them in the same step.

Keras looks at `stop_training` after each batch and after each epoch, each worker at its own: one
that stops would leave the others waiting in their next step. So callbacks may ask as they like,
but the answer is a common one:

* In the middle of an epoch, the worker that is asked to stop goes on to the next step, where all
  workers count who has data (`step_count.py`). There it votes for the end of the data, and the
  epoch ends on all.
* At the end of an epoch, the workers tell each other whether they were asked, and stop if one was.

The same goes for `stop_evaluating` and `stop_predicting`, where there is one epoch.
"""

from typing import Any

import keras

from tf_scalecom.compat.keras_calls import outermost_call
from tf_scalecom.compat.keras_trainer import EpochIterator
from tf_scalecom.fit import alike_state, asked_to_end


class _StopsTogether:
    """Mixed into the `CallbackList` of a call to Keras; does its part after all callbacks."""

    ends_together = True  # for `asked_to_end`

    # Set by `stop_together`; by what is done, e.g. "training".
    _extended: Any
    _epoch_iterators: dict[str, Any]
    _asked: set[str]
    _ran_out_of_data: set[str]

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        alike_state.require_alike(self.model, self._extended.workers, f"before epoch {epoch + 1}")

    def on_train_end(self, logs=None):
        # After the last epoch; then a backup still says that it is over.
        asked_to_end.end_if_asked(self._extended.workers, self.callbacks)
        super().on_train_end(logs)
        asked_to_end.end_if_asked(self._extended.workers)
        alike_state.require_alike(self.model, self._extended.workers, "after the last epoch")

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self._vote("training")

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._take_over("training")

    def on_epoch_end(self, epoch, logs=None):
        self._extended.step_count.ask(False)
        asked_to_end.end_if_asked(self._extended.workers, self.callbacks)
        super().on_epoch_end(epoch, logs)
        self._agree("training")

    def on_test_begin(self, logs=None):
        self._extended.step_count.ask(False)  # the training data has ended, not the test data
        super().on_test_begin(logs)
        if self._is_of_fit():
            asked_to_end.end_if_asked(self._extended.workers, self.callbacks)

    def on_test_batch_begin(self, batch, logs=None):
        super().on_test_batch_begin(batch, logs)
        self._vote("evaluating")

    def on_test_batch_end(self, batch, logs=None):
        super().on_test_batch_end(batch, logs)
        self._take_over("evaluating")

    def on_test_end(self, logs=None):
        super().on_test_end(logs)
        self._agree("evaluating")

    def on_predict_batch_begin(self, batch, logs=None):
        super().on_predict_batch_begin(batch, logs)
        self._vote("predicting")

    def on_predict_batch_end(self, batch, logs=None):
        super().on_predict_batch_end(batch, logs)
        self._take_over("predicting")

    def on_predict_end(self, logs=None):
        super().on_predict_end(logs)
        self._agree("predicting")

    def _take_over(self, doing):
        """Keeps a callback's wish from Keras until the end of the epoch."""
        if getattr(self.model, f"stop_{doing}"):
            setattr(self.model, f"stop_{doing}", False)
            self._asked.add(doing)

    def _vote(self, doing):
        self._take_over(doing)
        # Of training and its validation; what a callback evaluates or predicts is its own.
        if asked_to_end.was_asked() and self._is_of_fit() and doing != "predicting":
            self._asked.add(doing)
        if doing in self._asked:
            self._extended.step_count.ask(True)

    def _is_of_fit(self):
        call = outermost_call()
        return call is not None and call.name == "fit" and call.callbacks is self

    def _agree(self, doing):
        self._extended.step_count.ask(False)
        self._take_over(doing)
        wishes = self._extended.workers.gather(doing in self._asked, f"wishes to stop {doing}")
        setattr(self.model, f"stop_{doing}", any(wishes))
        if doing in self._ran_out_of_data and not any(wishes):
            EpochIterator._interrupted_warning(self._epoch_iterators[doing])
        self._asked.discard(doing)
        self._ran_out_of_data.discard(doing)


def stop_together(
    callbacks: keras.callbacks.CallbackList, doing: str, epoch_iterator: EpochIterator, extended
) -> bool:
    """Makes the callbacks of a call to Keras stop it on all workers, or on none.

    Args:
        callbacks: the list that Keras made for this call.
        doing: what the call does: "training", "evaluating" or "predicting".
        epoch_iterator: Keras's iterator over the data of it.
        extended: implementation of the strategy.

    Returns:
        Whether that is news: False if it was done before.
    """
    if not isinstance(callbacks, _StopsTogether):
        callbacks.__class__ = type("StopsTogether", (_StopsTogether, type(callbacks)), {})
        callbacks._extended = extended
        callbacks._epoch_iterators, callbacks._asked, callbacks._ran_out_of_data = {}, set(), set()
    if callbacks._epoch_iterators.get(doing) is epoch_iterator:
        return False
    callbacks._epoch_iterators[doing] = epoch_iterator
    # Keras warns as soon as the data ends, when it is not known yet that it was a stop.
    epoch_iterator._interrupted_warning = lambda: callbacks._ran_out_of_data.add(doing)
    return True
