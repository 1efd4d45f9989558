"""A model, n learners, one method: the training step, and what is measured of it."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.simulate import diagnostics, schedules
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.gradients import LearnerGradients
from tf_scalecom.simulate.methods import build_method
from tf_scalecom.simulate.reduction import Reduced, compensated_sum, zero_residuals
from tf_scalecom.simulate.task import DataOrder, Task
from tf_scalecom.wire.layout import Layout

MEASURES = (
    "learning_rate",
    "beta",
    "loss",
    "bytes_sent",
    "bytes_total",
    "residual_cosine_distance",
    "hamming_distance",
    "gamma0",
    "contraction",
    "contraction_bound",
    "build_up",
)
# They send all learners' values of the leader's choice, or of a better one. The paper's bound is
# about these.
BOUNDED_METHODS = ("clt_k", "mean_top_k")


class Diverged(ArithmeticError):
    """The loss is no longer finite, or no longer what the learners exchange."""


class Simulation:
    """Trains. Everything that a step depends on is in `variables()`, `step` and `bytes_total`.

    Args:
        task: model and data.
        config: the run's options.
    """

    def __init__(self, task: Task, config: SimulationConfig):
        keras.utils.set_random_seed(config.seed)
        self.task = task
        self.config = config
        self.step = 0
        self.bytes_total = 0.0
        self.model = task.build_model()
        self._weights = self.model.trainable_variables
        self._optimizer = _inner_optimizer(config)
        self._optimizer.build(self._weights)
        self._apply = tf.function(
            lambda gradients: self._optimizer.apply(gradients, self._weights), autograph=False
        )
        self._schedule = schedules.LayoutSchedule(config, self._weights)
        self.method = build_method(self._schedule.final, config)
        # Plain sums need no learner's own gradient.
        is_dense = config.method == "dense"
        self._reductions: dict[Layout, Callable[..., Reduced]] = {}
        self._velocities = []
        if config.momentum and config.momentum_placement == "before":
            shapes = [v.shape for v in self._weights]
            self._velocities = zero_residuals(1 if is_dense else config.learners, shapes)
        self._order = DataOrder(task.train_size, config.learners, config.batch_size, config.seed)
        self._gradients = LearnerGradients(task, self.model, config.learners, summed=is_dense)
        self._selection_quality = None

    def gradients(self) -> tuple[float, list[list[tf.Tensor]]]:
        """This step's mean loss and gradients [learner][variable], each times 1/n.

        Of method dense, their sum as if there were one learner.

        Raises:
            Diverged: the loss is not finite.
        """
        learners = range(self.config.learners)
        batches = [self.task.batch(self._order.indices(self.step, i)) for i in learners]
        loss, gradients = self._gradients(batches)
        if not np.isfinite(loss):
            raise self._diverged("loss", loss)
        return loss, gradients

    def advance(self, measure: bool = False) -> dict[str, float]:
        """Makes one step.

        Args:
            measure: whether to look at residuals and selections too, which costs about a step.

        Returns:
            Some of `MEASURES`.

        Raises:
            Diverged: the loss, or a learner's residual + gradient, is not finite.
        """
        loss, gradients = self.gradients()
        layout = self._schedule.layout(self.step)
        if self._velocities:
            gradients = self._add_to_velocities(gradients)
        measured = self._measure_before(gradients, layout) if measure else {}
        reduced = self._reduction(layout)(gradients, tf.constant(self.step, tf.int64))
        if not reduced.finite:
            raise self._diverged("sum of residual and gradient", "one that is not")
        if self._velocities:
            self._clear_sent(reduced, layout)
        if measure:
            measured |= self._measure_after(measured.pop("compensated", None), reduced, layout)
        rate = schedules.learning_rate(self.config, self.step)
        self._optimizer.learning_rate = rate
        self._apply(reduced.gradients)
        sent = self.method.bytes_sent(layout)
        self.bytes_total += sent
        self.step += 1
        return measured | {
            "learning_rate": rate,
            "beta": layout.beta,
            "loss": loss,
            "bytes_sent": sent,
            "bytes_total": self.bytes_total,
        }

    def _diverged(self, what, received) -> Diverged:
        return Diverged(
            f"Expected a finite {what} in step {self.step}; received {received}. Lower the "
            "learning rate or lengthen its rise (--learning-rate, --lr-warmup)."
        )

    def variables(self) -> dict[str, tf.Variable]:
        """All that changes from step to step, by name."""
        named = {f"model/{i}": v.value for i, v in enumerate(self.model.variables)}
        named |= {f"optimizer/{i}": v.value for i, v in enumerate(self._optimizer.variables)}
        for learner, velocities in enumerate(self._velocities):
            named |= {f"velocity/{learner}/{i}": v for i, v in enumerate(velocities)}
        return named | self.method.variables()

    def _reduction(self, layout):
        """The method's reduction under a plan as one graph, of (gradients, step)."""
        if layout not in self._reductions:
            self._reductions[layout] = tf.function(
                lambda gradients, step: self.method.reduce(gradients, layout, step),
                autograph=False,
            )
        return self._reductions[layout]

    def _add_to_velocities(self, gradients):
        for velocities, own in zip(self._velocities, gradients, strict=True):
            for velocity, gradient in zip(velocities, own, strict=True):
                velocity.assign(self.config.momentum * velocity + gradient)
        return [[v.value() for v in velocities] for velocities in self._velocities]

    def _clear_sent(self, reduced: Reduced, layout):
        for velocities, sent in zip(self._velocities, reduced.sent, strict=True):
            for position in layout.compressed:
                unsent = tf.cast(sent[position] == 0, tf.float32)
                velocities[position].assign(velocities[position] * unsent)

    def _measure_before(self, gradients, layout):
        if not layout.compressed:
            return {}
        compressed = self.method.compressed
        residuals = self.method.residuals
        compensated = compensated_sum(gradients, residuals, compressed)
        measured = {"compensated": compensated}
        if self.config.method != "power_sgd":
            if self._selection_quality is None:
                self._selection_quality = diagnostics.SelectionQuality(
                    [x.shape for x in compensated]
                )
            leader = self.step % self.config.learners
            measured |= self._selection_quality.measure(
                compensated,
                [gradients[leader][position] for position in compressed],
                residuals[leader],
                layout,
                self._schedule.exact_layout(self.step),
            )
            if self.config.method not in BOUNDED_METHODS:
                del measured["contraction_bound"]
        return measured

    def _measure_after(self, compensated, reduced: Reduced, layout):
        if compensated is None:
            return {}
        sums = [reduced.gradients[position] for position in self.method.compressed]
        measured = {
            "residual_cosine_distance": diagnostics.cosine_distance(self.method.residuals),
            "contraction": diagnostics.contraction(compensated, sums),
        }
        if self.config.method != "power_sgd":
            measured["build_up"] = diagnostics.build_up(sums, layout)
        return measured


def _inner_optimizer(config: SimulationConfig) -> keras.optimizers.Optimizer:
    if config.optimizer == "adam":
        return keras.optimizers.Adam(
            config.learning_rate, beta_1=config.adam_beta_1, beta_2=config.adam_beta_2
        )
    # Keras takes no integer for a momentum, as the command line gives for "0".
    after = float(config.momentum) if config.momentum_placement == "after" else 0.0
    return keras.optimizers.SGD(config.learning_rate, momentum=after)
