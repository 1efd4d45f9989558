"""Private parts of Keras's variables, layers, optimizers and files. Looked at in Keras 3.15."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_scalecom.compat.declared import members, parameters, symbol

# --- What is going on ----------------------------------------------------------------------------

_global_attribute: Any = symbol(
    "keras.src.backend.common.global_state.get_global_attribute",
    "name scopes and layer calls that are under way",
)
_NameScope: Any = symbol("keras.src.backend.common.name_scope.name_scope", "a scope of names")
members(_NameScope, {"caller": "whose scope it is: variables of optimizers are made alone"})
_CallContext: Any = symbol("keras.src.layers.layer.CallContext", "a layer's call")
members(_CallContext, {"get_value": "whether it trains: what layers assign then can be taken back"})


def callers_of_name_scopes() -> list:
    """The objects whose name scopes are entered here, the outermost first."""
    return [scope.caller for scope in _global_attribute("name_scope_stack") or ()]


def in_training_call() -> bool:
    """Whether a layer is being called with training=True."""
    call = _global_attribute("current_call_ctx")
    return call is not None and bool(call.get_value("training"))


# --- Variables and layers ------------------------------------------------------------------------

members(
    keras.Variable,
    {
        "_value": "TensorFlow's variable, as `value` would cast it",
        "_direct_assign": "wrapped: what layers assign in a step that is skipped is taken back",
        "_initialize": "wrapped: which variable is being made, as TensorFlow is told no path",
        # What `tf.train.Checkpoint` asks of an object with a state of its own.
        "_serialize_to_tensors": "overridden: residuals of all replicas",
        "_restore_from_tensors": "the same",
        "_copy_trackable_to_cpu": "the same",
    },
)
members(
    keras.layers.Layer,
    {
        "_trainable_variables": "its own, without those of layers in it",
        "_flatten_layers": "a model's layers",
        "_losses": "what they have added, kept while another replica adds its own",
        "_build_shapes_dict": 'input shapes, for compression_ratio="auto"',
    },
)
seed_library: Any = symbol(
    "keras.src.random.seed_generator", "where draws without a seed look the function below up"
)
members(
    seed_library,
    {"global_seed_generator": "wrapped: a replica is a thread, for which Keras would make another"},
)
_CONVOLUTIONAL = "keras.src.layers.convolutional"
_BaseConv: Any = symbol(f"{_CONVOLUTIONAL}.base_conv.BaseConv", "of all convolutions")
_BaseDepthwiseConv: Any = symbol(
    f"{_CONVOLUTIONAL}.base_depthwise_conv.BaseDepthwiseConv", "the same"
)
_BaseSeparableConv: Any = symbol(
    f"{_CONVOLUTIONAL}.base_separable_conv.BaseSeparableConv", "the same"
)


def own_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The trainable variables of a layer, without those of layers in it."""
    return layer._trainable_variables


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and all layers in it, those of layers, too."""
    return list(model._flatten_layers())


def dtype_policies(model: keras.Model) -> list[str]:
    """Names of the policies by which a model and its layers compute."""
    return [layer.dtype_policy.name for layer in layers_of(model)]


@contextlib.contextmanager
def keeping_added_losses(model: keras.Model) -> Iterator[None]:
    """Inside, another replica of this process may call the model, whose layers add its losses."""
    kept = [(layer, list(layer._losses)) for layer in layers_of(model)]
    yield
    for layer, losses in kept:
        layer._losses.clear()
        layer._losses.extend(losses)


def shapes_built_for(layer: keras.layers.Layer) -> dict:
    """The input shapes that a layer was built for, by argument; empty before."""
    return layer._build_shapes_dict or {}


def is_convolution(layer: keras.layers.Layer) -> bool:
    """Whether a layer uses its weights once at each position of its output, not its input."""
    # Transposed ones have a base of their own.
    return isinstance(layer, (_BaseConv, _BaseDepthwiseConv, _BaseSeparableConv))


# --- Optimizers ----------------------------------------------------------------------------------

no_automatic_dependency_tracking: Any = symbol(
    "keras.src.utils.tracking.no_automatic_dependency_tracking",
    "keeps a model's variables from being saved as the optimizer's",
)
members(
    keras.optimizers.Optimizer,
    {
        # An update of the inner optimizer, in parts.
        "_filter_empty_gradients": "wrapped: which variables have a gradient; called",
        "_overwrite_variables_directly_with_gradients": "called: float8 scales are no gradients",
        "_clip_gradients": "called beside the exchange; wrapped: what is clipped is the sum",
        "_accumulated_gradients": "accumulated before the exchange, likewise",
        "_apply_weight_decay": "called with the update",
        "_backend_update_step": "called: the update itself",
        "_all_reduce_sum_gradients": "left out of it, as gradients are reduced; wrapped, likewise",
        "_update_model_variables_moving_average": "called after it",
        "_overwrite_model_variables_with_average_value": "the same",
        "_check_variables_are_known": "called first",
        "_get_variable_index": "a variable's place, by which its residual is found",
        # State that a wrapper shares with the optimizer inside.
        "_iterations": "forwarded",
        "_learning_rate": "forwarded; its class, where it cannot be described",
        "_model_variables_moving_average": "forwarded",
        "_variables": "saved without the inner optimizer's",
        "_track_variable": "overridden: what Keras's constructor makes is not kept",
        "_trainable_variables": "what an optimizer was built with",
        "_lock": "off, so that attributes can be set after `build`",
        "_distribution_strategy": "where it was made, and slots belong",
        "_trackable_children": "overridden: a SavedModel takes one tensor a variable",
    },
)
members(
    keras.optimizers.LossScaleOptimizer,
    {
        "_stateful_handle_non_finite_grads": "wrapped: what layers assigned is taken back",
        "check_finite": "known by name: its results of all replicas are joined",
    },
)


def learning_rate_class(optimizer: keras.optimizers.Optimizer) -> str:
    """Name of the class of an optimizer's learning rate or schedule."""
    return type(optimizer._learning_rate).__name__


def strategy_of(optimizer: keras.optimizers.Optimizer, default=None) -> tf.distribute.Strategy:
    """The strategy in whose scope an optimizer was made; `default` if Keras does not know."""
    return getattr(optimizer, "_distribution_strategy", default)


def place_of(variable: keras.Variable, optimizer: keras.optimizers.Optimizer) -> int:
    """The place of a variable among those that an optimizer was built with."""
    return optimizer._get_variable_index(variable)


# --- Files ---------------------------------------------------------------------------------------

saving_library: Any = symbol("keras.src.saving.saving_lib", "where Keras finds the functions below")
members(
    saving_library,
    {
        "save_model": "wrapped, to write files whole: workers may save to one path",
        "save_weights_only": "the same",
        "_load_model_from_fileobj": "wrapped: one worker may load a model alone",
        "_load_model_from_dir": "the same",
    },
)
h5_format: Any = symbol("keras.src.legacy.saving.legacy_h5_format", "the same, for .h5")
members(
    h5_format,
    {"save_model_to_hdf5": "wrapped, likewise", "load_model_from_hdf5": "wrapped, likewise"},
)
LiteRTExporter: Any = symbol("keras.src.export.litert.LiteRTExporter", "the same, for .tflite")
members(LiteRTExporter, {"export": "wrapped, likewise"})
is_remote_path: Any = symbol(
    "keras.src.utils.file_utils.is_remote_path", "which paths Keras sends to a bucket"
)
members(
    keras.callbacks.ModelCheckpoint,
    {"_save_model": "replaced where another worker writes the file"},
)
parameters(keras.Variable, "_initialize", ["value"], "passed on")
