"""`CompressedOptimizer`: any Keras optimizer, with gradients that travel compressed."""

import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.compat.keras_objects import no_automatic_dependency_tracking
from tf_scalecom.fit.made_in_scope import require_optimizer
from tf_scalecom.reduction.exchange import method_for
from tf_scalecom.reduction.method import Method
from tf_scalecom.reduction.variables import is_summable
from tf_scalecom.state import model_files
from tf_scalecom.update import hierarchy, keras_hooks
from tf_scalecom.update.descent import descending
from tf_scalecom.update.first_moment import warn_of_loss
from tf_scalecom.update.gradient_norm import GradientNorm
from tf_scalecom.update.leader_choice import LeaderChoice
from tf_scalecom.update.residual_reset import ResidualReset
from tf_scalecom.update.route import route
from tf_scalecom.update.skip_warning import SkipWarning
from tf_scalecom.update.supported import (
    as_optimizer,
    check_inner,
    check_method,
    check_strategy,
    check_takes_zeros,
)
from tf_scalecom.update.update_step import CompressionState, UpdateStep
from tf_scalecom.wire.config import check_hierarchical, check_warmup, check_warmup_steps
from tf_scalecom.wire.report import CompressionReport
from tf_scalecom.wire.warmup import plan_at, warmup_stages
from tf_scalecom.workers.agreement import VARIABLE, describe_optimizer

_VARIABLES_BEFORE_BUILD = 1  # the count of skipped steps
_SKIP_ADVICE = (
    "A gradient, or its sum with the residual, was not finite in each of them, on some worker, so "
    "the model has not changed. Look "
    "for NaN and infinities in the data and the loss, lower the learning rate or have the "
    "optimizer clip gradients; callbacks.TerminateOnNaN ends such a training."
)


def _of_inner(name):
    """A property that lives on the inner optimizer."""

    def getter(self):
        return getattr(self.inner_optimizer, name)

    def setter(self, value):
        setattr(self.inner_optimizer, name, value)

    return property(getter, setter)


