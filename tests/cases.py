"""The shared table of configurations that contract suites run over."""

import dataclasses

from tf_scalecom.wire.layout import Layout, tensor_layout


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to exchange."""

    name: str
    compression_ratio: float = 100
    beta: float = 1.0
    selection: str = "chunk"
    chunk_keep: int = 1
    value_dtype: str = "float32"

    def layout(self, *shapes, dtype="float32") -> Layout:
        tensors = [
            tensor_layout(
                f"v{i}", shape, dtype, self.compression_ratio, self.selection, self.chunk_keep
            )
            for i, shape in enumerate(shapes)
        ]
        return Layout(tuple(tensors), self.beta, self.value_dtype)

    def optimizer_arguments(self) -> dict:
        arguments = dataclasses.asdict(self)
        del arguments["name"]
        return arguments


EXCHANGES = (
    Case("top1"),
    Case("top1_filtered", beta=0.1),
    Case("top10_filtered", beta=0.3, chunk_keep=10),
    Case("exact", selection="exact"),
    Case("exact_filtered", selection="exact", beta=0.5, compression_ratio=30),
    Case("wide_chunks", compression_ratio=400, chunk_keep=2),
    Case("bfloat16_wire", value_dtype="bfloat16", compression_ratio=10),
    Case("float16_wire", value_dtype="float16", compression_ratio=10, beta=0.5),
    Case("hardly_compressed", compression_ratio=2.5),
)

# Divisible by the chunk, an odd tail, one chunk only, more dimensions, dense because small, scalar.
SHAPES = ((50, 40), (1_237,), (1_000,), (3, 3, 16, 32), (999,), ())

# Keras's own optimizers that make updates, with arguments with which small models learn fast.
OPTIMIZERS = {
    "Adadelta": {"learning_rate": 1.0},
    "Adafactor": {"learning_rate": 0.01, "epsilon_1": 1e-16},
    "Adagrad": {"learning_rate": 0.1},
    "Adam": {"learning_rate": 0.01},
    "AdamW": {"learning_rate": 0.01},
    "Adamax": {"learning_rate": 0.01},
    "Ftrl": {"learning_rate": 0.1},
    "Lamb": {"learning_rate": 0.01},
    "Lion": {"learning_rate": 0.003},
    "Muon": {"learning_rate": 0.01},
    "Nadam": {"learning_rate": 0.01},
    "RMSprop": {"learning_rate": 0.003},
    "SGD": {"learning_rate": 0.1},
    "ScheduleFreeAdamW": {"learning_rate": 0.01},
}
