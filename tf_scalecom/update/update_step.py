"""One update of a wrapped optimizer: local gradients in, updated variables out.

All of it runs in cross-replica context, inside the single `merge_call` of a step, because only
there TensorFlow lets a condition (warm-up, skipping, accumulation) stand around a collective.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import sum_on_device
from tf_scalecom.reduction.clipped import clipped
from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.reduction.communicator import per_replica
from tf_scalecom.reduction.exchange import Exchanged
from tf_scalecom.reduction.method import Method
from tf_scalecom.update import forward_state, gradient_sets, hierarchy
from tf_scalecom.update.descent import descend, descending
from tf_scalecom.update.gradient_norm import GradientNorm
from tf_scalecom.update.leader_choice import LeaderChoice
from tf_scalecom.update.residual_reset import ResidualReset
from tf_scalecom.update.route import route
from tf_scalecom.update.skip_warning import SkipWarning
from tf_scalecom.wire.plan import Plan
from tf_scalecom.wire.warmup import Stage


@dataclasses.dataclass(frozen=True)
class CompressionState:
    """What a `ScaleComOptimizer` adds to its inner optimizer.

    Attributes:
        method: how gradients are reduced.
        plan: for all variables that the optimizer was built with.
        variables: for each of these what the method keeps, () of one that travels dense.
        skipped_steps: integer variable, counts updates skipped for a gradient, or its sum with the
            residual, that was not finite.
        warmup: stages of the warm-up, in which other plans hold for the same variables.
        skip_warning: is told of each update that is skipped.
        residual_reset: is shown in each update that is skipped what differs between replicas.
        gradient_norm: is shown the gradients of each update.
        leader_choice: is shown what each update sends.
        hierarchical: whether the replicas of a worker sum their gradients before the exchange; what
            the method keeps is then of the worker.
    """

    method: Method
    plan: Plan
    variables: Sequence[Sequence[keras.Variable]]
    skipped_steps: keras.Variable
    warmup: tuple[Stage, ...]
    skip_warning: SkipWarning
    residual_reset: ResidualReset
    gradient_norm: GradientNorm
    leader_choice: LeaderChoice
    hierarchical: bool


class UpdateStep:
    """The update of some variables by one optimizer.

    1. Accumulate the gradients of each replica, as the inner optimizer would.
    2. Exchange and clip them, which updates the method's state: the only communication of an
       update.
    3. If all were finite, let the inner optimizer update; otherwise count a skipped step.
    """

    def __init__(
        self,
        inner: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        state: CompressionState,
    ):
        self._inner = inner
        self._variables = variables
        self._state = state
        self._positions = [inner._get_variable_index(v) for v in variables]
        self._plan = state.plan.subset(self._positions)
        self._kept = [v for p in self._positions for v in state.variables[p]]
        self._clipping = Clipping.of(inner)
        self._descending = descending(inner, variables, self._plan, state.method)

    def run(self, strategy: tf.distribute.Strategy, grads, replica_ids):
        """Call it by `merge_call`.

        Args:
            strategy: the strategy, given by `merge_call`.
            grads: one per-replica gradient per variable.
            replica_ids: per-replica id in the whole group.
        """
        inner = self._inner
        grads = _without_empty(strategy, grads)
        every = inner.gradient_accumulation_steps
        if every:
            accumulators = [inner._accumulated_gradients[p] for p in self._positions]
            tf.cond(
                (inner._iterations + 1) % every == 0,
                lambda: self._exchange_and_apply(strategy, grads, replica_ids, accumulators),
                lambda: self._accumulate(strategy, grads, accumulators),
            )
        else:
            self._exchange_and_apply(strategy, grads, replica_ids)
        inner._iterations.assign_add(1)
        forward_state.update_ends()

    def _accumulate(self, strategy, grads, accumulators):
        for accumulator, gradient in zip(accumulators, grads, strict=True):
            strategy.extended.update(
                accumulator.value, lambda a, g: a.assign(a + g), args=(gradient,), group=False
            )
        # Whether this batch will be skipped is not known yet.
        forward_state.take_back(all_of_it=False)
        self._after_update()

    def _exchange_and_apply(self, strategy, grads, replica_ids, accumulators=()):
        if accumulators:
            grads = strategy.extended.call_for_each_replica(self._mean, args=(grads, accumulators))
        for accumulator in accumulators:
            # Also before a skip: what is not finite must not stay.
            accumulator.assign(tf.zeros_like(accumulator))
        gradients = _by_replica(strategy, grads)
        way = route(strategy, self._state.hierarchical)
        self._state.gradient_norm.measure(
            self._inner.iterations, lambda: self._with_residual(gradients, way.num_replicas)
        )
        state = _parts_by_replica(strategy, [v.value for v in self._kept], len(gradients))
        ids = strategy.experimental_local_results(replica_ids)
        step = tf.convert_to_tensor(self._inner.iterations)
        sampled = self._sampled(strategy, way, gradients, state, ids)

        def exchange(plan, as_slices=False):
            method = clipped(self._state.method, self._clipping)
            with gradient_sets.reducing(strategy.extended):
                return way.exchange(gradients, plan, state, step, ids, method, as_slices)

        def take(exchanged: Exchanged):
            tf.cond(exchanged.finite[0], lambda: apply(exchanged.gradients), _not_inlined(skip))

        def apply(reduced):
            self._state.leader_choice.after(self._inner.iterations, sampled, reduced[0], self._plan)
            reduced = [per_replica(g, mirrored=True) for g in _transposed(reduced)]
            with _gradients_already_reduced(self._inner):
                strategy.extended.call_for_each_replica(self._inner_update, args=(reduced,))
            self._after_update()

        def skip():
            forward_state.take_back()
            self._state.skipped_steps.assign_add(1)
            step = self._inner.iterations
            in_a_row = self._state.skip_warning.count(step, next_step=step + 1)
            own = [
                part
                for parts in state
                for part, v in zip(parts, self._kept, strict=True)
                if v.per_replica
            ]
            self._state.residual_reset.reset(own, in_a_row)

        # What is measured of a step is measured in dense sums.
        as_slices = bool(self._descending) and not sampled
        way.log()
        if not self._warms_up(way):
            take(exchange(self._plan, as_slices))
        elif as_slices:  # which a warm-up may not have
            self._in_warm_up_or_after(
                step,
                lambda: take(self._exchange_in_warm_up(step, exchange)),
                lambda: take(exchange(self._plan, as_slices)),
            )
        else:
            take(
                self._in_warm_up_or_after(
                    step,
                    lambda: self._exchange_in_warm_up(step, exchange),
                    lambda: exchange(self._plan),
                )
            )

    def _mean(self, grads, accumulators):
        every = self._inner.gradient_accumulation_steps
        return [(g + a) / every for g, a in zip(grads, accumulators, strict=True)]

    def _with_residual(self, gradients, num_replicas):
        """The gradients that have a residual: of the first replica here, or of the worker."""
        own = gradients[0]
        if self._state.hierarchical:
            own = [sum_on_device(parts) for parts in _transposed(gradients)]
        if self._clipping:
            own = self._clipping.clip_own(own, self._plan, num_replicas)
        return [own[i] for i in self._plan.compressed]

    def _sampled(self, strategy, way, gradients, state, replica_ids):
        """What is measured of the leader's choice before the exchange, if that has a leader."""
        if way.num_replicas == 1 or not self._state.method.bounded:
            return []
        step = self._inner.iterations
        own = hierarchy.worker(strategy) if self._state.hierarchical else replica_ids[0]

        def is_led_by_others():
            now = tf.convert_to_tensor(step)
            led = tf.cast(now % way.num_replicas, tf.int32) != own
            if self._state.warmup:
                led &= now >= self._state.warmup[-1].end
            return led

        return self._state.leader_choice.before(
            step,
            is_led_by_others,
            lambda: self._with_residual(gradients, way.num_replicas),
            state[0],
            self._plan,
        )

    def _warms_up(self, way):
        return way.num_replicas > 1 and self._state.warmup and self._plan.compressed

    def _in_warm_up_or_after(self, step, in_warm_up, after):
        return tf.cond(step < self._state.warmup[-1].end, _not_inlined(in_warm_up), after)

    def _exchange_in_warm_up(self, step, exchange) -> Exchanged:
        def exchange_in(stages):
            stage, *later = stages
            plan = stage.plan.subset(self._positions)
            if not later:
                return exchange(plan)
            return tf.cond(step < stage.end, lambda: exchange(plan), lambda: exchange_in(later))

        return exchange_in(self._state.warmup)

    def _inner_update(self, grads):
        inner, learning_rate = self._inner, self._inner.learning_rate
        slices = [i for i in self._descending if isinstance(grads[i], tf.IndexedSlices)]
        if slices:
            descend([self._variables[i] for i in slices], [grads[i] for i in slices], learning_rate)
        others = [i for i in range(len(grads)) if i not in slices]
        if others:
            variables = [self._variables[i] for i in others]
            inner._apply_weight_decay(variables)
            inner._backend_update_step([grads[i] for i in others], variables, learning_rate)

    def _after_update(self):
        """What Keras does after each call: moving averages, then constraints."""
        inner = self._inner
        if inner.use_ema:
            inner._update_model_variables_moving_average(inner._trainable_variables)
            if inner.ema_overwrite_frequency:
                tf.cond(
                    (inner.iterations + 1) % inner.ema_overwrite_frequency == 0,
                    lambda: inner._overwrite_model_variables_with_average_value(
                        inner._trainable_variables
                    ),
                    lambda: None,
                )
        for variable in self._variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))


