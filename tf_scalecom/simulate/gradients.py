"""The gradient of every learner at the same weights."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.simulate.task import Task

# Learners computed at once: enough to fill the machine, few enough for their activations to fit.
GROUP = 16


class LearnerGradients:
    """Computes gradients of the mean loss over all learners: each learner's loss times 1/n.

    A group of learners at once as one vectorised function, which is faster (docs/simulate.md has
    the numbers), if the model has no state of its own. With state (moving averages, seeds of
    dropout) one after the other: the state then sees the learners' batches in turn.

    Args:
      task: has the loss.
      model: built.
      learners: n.
      vectorized: overrides that choice.
    """

    def __init__(
        self, task: Task, model: keras.Model, learners: int, vectorized: bool | None = None
    ):
        self._task = task
        self._model = model
        self._learners = learners
        if vectorized is None:
            vectorized = not model.non_trainable_variables
        self._group = GROUP if vectorized else 1
        self._compute = tf.function(
            self._group_gradients if vectorized else self._one_in_group, autograph=False
        )

    def __call__(self, batches: Sequence) -> tuple[float, list[list[tf.Tensor]]]:
        """Returns the mean loss, and gradients [learner][variable].

        Args:
          batches: for each learner, a nest of arrays.
        """
        losses, gradients = [], []
        for start in range(0, self._learners, self._group):
            members = batches[start : start + self._group]
            stacked = tf.nest.map_structure(lambda *parts: tf.constant(np.stack(parts)), *members)
            group_losses, group_gradients = self._compute(stacked)
            losses.append(group_losses.numpy())
            gradients += group_gradients
        return float(np.sum(np.concatenate(losses))), gradients

    def _group_gradients(self, stacked):
        losses, gradients = tf.vectorized_map(self._gradient, stacked)
        by_learner = zip(*map(tf.unstack, gradients), strict=True)
        return losses, [list(parts) for parts in by_learner]

    def _one_in_group(self, stacked):
        loss, gradients = self._gradient(tf.nest.map_structure(lambda parts: parts[0], stacked))
        return loss[tf.newaxis], [gradients]

    def _gradient(self, batch):
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._task.loss(self._model, batch) / self._learners
        gradients = tape.gradient(
            loss, [v.value for v in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss, [tf.convert_to_tensor(g) for g in gradients]  # IndexedSlices become dense
