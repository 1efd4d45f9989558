"""The plain TensorFlow kernels are what a TPU runs: they lower to what a TPU can execute.

No TPU is needed. The second test uses the TPU's own compiler, where it is installed:
`pip install jax libtpu` (1 GB) into an environment with this TensorFlow.
"""

import os

import pytest
import tensorflow as tf
from cases import SHAPES, Case
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.framework import kernels as registered_kernels

from tf_scalecom.ops import xla

# What the kernels may lower to: operations that XLA asks of every backend, of static shapes, and
# each put through the TPU's compiler below. Not among them: custom-call (a library of one
# platform), infeed, outfeed, send and recv (the host), rng, dynamic-slice and other dynamic shapes.
OPCODES = {
    "abs", "add", "and", "bitcast-convert", "broadcast", "compare", "concatenate", "conditional",
    "constant", "convert", "copy", "gather", "get-tuple-element", "iota", "is-finite", "maximum",
    "minimum", "multiply", "negate", "pad", "parameter", "reduce", "reshape", "scatter", "select",
    "set-dimension-size", "slice", "sort", "subtract", "tuple",
}  # fmt: skip
# A TPU emulates 64-bit types, at twice the memory and more time.
ELEMENT_TYPES = {"PRED", "U8", "U16", "S32", "U32", "F16", "BF16", "F32", "TUPLE"}
CASES = (
    Case("top1"),
    Case("top1_filtered", beta=0.1, value_dtype="bfloat16"),
    Case("top10", chunk_keep=10, beta=0.3),
    Case("top10_bfloat16_wire", chunk_keep=10, value_dtype="bfloat16"),
    Case("exact", selection="exact"),
    Case("exact_filtered", selection="exact", beta=0.5, value_dtype="bfloat16"),
    Case("float16_wire", value_dtype="float16"),
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
every_dtype = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)


def replica_step(layout):
    """One replica's part of a step, all kernels, compiled by XLA; and arguments for it."""
    tensors = [layout.tensors[i] for i in layout.compressed]
    residuals = [tf.Variable(tf.zeros(t.shape)) for t in tensors]

    @tf.function(jit_compile=True)
    def step(gradients, leads):
        values, words, nonfinite = xla.compensate(gradients, residuals, leads, layout)
        selected, unsent = xla.gather(values, words, nonfinite, layout, limit=1e4)
        xla.filter_residuals(unsent, residuals, tf.equal(nonfinite, 0), layout)
        return words, xla.scatter(words, 2 * selected, layout)

    step.residuals = residuals  # a function holds its variables by weak references
    return step, ([tf.ones(t.shape, t.dtype) for t in tensors], tf.constant(True))


def compiler_ir(function, arguments, stage):
    return function.experimental_get_compiler_ir(*arguments)(stage=stage)


def unsupported(function, *arguments):
    """What the HLO of a compiled function holds, before optimisation, that no TPU executes."""
    module = hlo_pb2.HloModuleProto.FromString(compiler_ir(function, arguments, "hlo_serialized"))
    found = set()
    for computation in module.computations:
        for instruction in computation.instructions:
            shape = instruction.shape
            found |= {instruction.opcode} - OPCODES
            found |= {xla_data_pb2.PrimitiveType.Name(shape.element_type)} - ELEMENT_TYPES
            found |= {"dynamic shape"} if any(shape.is_dynamic_dimension) else set()
    return found


@every_case
@every_dtype
def test_the_kernels_lower_to_operations_of_every_backend(case, dtype):
    step, arguments = replica_step(case.layout(*SHAPES, dtype=dtype))
    assert unsupported(step, *arguments) == set()


@every_case
@every_dtype
def test_no_operation_is_compiled_for_some_devices_only(case, dtype):
    """TensorFlow's TPU backend takes every XLA kernel that is not restricted to named devices."""
    tf.function(tf.negative, jit_compile=True)(1.0)  # registers XLA's kernels
    step, arguments = replica_step(case.layout(*SHAPES, dtype=dtype))
    graph = step.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    for op in {node.op for node in nodes} - {"Placeholder"}:  # which is how arguments are written
        found = registered_kernels.get_registered_kernels_for_op(op).kernel
        assert {"XLA_CPU_JIT", "XLA_GPU_JIT"} <= {k.device_type for k in found}, op


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: tf.sort(tf.cast(x, tf.int64)), "S64"),
        (lambda x: tf.reduce_sum(tf.where(x > 0)), "dynamic shape"),
        (lambda x: x + tf.random.uniform(x.shape), "rng"),
        (lambda x: tf.linalg.eigh(tf.linalg.diag(x)), "custom-call"),
    ],
    ids=["int64", "dynamic", "random", "library"],
)
def test_the_check_finds_what_a_tpu_lacks(function, expected):
    assert expected in unsupported(tf.function(function, jit_compile=True), tf.ones(5))


@every_case
@every_dtype
def test_the_compiler_of_the_tpu_takes_the_kernels(case, dtype, tpu_compiler):
    step, arguments = replica_step(case.layout(*SHAPES, dtype=dtype))
    assert "custom-call" not in unsupported(step, *arguments)
    assert tpu_compiler(compiler_ir(step, arguments, "stablehlo_serialized")) > 0


@pytest.fixture(scope="module")
def tpu_compiler():
    """A function from StableHLO to the bytes of a TPU v5e program."""
    reason = "the TPU's compiler is not here: pip install jax libtpu"
    pytest.importorskip("libtpu", reason=reason)
    pytest.importorskip("jax", reason=reason)
    # Keeps libtpu from asking the network what machine this is.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    device = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[0]

    def without_copies(operation):
        # TensorFlow's export leaves a copy of another dialect where a variable is not written.
        for block in (block for region in operation.regions for block in region.blocks):
            for inner in [op.operation for op in block.operations]:
                without_copies(inner)
                if inner.name == "mhlo.copy":
                    inner.results[0].replace_all_uses_with(inner.operands[0])
                    inner.erase()

    def compile_for_tpu(stablehlo):
        with mlir.make_ir_context():
            module = ir.Module.parse(stablehlo)
            without_copies(module.operation)
            program = device.client.compile(
                module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
            )
        return program.get_compiled_memory_stats().generated_code_size_in_bytes

    return compile_for_tpu
