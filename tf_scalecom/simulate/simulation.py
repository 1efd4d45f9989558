"""A model, n learners, one method: the training step, and what is measured of it."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.reduction.clipped import Clipped, clipped
from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.reduction.communicator import ListCommunicator
from tf_scalecom.reduction.dense import Dense
from tf_scalecom.reduction.exchange import method_for
from tf_scalecom.reduction.variables import is_summable
from tf_scalecom.simulate import diagnostics, schedules
from tf_scalecom.simulate.config import CLIPPING, SimulationConfig
from tf_scalecom.simulate.gradients import LearnerGradients
from tf_scalecom.simulate.local_steps import LocalSteps
from tf_scalecom.simulate.task import DataOrder, Task, calling, expect
from tf_scalecom.wire.plan import Plan

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
    "caught",
    "caught_estimate",
)


class Reduced(NamedTuple):
    """Result of one reduction.

    Attributes:
        gradients: [variable], the sum over all learners.
        sent: [learner][variable]: not zero where that learner's element took part.
        finite: bool scalar. Where false gradients are not to be used.
    """

    gradients: list[tf.Tensor]
    sent: list[list[tf.Tensor]]
    finite: tf.Tensor


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
        with calling("build_model"):
            self.model = task.build_model()
            has_weights = isinstance(self.model, keras.Model) and self.model.trainable_variables
        what = "build_model() of the task to return a built keras.Model with trainable variables"
        expect(bool(has_weights), what, f"a {type(self.model).__name__}")
        self._weights = self.model.trainable_variables
        # What learners did on their own is added as it is.
        is_local = config.local_steps > 1
        self._optimizer = keras.optimizers.SGD(1.0) if is_local else _inner_optimizer(config)
        self._optimizer.build(self._weights)
        self._apply = tf.function(
            lambda gradients: self._optimizer.apply(gradients, self._weights), autograph=False
        )
        self.method = clipped(config.build_method(), _clipping(config))
        self._schedule = schedules.PlanSchedule(config, self.method, self._weights)
        self.plan = self._schedule.final
        self._state = _state_of_learners(self.method, self.plan, config.learners)
        # Plain sums need no learner's own gradient.
        is_dense = isinstance(self.method, Dense)
        self._reductions: dict[Plan, Callable[..., Reduced]] = {}
        self._velocities = []
        if config.momentum and config.momentum_placement == "before":
            shapes = [v.shape for v in self._weights]
            self._velocities = [
                [tf.Variable(tf.zeros(shape)) for shape in shapes]
                for _ in range(1 if is_dense else config.learners)
            ]
        # [step mod delay][variable]
        self._late = [
            [tf.Variable(tf.zeros(v.shape)) for v in self._weights] for _ in range(config.delay)
        ]
        self._order = DataOrder(task.train_size, config.learners, config.batch_size, config.seed)
        self._gradients = LearnerGradients(task, self.model, config.learners, summed=is_dense)
        self._local_steps = None
        if is_local:
            self._local_steps = LocalSteps(
                task,
                self.model,
                functools.partial(_inner_optimizer, config),
                config.learners,
                config.local_steps,
            )
        self._selection_quality = diagnostics.SelectionQuality(
            [self.plan.tensors[position].shape for position in self.plan.compressed]
        )

    def gradients(self) -> tuple[float, list[list[tf.Tensor]]]:
        """This step's mean loss and gradients [learner][variable], each times 1/n.

        Of method dense, their sum as if there were one learner. With local steps, what learners did
        in them in place of gradients.

        Raises:
            Diverged: the loss is not finite.
        """
        steps = range(self.step, self.step + self.config.local_steps)
        batches = [self._batches(step) for step in steps]
        if self._local_steps is None:
            loss, gradients = self._gradients(batches[0])
        else:
            rates = [schedules.learning_rate(self.config, step) for step in steps]
            loss, gradients = self._local_steps(batches, rates, self._kept_progress())
        if not np.isfinite(loss):
            raise self._diverged("loss", loss)
        return loss, gradients

    def _batches(self, step):
        learners = range(self.config.learners)
        with calling("batch"):
            return [self.task.batch(self._order.indices(step, learner)) for learner in learners]

    def _kept_progress(self):
        """[learner][variable], what has not been sent, where learners keep it."""
        if self.config.local_progress == "dropped" or not self.plan.compressed:
            return None
        kept = [[tf.zeros(v.shape) for v in self._weights] for _ in range(self.config.learners)]
        for own, residuals in zip(kept, self.residuals, strict=True):
            for position, residual in zip(self.plan.compressed, residuals, strict=True):
                own[position] = residual.value()
        return kept

    def advance(self, measure: bool = False) -> dict[str, float]:
        """Makes one step, or as many local ones as there are from one exchange to the next.

        Args:
            measure: whether to look at residuals and selections too, which costs about a step.

        Returns:
            Some of `MEASURES`.

        Raises:
            Diverged: the loss, or a learner's residual + gradient, is not finite.
        """
        loss, gradients = self.gradients()
        plan = self._schedule.plan(self.step)
        if self._velocities:
            gradients = self._add_to_velocities(gradients)
        measured = self._measure_before(self._clipped(gradients, plan), plan) if measure else {}
        reduced = self._reduction(plan)(gradients, tf.constant(self._exchanges, tf.int64))
        if not reduced.finite:
            raise self._diverged("sum of residual and gradient", "one that is not")
        if self._velocities:
            self._clear_sent(reduced, plan)
        if measure:
            compensated, other = (measured.pop(name, None) for name in ("compensated", "other"))
            measured |= self._measure_after(compensated, other, reduced, plan)
        beta, rate = self._schedule.beta(self.step), schedules.learning_rate(self.config, self.step)
        if self._local_steps is None:
            self._optimizer.learning_rate = rate
        self._update_with(reduced.gradients)
        sent = self.bytes_sent(plan)
        self.bytes_total += sent
        self.step += self.config.local_steps
        return measured | {
            "learning_rate": rate,
            "beta": beta,
            "loss": loss,
            "bytes_sent": sent / self.config.local_steps,
            "bytes_total": self.bytes_total,
        }

    @property
    def _exchanges(self) -> int:
        """Exchanges so far, by which leaders take turns."""
        return self.step // self.config.local_steps

    def _update_with(self, gradients):
        """Hands gradients, or those of `delay` steps ago, to the optimizer."""
        if not self._late:
            self._apply(gradients)
            return
        late = self._late[self._exchanges % len(self._late)]
        if self._exchanges >= len(self._late):
            self._apply([variable.value() for variable in late])
        for variable, gradient in zip(late, gradients, strict=True):
            variable.assign(gradient)

    def _diverged(self, what, received) -> Diverged:
        return Diverged(
            f"Expected a finite {what} in step {self.step}; received {received}. Lower the "
            "learning rate or lengthen its rise (--learning-rate, --lr-warmup)."
        )

    def evaluate(self) -> dict[str, float]:
        """The task's figures of merit."""
        with calling("evaluate"):
            figures = {name: float(value) for name, value in self.task.evaluate(self.model).items()}
        expect(
            all(map(_is_text, figures)), "names of text for figures of evaluate()", list(figures)
        )
        taken = sorted({"step", "bytes_total", "diverged"} & figures.keys())
        expect(not taken, "figures of evaluate() under names of their own", taken)
        return figures

    def variables(self) -> dict[str, tf.Variable]:
        """All that changes from step to step, by name."""
        named = {f"model/{i}": v.value for i, v in enumerate(self.model.variables)}
        named |= {f"optimizer/{i}": v.value for i, v in enumerate(self._optimizer.variables)}
        if self._local_steps is not None:
            for learner, optimizer in enumerate(self._local_steps.optimizers):
                named |= {
                    f"local/{learner}/{i}": v.value for i, v in enumerate(optimizer.variables)
                }
        for learner, velocities in enumerate(self._velocities):
            named |= {f"velocity/{learner}/{i}": v for i, v in enumerate(velocities)}
        for place, gradients in enumerate(self._late):
            named |= {f"late/{place}/{i}": v for i, v in enumerate(gradients)}
        for learner, own in enumerate(self._state):
            for place, variable in enumerate(own):
                if variable.per_replica or learner == 0:
                    named[f"method/{learner}/{place}"] = variable.value
        return named

    @property
    def residuals(self) -> list[list[tf.Variable]]:
        """[learner][compressed variable], what the learners have not sent; [] of plain sums."""
        return [[v.value for v in own if is_summable(v)] for own in self._state]

    def bytes_sent(self, plan: Plan) -> float:
        """Payload one learner transmits in a step under a plan, averaged over a leader cycle."""
        method = method_for(plan, self.method)
        return method.bytes_sent(plan, self.config.learners, ListCommunicator.route)

    def reduce(
        self, gradients: Sequence[Sequence[tf.Tensor]], plan: Plan, step: tf.Tensor
    ) -> Reduced:
        """Sums gradients [learner][variable] under a plan, and updates the learners' state.

        Callable inside a `tf.function`; `step` is an int64 scalar.
        """
        method = method_for(plan, self.method)
        state = [[variable.value for variable in own] for own in self._state]
        communicator = ListCommunicator(len(gradients))
        pending = method.propose(gradients, plan, state, step, communicator)
        updates = method.finish(pending, pending.finite)
        sent = [update.own or update.dense(plan) for update in updates]
        return Reduced(updates[0].dense(plan), sent, pending.finite[0])

    def _reduction(self, plan):
        """The reduction under a plan as one graph, of (gradients, step)."""
        if plan not in self._reductions:
            self._reductions[plan] = tf.function(
                lambda gradients, step: self.reduce(gradients, plan, step), autograph=False
            )
        return self._reductions[plan]

    def _add_to_velocities(self, gradients):
        for velocities, own in zip(self._velocities, gradients, strict=True):
            for velocity, gradient in zip(velocities, own, strict=True):
                velocity.assign(self.config.momentum * velocity + gradient)
        return [[v.value() for v in velocities] for velocities in self._velocities]

    def _clear_sent(self, reduced: Reduced, plan):
        for velocities, sent in zip(self._velocities, reduced.sent, strict=True):
            for position in plan.compressed:
                unsent = tf.cast(sent[position] == 0, tf.float32)
                velocities[position].assign(velocities[position] * unsent)

    def _clipped(self, gradients, plan):
        """Gradients as they are compressed."""
        if not isinstance(self.method, Clipped):
            return gradients
        clip = self.method.clipping.clip_own
        return [clip(own, plan, self.config.learners) for own in gradients]

    def _measure_before(self, gradients, plan):
        if not plan.compressed:
            return {}
        compressed, residuals = self.plan.compressed, self.residuals
        compensated = diagnostics.compensated_sum(gradients, residuals, compressed)
        measured = {"compensated": compensated}
        leader = self._exchanges % self.config.learners
        if self.method.bounded and self.config.learners > 1:
            other = (leader + 1) % self.config.learners
            measured["other"] = [
                gradients[other][position] + residual
                for position, residual in zip(compressed, residuals[other], strict=True)
            ]
        if self.method.elementwise:
            measured |= self._selection_quality.measure(
                compensated,
                [gradients[leader][position] for position in compressed],
                residuals[leader],
                plan,
                self._schedule.exact_plan(self.step),
            )
            if not self.method.bounded:
                del measured["contraction_bound"]
        return measured

    def _measure_after(self, compensated, other, reduced: Reduced, plan):
        if compensated is None:
            return {}
        sums = [reduced.gradients[position] for position in self.plan.compressed]
        measured = {"residual_cosine_distance": diagnostics.cosine_distance(self.residuals)}
        if self.method.conserves:
            measured["contraction"] = diagnostics.contraction(compensated, sums)
        if self.method.elementwise:
            measured["build_up"] = diagnostics.build_up(sums, plan)
            measured["caught"] = self._selection_quality.caught(compensated, sums, plan)
        if other is not None:
            sent = [tf.where(total != 0, own, 0.0) for own, total in zip(other, sums, strict=True)]
            share = self._selection_quality.caught(other, sent, plan)
            n = self.config.learners
            measured["caught_estimate"] = (1 + (n - 1) * share) / n
        return measured


def _is_text(name):
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # half of a pair, which no file can hold
        return False


def _state_of_learners(method, plan, learners) -> list[list[keras.Variable]]:
    """[learner] what a method keeps: each has its own, but of what is alike on all there is one."""
    states = [list(itertools.chain(*method.init(plan))) for _ in range(learners)]
    return [
        [v if v.per_replica else shared for v, shared in zip(own, states[0], strict=True)]
        for own in states
    ]


def _clipping(config: SimulationConfig) -> Clipping | None:
    # By an optimizer that does nothing else: what the inner one gets is clipped.
    return Clipping.of(keras.optimizers.SGD(1.0, **{k: getattr(config, k) for k in CLIPPING}))


def _inner_optimizer(config: SimulationConfig) -> keras.optimizers.Optimizer:
    if config.optimizer == "adam":
        return keras.optimizers.Adam(
            config.learning_rate, beta_1=config.adam_beta_1, beta_2=config.adam_beta_2
        )
    # Keras takes no integer for a momentum, as the command line gives for "0".
    after = float(config.momentum) if config.momentum_placement == "after" else 0.0
    return keras.optimizers.SGD(config.learning_rate, momentum=after)