def _not_inlined(branch):
    """A branch of a condition that costs next to nothing in the steps that do not take it.

    TensorFlow's executor otherwise visits every operation of the branch that is not taken, one by
    one. The price: the branch begins only when all that it uses is there.
    """
    if tf.executing_eagerly():
        return branch
    return tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})


def _without_empty(strategy, grads):
    """The gradients, without the NaN of replicas that had no data in this step."""
    leave_out = getattr(strategy.extended, "leave_out_empty", None)
    if leave_out is None:
        return grads
    return [per_replica(g) for g in _transposed(leave_out(_by_replica(strategy, grads)))]


def _by_replica(strategy, values):
    """[variable] of per-replica values to [replica of this process][variable]."""
    return _transposed(map(strategy.experimental_local_results, values))


def _parts_by_replica(strategy, variables, num_replicas):
    """[variable] to [replica of this process][variable]: the part that is the replica's own."""
    parts = _by_replica(strategy, variables)
    if len(parts) > num_replicas:
        # A TPU's step is traced once for all replicas: there a variable is each one's own part.
        return [variables]
    # With no variables there still is an (empty) list for each replica.
    return parts or [[] for _ in range(num_replicas)]


def _transposed(rows):
    return [list(column) for column in zip(*rows, strict=True)]


@contextlib.contextmanager
def _gradients_already_reduced(optimizer):
    """Keeps a Keras optimizer's update step from all-reducing its gradients once more."""
    hook = "_all_reduce_sum_gradients"
    # Past Keras's attribute tracking, which has no business with it.
    object.__setattr__(optimizer, hook, lambda grads_and_vars: grads_and_vars)
    try:
        yield
    finally:
        object.__delattr__(optimizer, hook)
