"""How the learners' gradients become one, and what each learner would send for it.

The methods that select elements all run `clt_k.exchange`; they differ in who chooses.
"""

from collections.abc import Callable

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction import clt_k
from tf_scalecom.reduction.communicator import ListCommunicator
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.power_sgd import PowerSGD
from tf_scalecom.simulate.reduction import (
    Method,
    Reduced,
    compensated_sum,
    named_residuals,
    zero_residuals,
)
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import compression_report


class SelectingMethod:
    """Common memory of the methods that select: one residual per learner and compressed variable.

    As it stands, ScaleCom: the leader chooses for all. Dense is its case of nothing compressed.
    """

    def __init__(self, layout: Layout, config: SimulationConfig):
        self._learners = config.learners
        self._seed = config.seed
        self.compressed = layout.compressed
        shapes = [layout.tensors[i].shape for i in layout.compressed]
        self.residuals = zero_residuals(config.learners, shapes)

    def reduce(self, gradients, layout, step):
        exchanged = clt_k.exchange(
            gradients,
            self.residuals,
            layout,
            step,
            self._communicator(gradients, layout, step),
        )
        return Reduced(exchanged.gradients[0], exchanged.gradients, exchanged.finite[0])

    def _communicator(self, gradients, layout, step):
        return ListCommunicator(len(gradients))

    def bytes_sent(self, layout):
        return compression_report(layout, self._learners, broadcasts=True).bytes_sent

    def variables(self):
        return named_residuals(self.residuals)


class _Chosen(ListCommunicator):
    """Everybody gets a choice that no learner made."""

    def __init__(self, num_replicas: int, words: tf.Tensor):
        super().__init__(num_replicas)
        self._words = words

    def broadcast(self, make, leader, size):
        return [self._words] * self.num_replicas


class _ChoosingMethod(SelectingMethod):
    """Selects, by the same kernels, the largest elements of something else than a learner's."""

    def __init__(self, layout, config):
        super().__init__(layout, config)
        shapes = [layout.tensors[i].shape for i in layout.compressed]
        (self._zeros,) = zero_residuals(1, shapes)

    def _communicator(self, gradients, layout, step):
        if not layout.compressed:
            return ListCommunicator(self._learners)
        ranked = self._ranked(gradients, layout, step)
        words = ops.kernels_for(layout).select(ranked, self._zeros, layout)
        return _Chosen(self._learners, words)


class MeanTopK(_ChoosingMethod):
    """The oracle: it knows the sum of all learners' compensated gradients beforehand.

    Its bytes are those of CLT-k, at which no real method could have that knowledge.
    """

    def _ranked(self, gradients, layout, step):
        return compensated_sum(gradients, self.residuals, layout.compressed)


class RandomK(_ChoosingMethod):
    """Elements at random, without replacement; no offsets travel, as all share a seed."""

    def _ranked(self, gradients, layout, step):
        seeds = [tf.stack([self._seed, step * 2**16 + i]) for i in layout.compressed]
        return [
            tf.random.stateless_uniform(layout.tensors[i].shape, seed)
            for i, seed in zip(layout.compressed, seeds, strict=True)
        ]

    def bytes_sent(self, layout):
        ring = 2 * (self._learners - 1) / self._learners
        offsets = 4 * layout.offset_words * ring / 2
        return super().bytes_sent(layout) - offsets


class LocalTopK(SelectingMethod):
    """Each learner sends its own selection, as if alone; the sum has the union of them.

    An all-reduce is impossible: by a ring all-gather every learner passes on the messages of all
    others, n - 1 of them.
    """

    def reduce(self, gradients, layout, step):
        sent = [
            clt_k.exchange(
                [own], [residuals], layout, tf.constant(0), ListCommunicator(1)
            ).gradients[0]
            for own, residuals in zip(gradients, self.residuals, strict=True)
        ]
        return Reduced([tf.add_n(parts) for parts in zip(*sent, strict=True)], sent)

    def bytes_sent(self, layout):
        if not layout.compressed:
            return super().bytes_sent(layout)
        report = compression_report(layout, self._learners, broadcasts=True)
        dense = sum(report.rows[i].bytes_sent for i in layout.dense)
        message = 4 * layout.kept + 4 * layout.offset_words
        return dense + (self._learners - 1) * message


_CLASSES: dict[str, Callable[[Layout, SimulationConfig], Method]] = {
    "dense": SelectingMethod,
    "clt_k": SelectingMethod,
    "mean_top_k": MeanTopK,
    "local_top_k": LocalTopK,
    "random_k": RandomK,
    "power_sgd": PowerSGD,
}


def build_method(layout: Layout, config: SimulationConfig) -> Method:
    """The method a config names.

    Args:
        layout: the plan at the full compression ratio.
        config: the run's options.
    """
    if config.method == "dense":
        layout = layout.without_compression()
    return _CLASSES[config.method](layout, config)
