"""Where in its data `fit` is, for a restart that goes on there, in the middle of an epoch.

The order of the data is one that a restart comes to again: that of arrays and `PyDataset`s from the
seed on which the workers had agreed, that of a dataset from its own seeds and from how often it was
iterated over. So a position is a number of batches, which the restart leaves out: by their index,
of a `PyDataset`, or else by reading over them. Keras goes on counting, for callbacks too, as if it
had made those steps.

Where one iterator goes through several epochs (`steps_per_epoch`), the batches are those since it
was made. At an epoch's end such data start anew, so that a restart need not read over all of them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tf_scalecom.compat.keras_trainer import (
    ArrayDataAdapter,
    EpochIterator,
    GeneratorDataAdapter,
    PyDatasetAdapter,
)
from tf_scalecom.compat.tensorflow_distribute import shares_here
from tf_scalecom.compat.tensorflow_runtime import global_seed
from tf_scalecom.fit import shared_order, shared_seed
from tf_scalecom.fit.epochs import EndsWithLastWorker
from tf_scalecom.workers.agreement import differences

_NAMES = ("the backup", "this program")
_DATASET = "a dataset"


class DataPosition:
    """Where a call to `fit` is in its data.

    Args:
        epoch_iterator: Keras's, over the data of that call; None if there is none.
    """

    def __init__(self, epoch_iterator: EpochIterator | None):
        self._epoch_iterator: Any = epoch_iterator
        # What keeps a restart from going on in the middle of an epoch.
        self.obstacle = _obstacle(epoch_iterator)
        self._reached: dict[str, Any] | None = None

    def reach(self, batch: int) -> None:
        """Is told that so many batches of an epoch were trained on; 0 before the first."""
        iterator = self._epoch_iterator
        if self.obstacle or (not batch and iterator.steps_per_epoch):
            self._reached = None
            return
        self._reached = {
            "batch": batch,
            "read": iterator._steps_seen if batch else 0,
            # But for the one under way.
            "passes": _data(iterator).passes - (batch > 0),
            "order": shared_order.describe(iterator.data_adapter, in_epoch=batch > 0),
        }

    def describe(self) -> dict | None:
        """What `reach` was told last; None where data start anew."""
        return self._reached and {**self._reached, "alike": self._alike()}

    def differences(self, described: Mapping) -> list[str]:
        """Why a described position means nothing here; empty if it does."""
        if self.obstacle:
            return [self.obstacle]
        return differences([described["alike"], self._alike()], _NAMES)

    def go_on(self, described: Mapping) -> None:
        """Has the next epoch begin at a described position."""
        iterator, adapter = self._epoch_iterator, self._epoch_iterator.data_adapter
        self._reached = {key: value for key, value in described.items() if key != "alike"}
        shared_order.restore(adapter, described["order"])
        left_out = shared_order.begin_at_batch(adapter, described["read"])
        _data(iterator).go_on(described["passes"], left_out)
        iterator.restarts_at = described["batch"], described["read"]

    def _alike(self):
        """What a restart has to have in common."""
        iterator = self._epoch_iterator
        extended, kind = iterator._distribute_strategy.extended, _kind(iterator.data_adapter)
        return {
            "data": kind,
            "batches": iterator.data_adapter.num_batches,
            "shuffle": shared_order.shuffle(iterator.data_adapter),
            "steps_per_epoch": iterator.steps_per_epoch,
            "steps_per_execution": iterator.steps_per_execution,
            "workers": len(extended.workers.names),
            "replicas of a worker": len(extended.worker_devices),
            "TensorFlow's seed": global_seed(),
            "seed of datasets without one (TF_SCALECOM_SEED)": (
                shared_seed.of_datasets() if kind == _DATASET else None
            ),
        }


def steps_from_there(enumerate_steps, epoch_iterator: EpochIterator) -> Iterator:
    """The steps of an epoch; of one that goes on, those that are left.

    Args:
        enumerate_steps: Keras's method, which reads no data.
        epoch_iterator: whose steps.
    """
    batch, read = vars(epoch_iterator).pop("restarts_at", (0, 0))
    of_earlier_epochs, is_over = read - batch, False
    for begin, end, iterator in enumerate_steps(epoch_iterator):
        epoch_iterator._steps_seen += of_earlier_epochs
        of_earlier_epochs = 0
        if begin >= batch:
            is_over = False
            yield begin, end, iterator
        else:
            is_over = epoch_iterator._steps_seen >= (epoch_iterator._num_batches or math.inf)
    if is_over:  # without a look at the data
        shared_order.pass_over(epoch_iterator.data_adapter)


def _obstacle(epoch_iterator):
    data: Any = None if epoch_iterator is None else _data(epoch_iterator)
    if not isinstance(data, EndsWithLastWorker):
        return "only data of several workers have an order that a restart comes to again"
    adapter = epoch_iterator.data_adapter
    if isinstance(adapter, GeneratorDataAdapter):
        return "a generator cannot be begun in its middle"
    if isinstance(adapter, PyDatasetAdapter) and epoch_iterator.steps_per_epoch:
        if adapter.num_batches is not None:
            return "with steps_per_epoch a PyDataset changes its order in the middle"
        if adapter.enqueuer is not None:
            return "of an infinite PyDataset with workers nobody knows how far it was read"
    if any(share.options().deterministic is False for share in shares_here(data)):
        return "with deterministic=False files are read in no fixed order"
    return None


def _data(epoch_iterator):
    return epoch_iterator._distributed_dataset


def _kind(adapter):
    if isinstance(adapter, ArrayDataAdapter):
        return "arrays"
    return "a PyDataset" if isinstance(adapter, PyDatasetAdapter) else _DATASET
