"""The gradient of every learner at the same weights."""

import functools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.simulate.task import Task, calling, expect

# Learners computed at once: enough to fill the machine, few enough for their activations to fit.
GROUP = 16


class LearnerGradients:
    """Computes gradients of the mean loss over all learners: each learner's loss times 1/n.

    A group of learners at once as one vectorised function, which is faster (docs/simulate.md has
    the numbers), if the model has no state of its own and no recurrent layer, whose loop is slower
    that way. With state (moving averages, seeds of dropout) one after the other: the state then
    sees the learners' batches in turn.

    Args:
        task: has the loss.
        model: built.
        learners: n.
        summed: whether only the sum over all learners is wanted, which takes a fraction of the time
            and memory.
        vectorized: overrides that choice.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        learners: int,
        summed: bool = False,
        vectorized: bool | None = None,
    ):
        self._task = task
        self._model = model
        self._learners = learners
        self._summed = summed
        if vectorized is None:
            vectorized = not model.non_trainable_variables and not _has_recurrence(model)
        self._group = GROUP if vectorized else 1
        if not vectorized:
            compute = self._of_one
        elif summed:
            compute = self._of_sum
        else:
            compute = self._of_each
        self._compute = tf.function(compute, autograph=False)

    def __call__(self, batches: Sequence) -> tuple[float, list[list[tf.Tensor]]]:
        """Returns the mean loss, and gradients [learner][variable]; their sum as of one learner.

        Args:
            batches: for each learner, a nest of arrays.
        """
        losses, gradients = [], []
        for start in range(0, self._learners, self._group):
            members = batches[start : start + self._group]
            with calling("batch"):
                stacked = tf.nest.map_structure(
                    lambda *parts: tf.constant(np.stack(parts)), *members
                )
            with calling("loss"):
                group_losses, group_gradients = self._compute(stacked)
                losses.append(group_losses.numpy())
            gradients += group_gradients
        if self._summed:
            gradients = [[tf.add_n(parts) for parts in zip(*gradients, strict=True)]]
        with np.errstate(invalid="ignore"):  # of infinities: the caller sees what comes of them
            return float(np.sum(np.concatenate(losses))), gradients

    def _of_each(self, stacked):
        differentiated = functools.partial(self._differentiated, self._loss)
        losses, gradients = tf.vectorized_map(differentiated, stacked)
        by_learner = zip(*map(tf.unstack, gradients), strict=True)
        return losses, [list(parts) for parts in by_learner]

    def _of_sum(self, stacked):
        losses, gradients = self._differentiated(
            functools.partial(tf.vectorized_map, self._loss), stacked
        )
        return losses, [gradients]

    def _of_one(self, stacked):
        batch = tf.nest.map_structure(lambda parts: parts[0], stacked)
        loss, gradients = self._differentiated(self._loss, batch)
        return loss[tf.newaxis], [gradients]

    def _differentiated(self, losses_of, batch):
        """The losses, and the gradient of their sum."""
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            losses = losses_of(batch)
        gradients = tape.gradient(
            losses,
            [v.value for v in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return losses, [tf.convert_to_tensor(g) for g in gradients]  # IndexedSlices become dense

    def _loss(self, batch):
        loss = tf.convert_to_tensor(self._task.loss(self._model, batch))
        is_number = loss.shape.rank == 0 and loss.dtype.is_floating
        what = "loss() of the task to return a number"
        expect(is_number, what, f"{loss.dtype.name} of shape {loss.shape}")
        return loss / self._learners


def _has_recurrence(model):
    recurrent = (keras.layers.RNN, keras.layers.Bidirectional)
    return any(isinstance(layer, recurrent) for layer in model.layers)
