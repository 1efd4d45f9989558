"""Learners that train on their own for some steps, and then exchange how far they came."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tf_scalecom.simulate.gradients import LearnerGradients
from tf_scalecom.simulate.task import Task


class LocalSteps:
    """What each learner's own optimizer does in `count` steps, as a gradient is: negated, and 1/n.

    Learners take their turns on one model. A learner starts from the weights that all share or, if
    it keeps what it has not sent, from what they would be with that:

        start_i = w - n m_i        m_i its residual, or 0
        g_i = (start_i - end_i) / n

    Args:
        task: has the loss.
        model: built; its weights are w before and after.
        make_optimizer: makes a learner's.
        learners: n.
        count: steps on its own.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        make_optimizer: Callable[[], keras.optimizers.Optimizer],
        learners: int,
        count: int,
    ):
        self._weights = model.trainable_variables
        self._learners = learners
        self._count = count
        self._gradients = LearnerGradients(task, model, learners=1)
        self.optimizers = [make_optimizer() for _ in range(learners)]
        for optimizer in self.optimizers:
            optimizer.build(self._weights)
        self._applied = [
            tf.function(
                lambda gradients, optimizer=optimizer: optimizer.apply(gradients, self._weights),
                autograph=False,
            )
            for optimizer in self.optimizers
        ]

    def __call__(
        self,
        batches: Sequence[Sequence],
        rates: Sequence[float],
        kept: Sequence[Sequence[tf.Tensor]] | None,
    ) -> tuple[float, list[list[tf.Tensor]]]:
        """Returns the mean loss of all steps, and progress [learner][variable].

        Args:
            batches: [step][learner], a nest of arrays.
            rates: [step], the learning rate.
            kept: [learner][variable], m_i in each variable's shape, or None.
        """
        shared = [weight.value.read_value() for weight in self._weights]
        total, progress = 0.0, []
        for learner, (optimizer, apply) in enumerate(
            zip(self.optimizers, self._applied, strict=True)
        ):
            start = shared
            if kept is not None:
                start = [w - self._learners * m for w, m in zip(shared, kept[learner], strict=True)]
            self._set(start)
            for own, rate in zip(batches, rates, strict=True):
                loss, (gradients,) = self._gradients([own[learner]])
                optimizer.learning_rate = rate
                apply(gradients)
                total += loss
            progress.append(
                [(s - w.value) / self._learners for s, w in zip(start, self._weights, strict=True)]
            )
        self._set(shared)
        return total / (self._learners * self._count), progress

    def _set(self, values):
        for weight, value in zip(self._weights, values, strict=True):
            weight.assign(value)
