"""Private parts of Keras's fit, evaluate and predict, and their data. Looked at in Keras 3.15."""

from typing import Any

import keras
import tensorflow as tf

from tf_scalecom.compat.declared import members, parameters, symbol

# --- Calls ---------------------------------------------------------------------------------------

Trainer: Any = symbol(
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer",
    "base of keras.Model, with fit, evaluate and predict",
)
members(
    Trainer,
    {
        "_initial_epoch": "where fit begins after a restore; Keras's own backups set it",
        "_distribute_strategy": "read: a model made outside of all scopes has none",
        "_maybe_symbolic_build": "wrapped: shapes come from a batch that workers do not reduce",
        "_symbolic_build": "wrapped: the model and its optimizer are looked at",
        "fit": "wrapped: which call is under way, and its arguments",
        "evaluate": "the same",
        "predict": "the same",
    },
)
_FIT = (
    "initial_epoch",
    "epochs",
    "steps_per_epoch",
    "validation_split",
    "validation_data",
    "validation_freq",
    "callbacks",
)
parameters(Trainer, "fit", _FIT, "compared between workers")
parameters(Trainer, "evaluate", ["steps", "callbacks"], "the same")
parameters(Trainer, "predict", ["steps", "callbacks"], "the same")
parameters(
    Trainer, "_maybe_symbolic_build", ["iterator", "data_batch"], "a batch in place of an iterator"
)
parameters(Trainer, "_symbolic_build", ["data_batch"], "its sizes are compared with the inputs'")
members(
    keras.callbacks.CallbackList,
    {
        "on_train_begin": "wrapped: which list a call has made",
        "on_test_begin": "the same",
        "on_predict_begin": "the same",
        "on_epoch_begin": "wrapped: the epoch that a call begins with",
        "_async_train": "whether a callback sees batches, and may end infinite data",
        "_async_test": "the same",
        "_async_predict": "the same",
    },
)


def strategy_made_in(model: keras.Model) -> tf.distribute.Strategy | None:
    """The strategy in whose scope a model was made; None outside of all."""
    return model._distribute_strategy


# --- Data ----------------------------------------------------------------------------------------

EpochIterator: Any = symbol(
    "keras.src.backend.tensorflow.trainer.TFEpochIterator", "iterates over the data of a call"
)
members(
    EpochIterator,
    {
        "__init__": "wrapped: whose data are shared out between workers",
        "_distribute_strategy": "set back after that",
        "_get_iterator": "wrapped: where an epoch, or a model's first batch, is read",
        "_enumerate_iterator": "wrapped: an epoch that goes on after a restart counts on",
        "_distributed_dataset": "read: the data themselves",
        "_steps_seen": "how many batches were read of an iterator; moved on after a restart",
        "_num_batches": "unset where workers have different numbers",
        "_interrupted_warning": "replaced, as the end is regular or the end of a stop",
        "data_adapter": "what Keras made of the data",
        "steps_per_epoch": "whether Keras counts",
        "steps_per_execution": "how many steps it counts at a time",
    },
)
parameters(EpochIterator, "__init__", ["distribute_strategy"], "replaced for that call")
_ADAPTERS = "keras.src.trainers.data_adapters"
DataAdapter: Any = symbol(f"{_ADAPTERS}.data_adapter.DataAdapter", "what Keras makes of data")
members(DataAdapter, {"num_batches": "how many a worker has", "get_tf_dataset": "the data"})
ArrayDataAdapter: Any = symbol(
    f"{_ADAPTERS}.array_data_adapter.ArrayDataAdapter", "arrays, shuffled alike on all workers"
)
members(
    ArrayDataAdapter,
    {
        "_shuffle": "whether Keras shuffles",
        "_num_samples": "the size of an order",
        "_batch_size": "where it is cut",
    },
)
PyDatasetAdapter: Any = symbol(f"{_ADAPTERS}.py_dataset_adapter.PyDatasetAdapter", "the same")
members(
    PyDatasetAdapter,
    {
        "shuffle": "whether Keras shuffles",
        "py_dataset": "replaced by one in a common order",
        "enqueuer": "reads ahead; so does its dataset",
    },
)
_Enqueuer: Any = symbol(f"{_ADAPTERS}.py_dataset_adapter.OrderedEnqueuer", "reads ahead")
members(
    _Enqueuer,
    {
        "shuffle": "off where the dataset shuffles",
        "py_dataset": "replaced likewise",
        "ready_queue": "emptied, as an epoch begins with its first batch",
    },
)
GeneratorDataAdapter: Any = symbol(
    f"{_ADAPTERS}.generator_data_adapter.GeneratorDataAdapter", "does not give a batch twice"
)
members(
    GeneratorDataAdapter, {"_first_batches": "what it has read to learn shapes, and gives again"}
)


def first_batches(adapter) -> list:
    """What a generator's adapter has read, to learn shapes."""
    return adapter._first_batches


# --- Steps ---------------------------------------------------------------------------------------

trainer_library: Any = symbol(
    "keras.src.backend.tensorflow.trainer", "finds the function below when it calls it"
)
members(
    trainer_library,
    {"reduce_per_replica": "wrapped: what a step returns is one value for all replicas by then"},
)
parameters(trainer_library, "reduce_per_replica", ["values", "strategy", "reduction"], "passed on")
members(
    Trainer,
    {
        "_make_function": "wrapped: what a step computes is weighed by the share of the rows",
        "_get_metrics_result_or_logs": "wrapped: logs of an epoch have metrics' final results",
    },
)
parameters(Trainer, "_make_function", ["step_function"], "wrapped in turn")
loss_library: Any = symbol("keras.src.losses.loss", "the functions below, of all losses")
members(
    loss_library,
    {
        "scale_loss_for_distribution": "wrapped: losses are not divided by the number of replicas",
        "unscale_loss_for_distribution": "wrapped, likewise",
        "reduce_weighted_values": "wrapped: whether a loss is one number for a batch",
        "reduce_values": "wrapped: sums, and means over sample weights, are of all replicas' rows",
        "apply_mask": "wrapped: means over what is not masked are, too",
    },
)
parameters(keras.losses.Loss, "__call__", ["y_true", "y_pred", "sample_weight"], "all gathered")
parameters(loss_library, "reduce_weighted_values", ["values"], "its rank")
parameters(loss_library, "reduce_values", ["values", "sample_weight", "reduction"], "the same")
parameters(loss_library, "apply_mask", ["sample_weight", "mask", "dtype", "reduction"], "the same")
