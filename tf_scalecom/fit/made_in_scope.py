"""Model and optimizer join a strategy by being made in its scope; what was made outside is named.

TensorFlow's own errors speak of mixed strategies, from deep inside a step; and a model made outside
trains without a word, each worker its own.
"""

import weakref

import keras
import tensorflow as tf
from absl import logging

from tf_scalecom.compat.keras_objects import strategy_of
from tf_scalecom.compat.tensorflow_distribute import is_default

_ADVICE = (
    "Make the model, its layers and its optimizer, and call compile(), inside "
    "`with strategy.scope():`."
)

# Those that this process has made.
_strategies: weakref.WeakSet[tf.distribute.Strategy] = weakref.WeakSet()
_said: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def require_variable(variable) -> None:
    """Raises ValueError unless a TensorFlow variable was made in a strategy's scope."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        raise ValueError(
            "Expected a variable made in the scope of the strategy that updates it; received "
            f"{variable.name}, made outside. {_ADVICE}"
        )


def require_optimizer(optimizer, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError if an optimizer, or one inside it, was made for another strategy."""
    while optimizer is not None:
        # Where its slots will belong. Keras takes it from the scope in which an optimizer is made.
        made_for = strategy_of(optimizer, strategy)
        # `compile` puts loss scaling around, wherever it is called; that has no slots.
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if made_for is not strategy and not scales:
            raise ValueError(
                f"Expected an optimizer made where its model is, {_place(strategy)}; received "
                f"{type(optimizer).__name__}, made {_place(made_for)}. {_ADVICE}"
            )
        optimizer = getattr(optimizer, "inner_optimizer", None)


def require_metrics(model: keras.Model, strategy: tf.distribute.Strategy, call: str) -> None:
    """Raises ValueError if a metric, or a part of the optimizer, is not the strategy's.

    Each worker would see its own, and a callback that looks at them do something else on each.

    Args:
        model: compiled, and built.
        strategy: in whose scope the model was made.
        call: the method that is called, "fit" or "evaluate".
    """
    optimizer = getattr(model, "optimizer", None)
    for variable in [*model.metrics_variables, *(optimizer.variables if optimizer else ())]:
        # A residual may be of a worker, not of its replicas.
        is_own = getattr(variable, "per_replica", False)
        if not is_own and getattr(variable.value, "distribute_strategy", None) is not strategy:
            raise ValueError(
                f"{call}: expected metrics and optimizer made where the model is, in the "
                f"strategy's scope; received {variable.path}, made outside, of which each worker "
                f"would have its own. {_ADVICE}"
            )


def watch_fit_outside(strategy: tf.distribute.Strategy) -> None:
    """From now on it is said when `fit` trains a model that was made outside of all scopes.

    Where the strategy has several workers that is a warning, as one of them may well train a model
    of its own; it is an error if the optimizer was made inside.
    """
    _strategies.add(strategy)


def look_at_fit_outside(model: keras.Model, default: tf.distribute.Strategy) -> None:
    """Looks at a model that was made outside of all scopes, in `fit`.

    Args:
        model: the model.
        default: TensorFlow's stand-in, where there is no strategy.

    Raises:
        ValueError: Its optimizer was made in a scope.
    """
    require_optimizer(getattr(model, "optimizer", None), default)
    alone = any(len(strategy.extended.workers.names) > 1 for strategy in _strategies)
    if alone and model not in _said:
        _said.add(model)
        logging.warning(
            "tf_scalecom: fit trains model %s on this worker alone: it was made outside of the "
            "strategy's scope. %s",
            model.name,
            _ADVICE,
        )


def _place(strategy):
    return f"{'outside of the' if is_default(strategy) else 'in a'} strategy's scope"