@keras.saving.register_keras_serializable(package="tf_scalecom")
class CompressedOptimizer(keras.optimizers.Optimizer):
    """Wraps a Keras optimizer; its gradients are reduced by a method that compresses.

    Gradients are accumulated locally first. What travels dense is clipped when it is summed, as one
    process does; of n replicas each clips its own of what is compressed, before its residual is
    added, at the limit / sqrt(n) (`reduction.clipping` says why). A step in which any replica's
    gradient, or its sum with the residual, is not finite is skipped on all: nothing changes but
    `iterations` and `skipped_steps`, and a residual that keeps steps from being
    taken (`reset_elements`); what layers have assigned in the step is taken back. Learning rate,
    iterations, weight decay, loss scale, moving averages are those of the inner optimizer. Every 25
    skipped steps in a row are a warning in the log.

    Under mixed_float16 Keras puts a `LossScaleOptimizer` around: residuals are in unscaled units,
    and `model.optimizer.inner_optimizer` has `residuals`, `compression_report()` and
    `skipped_steps`. Steps that loss scaling skips do not count there.

    Args:
        inner_optimizer: a Keras optimizer, or its name; `Adafactor` with an `epsilon_1` of 1e-16 or
            more. Not a `LossScaleOptimizer` (it goes outside, where `compile` puts it) and not a
            `MultiOptimizer`. With momentum or a mean of gradients, see `recipe`.
        method: of `tf_scalecom.methods`.
        warmup_steps: updates at the start in which more is sent; see `warmup`.
        name: name of the optimizer.
        hierarchical: for workers of several replicas under `MultiWorkerMirroredStrategy`: sum the
            gradients of a worker's replicas, which costs no network, and exchange between workers.
            To the method a replica is then a worker, and each worker has one residual.
        warmup: what is sent in the first `warmup_steps` updates. "dense": everything, as in the
            paper. "ramp", beyond the paper, and not with `PowerSGD`: compression ratios above 4
            grow geometrically from 4, in up to five stages, for a fraction of the bytes; each stage
            is a graph more to trace.

    Raises:
        ValueError: an argument is out of its range.

    Example:

    ```python
    strategy = tf_scalecom.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model.compile(
            optimizer=tf_scalecom.CompressedOptimizer(
                keras.optimizers.SGD(0.1), tf_scalecom.methods.OwnersTopK(value_dtype="bfloat16")
            ),
            loss="mse",
        )
    model.fit(dataset)
    print(model.optimizer.compression_report())
    ```
    """

    _iterations = _of_inner("_iterations")
    _learning_rate = _of_inner("_learning_rate")
    _model_variables_moving_average = _of_inner("_model_variables_moving_average")
    weight_decay = _of_inner("weight_decay")
    clipnorm = _of_inner("clipnorm")
    clipvalue = _of_inner("clipvalue")
    global_clipnorm = _of_inner("global_clipnorm")
    use_ema = _of_inner("use_ema")
    ema_momentum = _of_inner("ema_momentum")
    ema_overwrite_frequency = _of_inner("ema_overwrite_frequency")
    loss_scale_factor = _of_inner("loss_scale_factor")
    gradient_accumulation_steps = _of_inner("gradient_accumulation_steps")
    iterations = _of_inner("iterations")
    learning_rate = _of_inner("learning_rate")

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str,
        method: Method,
        warmup_steps: int = 0,
        name: str | None = None,
        *,
        hierarchical: bool = False,
        warmup: str = "dense",
    ):
        keras_hooks.install()
        inner_optimizer = as_optimizer(inner_optimizer)
        check_inner(inner_optimizer)
        warmup_steps = check_warmup_steps(warmup_steps)
        warmup = check_warmup(warmup)
        check_method(method, warmup)
        self._lock = False
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.method = method
        self.warmup_steps = warmup_steps
        self.warmup = warmup
        self.hierarchical = check_hierarchical(hierarchical)
        self._state: CompressionState | None = None
        self._compared = False
        self._weights_to_set: Sequence[np.ndarray] | None = None
        self._skipped_steps = self.add_variable(
            (), dtype="int64", aggregation="only_first_replica", name="skipped_steps"
        )

    # Keras's constructor assigns its own defaults, an iteration counter and a learning rate among
    # them, before there is an inner optimizer, whose count: here they leave no trace. Taken back
    # later they would, and TensorFlow saves no list from which something was removed.

    def __setattr__(self, name, value):
        of_inner = isinstance(getattr(type(self), name, None), property)
        if not of_inner or "inner_optimizer" in vars(self):
            super().__setattr__(name, value)

    def _track_variable(self, variable):
        if "inner_optimizer" in vars(self):
            super()._track_variable(variable)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":  # where a variable is one tensor, not one per replica
            children["_variables"] = [variable.value for variable in self._variables]
        return children

    @no_automatic_dependency_tracking  # or the model's variables would be the optimizer's too
    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the residuals and builds the inner optimizer.

        Args:
            variables: list of trainable variables. A variable's place in it is its identity.

        Raises:
            ValueError: the workers' optimizers or variables differ.
        """
        if not variables:
            return
        if tf.distribute.has_strategy():
            require_optimizer(self, tf.distribute.get_strategy())
        method = self.method
        plan = method.plan(variables)
        if plan.compressed:
            check_takes_zeros(self.inner_optimizer)
        if not model_files.loading():  # which one worker may do alone
            self._require_alike(plan)
            if self._distribution_strategy.extended.should_checkpoint:  # it speaks for all
                warn_of_loss(self.inner_optimizer, plan.tensors)
        if self.hierarchical:
            hierarchy.check_strategy(self._distribution_strategy)
        self._excluded = method.excluded([t.path for t in plan.tensors])
        with contextlib.ExitStack() as stack:
            if not tf.distribute.has_strategy():
                stack.enter_context(self._distribution_strategy.scope())
            kept = self._make_variables(method, plan)
            self.inner_optimizer.build(variables)
        self._state = CompressionState(
            method=method,
            plan=plan,
            variables=kept,
            skipped_steps=self._skipped_steps,
            warmup=warmup_stages(
                functools.partial(method.plan, variables), self.warmup, self.warmup_steps
            ),
            skip_warning=SkipWarning(_SKIP_ADVICE),
            residual_reset=ResidualReset(),
            gradient_norm=GradientNorm(),
            leader_choice=LeaderChoice(),
            hierarchical=self.hierarchical,
        )
        self._trainable_variables = list(variables)
        self.built = True
        if self._weights_to_set is not None:
            weights, self._weights_to_set = self._weights_to_set, None
            self.set_weights(weights)

    def _require_alike(self, plan):
        """Compares the workers, once."""
        workers = getattr(self._distribution_strategy.extended, "workers", None)
        if workers is not None and not self._compared:
            description = {
                **describe_optimizer(self),
                "method": type(self.method).__name__,
                **self.method.get_config(),
                "variables": [
                    {**dataclasses.asdict(tensor), "path": None, VARIABLE: tensor.path}
                    for tensor in plan.tensors
                ],
            }
            workers.require_alike(type(self).__name__, description)
            self._compared = True

    def _make_variables(self, method, plan):
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras.name_scope(self.name, caller=self))
            if self.hierarchical:
                extended = self._distribution_strategy.extended
                stack.enter_context(hierarchy.variables_of_worker(extended))
            kept = method.init(plan)
        for variable in itertools.chain.from_iterable(kept):
            self._track_variable(variable)
        return kept

    @property
    def variables(self) -> list[keras.Variable]:
        """Own variables, then the inner optimizer's."""
        return self._variables + self.inner_optimizer.variables

    @property
    def residuals(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Variable path -> float32 array in the variable's shape, for each local replica."""
        state = self._built_state("residuals")
        return {
            tensor.path: tuple(part.numpy() for part in residual.parts)
            for tensor, kept in zip(state.plan.tensors, state.variables, strict=True)
            for residual in filter(is_summable, kept)
        }

    @property
    def residual_variables(self) -> list[keras.Variable]:
        """The float32 variables behind `residuals`; each replica has a value of its own."""
        kept = self._built_state("residual_variables").variables
        return list(filter(is_summable, itertools.chain.from_iterable(kept)))

    @property
    def skipped_steps(self) -> keras.Variable:
        """Number of steps skipped for a gradient, or residual + gradient, that was not finite.

        On some replica: all skip the same steps.
        """
        return self._skipped_steps

    @property
    def reset_elements(self) -> int:
        """Elements of this worker's residuals that were set to 0 since the process began.

        In a skipped step, an element that is not finite; in one that follows another, also an
        element above 1e31, as there is a finite gradient with which it overflows. Where XLA
        compiles the step both are reset in any skipped step, and not counted.
        """
        return self._built_state("reset_elements").residual_reset.count

    @property
    def warmup_ends(self) -> list[int]:
        """The steps at which what is sent changes; the last one is the first after the warm-up."""
        return [stage.end for stage in self._built_state("warmup_ends").warmup]

    @property
    def gradient_norm(self) -> GradientNorm:
        """Measures the gradients of the variables that have a residual, once it is told to."""
        return self._built_state("gradient_norm").gradient_norm

    @property
    def leader_choice(self) -> LeaderChoice:
        """Measures how well the leader's choice suits this worker, once it is told to."""
        return self._built_state("leader_choice").leader_choice

    def compression_report(
        self, num_replicas: int | None = None, *, step: int | None = None
    ) -> CompressionReport:
        """What a step sends, by variable and in total.

        Args:
            num_replicas: replicas to count for; by default those of the strategy in use, or its
                workers if the exchange is hierarchical. With one replica in use, others are counted
                as those of `MultiWorkerMirroredStrategy`.
            step: count this step, from 0, which may be one of the warm-up; by default one after it.
        """
        state = self._built_state("compression_report()")
        way = route(self._distribution_strategy, self.hierarchical)
        replicas = way.num_replicas if num_replicas is None else num_replicas
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise ValueError(
                "compression_report: expected num_replicas as an integer >= 1; received "
                f"{num_replicas!r}. Leave it out for the current strategy."
            )
        if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
            raise ValueError(
                "compression_report: expected step as an integer >= 0; received "
                f"{step!r}. Leave it out for a step after the warm-up."
            )
        plan = state.plan if step is None else plan_at(step, state.warmup, state.plan)
        method = method_for(plan, state.method)
        in_place = descending(self.inner_optimizer, self._trainable_variables, plan, method)
        return dataclasses.replace(
            method.report(plan, replicas, way.wire),
            in_place=tuple(plan.tensors[i].path for i in in_place),
        )

    @tf.autograph.experimental.do_not_convert  # of which a traced step would take twice as long
    def apply(self, grads: Sequence, trainable_variables: Sequence | None = None) -> None:
        """Exchanges gradients and updates variables. Call it in replica context.

        Args:
            grads: one gradient (tensor, IndexedSlices or None) per variable.
            trainable_variables: the variables, or None for all that the optimizer was built with.

        Raises:
            ValueError: the workers' optimizers or variables differ.
        """
        grads = list(grads)
        if not grads:
            return
        require_optimizer(self, tf.distribute.get_strategy())
        variables = self._known_variables(grads, trainable_variables)
        context = tf.distribute.get_replica_context()
        if context is None:
            raise ValueError(
                "ScaleComOptimizer.apply: expected a call in replica context; received one in "
                "cross-replica context. Call it in the function given to `strategy.run`."
            )
        check_strategy(context.strategy)
        inner = self.inner_optimizer
        grads = [self._dense_unless_excluded(g, v) for g, v in zip(grads, variables, strict=True)]
        grads, variables = inner._filter_empty_gradients(grads, variables)
        grads, variables = inner._overwrite_variables_directly_with_gradients(grads, variables)
        if grads:
            grads = [self._prepare(g, v) for g, v in zip(grads, variables, strict=True)]
            state = self._built_state("apply()")
            self._require_alike(state.plan)
            step = UpdateStep(inner, variables, state)
            context.merge_call(step.run, args=(grads, context.replica_id_in_sync_group))
        else:  # all were overwritten with their gradients
            self._iterations.assign_add(1)

    def _known_variables(self, grads, variables):
        if variables is None:
            self._built_state("apply() without variables")
            variables = self._trainable_variables
        variables = list(variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        self.inner_optimizer._check_variables_are_known(variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"ScaleComOptimizer.apply: expected one gradient per variable; received "
                f"{len(grads)} gradients for {len(variables)} variables. Pass None where there "
                "is no gradient."
            )
        return variables

    def _dense_unless_excluded(self, gradient, variable):
        position = self.inner_optimizer._get_variable_index(variable)
        if isinstance(gradient, tf.IndexedSlices) and position not in self._excluded:
            return tf.convert_to_tensor(gradient)
        return gradient

    def _prepare(self, gradient, variable):
        """One gradient, unscaled, in its variable's dtype."""
        if self.loss_scale_factor is not None:
            gradient = _divided(gradient, self.loss_scale_factor)
        # A tensor of this replica's own: `merge_call` takes one that all share for a single value.
        return tf.identity(tf.cast(gradient, variable.dtype))

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def _built_state(self, wanted: str) -> CompressionState:
        if self._state is None:
            raise ValueError(
                f"ScaleComOptimizer: expected to be built before {wanted}; received no "
                "variables yet. Call `optimizer.build(model.trainable_variables)` or train a step "
                "first."
            )
        return self._state

    def save_own_variables(self, store):
        """Saves residuals and counters; Keras saves the inner optimizer beside them."""
        for i, variable in enumerate(self._variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store):
        """Loads what `save_own_variables` saved; every replica gets the residuals of the one saved.

        If the file is of another optimizer, or of one before its first step, or this one has not
        been built, there is a warning and nothing is loaded, as with any Keras optimizer.
        """
        saved = [store[key] for i in range(len(store.keys())) if (key := str(i)) in store]
        shapes = [tuple(value.shape) for value in saved]
        if shapes == [tuple(variable.shape) for variable in self._variables]:
            for variable, value in zip(self._variables, saved, strict=True):
                variable.assign(value)
            return
        if not self.built:
            why = (
                "this optimizer has no variables yet. Call "
                "`optimizer.build(model.trainable_variables)` before loading to have it go on"
            )
        elif len(shapes) == _VARIABLES_BEFORE_BUILD:
            why = "the file was saved before the first step"
        else:
            why = "the file was saved with another optimizer, or for other variables"
        warnings.warn(
            f"ScaleComOptimizer: skipping its residuals, which stay as they are: {why}.",
            stacklevel=2,
        )

    def set_weights(self, weights):
        """Sets own variables and the inner optimizer's, once they are there.

        Keras loads a `.h5` file so, after a call to `build` without the variables of layers.
        """
        if self.built:
            for variable, weight in zip(self.variables, weights, strict=True):
                variable.assign(weight)
        else:
            self._weights_to_set = [np.asarray(weight) for weight in weights]

    def get_config(self):
        # Everything else is the inner optimizer's.
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "method": keras.saving.serialize_keras_object(self.method),
            "warmup_steps": self.warmup_steps,
            "warmup": self.warmup,
            "hierarchical": self.hierarchical,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        objects = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in ("inner_optimizer", "method")
            if name in config
        }
        return cls(**{**config, **objects})


def _divided(gradient, number):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / number
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / number
