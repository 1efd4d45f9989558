"""Selection against the frameworks' top-k: checks that they agree, then times both.

    python bench/compare.py build/libscalecom.so tensorflow       # CPU, one thread
    python bench/compare.py build/libscalecom.so torch            # CPU, one thread
    python bench/compare.py build/libscalecom_cuda.so torch-gpu

Ours reads residual and gradient; the framework is given their magnitudes ready made.
"""

import argparse
import ctypes
import statistics
import time

import numpy as np
from core_abi import CHUNK, EXACT, FLOAT32, Tensor


class Core:
    """Exact selection of k elements, and of one in each 100, over given addresses."""

    def __init__(self, path, suffix, elements, k, gradient, residual, compensated, offsets, flag):
        library = ctypes.CDLL(path)
        self.select = getattr(library, f"scalecom_offsets_select_{suffix}")
        workspace = getattr(library, f"scalecom_offsets_workspace_{suffix}")
        workspace.restype = ctypes.c_int64
        addresses = [gradient, residual, compensated, offsets]
        self.whole = Tensor(elements, elements, k, 1, 4, *addresses)
        self.chunked = Tensor(elements, 100, 1, 1, 1, *addresses)
        self.flag = ctypes.c_void_p(flag)
        self.workspace_bytes = workspace(ctypes.byref(self.whole), ctypes.c_int64(1), EXACT)

    def exact(self, workspace):
        self._select(self.whole, EXACT, workspace, self.workspace_bytes)

    def chunks(self):
        self._select(self.chunked, CHUNK, None, 0)

    def _select(self, tensor, selection, workspace, workspace_bytes):
        status = self.select(
            ctypes.byref(tensor),
            ctypes.c_int64(1),
            selection,
            FLOAT32,
            self.flag,
            ctypes.c_void_p(workspace),
            ctypes.c_int64(workspace_bytes),
            # The stream (the null stream is torch's own) or the executor (none: this thread).
            ctypes.c_void_p(None),
        )
        if status:
            raise RuntimeError(f"scalecom_offsets_select returned {status}")


def numpy_core(path, elements, k):
    """(core, run exact, indices, magnitudes) on the CPU. Page-aligned, as frameworks align."""
    rng = np.random.default_rng(0)
    gradient = rng.standard_normal(elements, dtype=np.float32)
    residual = rng.standard_normal(elements, dtype=np.float32)
    indices = np.zeros(k, np.uint32)
    flag = np.zeros(1, np.uint32)
    arrays = [gradient, residual, np.empty_like(gradient), indices, flag]
    core = Core(path, "cpu", elements, k, *(a.ctypes.data for a in arrays))
    core.arrays = arrays  # keeps them alive
    workspace = np.zeros(core.workspace_bytes // 8 + 2, np.float64)
    address = workspace.ctypes.data + -workspace.ctypes.data % 16
    core.arrays.append(workspace)
    return core, lambda: core.exact(address), lambda: indices, np.abs(residual + gradient)


def against_tensorflow(path, elements, k):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    core, exact, indices, magnitudes = numpy_core(path, elements, k)
    tensor = tf.constant(magnitudes)
    values = tf.math.top_k(tensor, k).values.numpy()
    return core, exact, indices, magnitudes, values, lambda: tf.math.top_k(tensor, k)[0].numpy()


def against_torch(path, elements, k):
    import torch

    torch.set_num_threads(1)
    core, exact, indices, magnitudes = numpy_core(path, elements, k)
    tensor = torch.from_numpy(magnitudes)
    values = torch.topk(tensor, k).values.numpy()
    return core, exact, indices, magnitudes, values, lambda: torch.topk(tensor, k)


def against_torch_gpu(path, elements, k):
    import torch

    gradient = torch.randn(elements, device="cuda")
    residual = torch.randn(elements, device="cuda")
    indices = torch.zeros(k, dtype=torch.int32, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    tensors = [gradient, residual, torch.empty_like(gradient), indices, flag]
    core = Core(path, "cuda", elements, k, *(t.data_ptr() for t in tensors))
    workspace = torch.zeros(core.workspace_bytes, dtype=torch.uint8, device="cuda")
    core.tensors = [*tensors, workspace]
    magnitudes = (residual + gradient).abs()
    values = torch.topk(magnitudes, k).values.cpu().numpy()

    def synchronized(function):
        def run():
            function()
            torch.cuda.synchronize()

        return run

    core.chunks = synchronized(core.chunks)
    return (
        core,
        synchronized(lambda: core.exact(workspace.data_ptr())),
        lambda: indices.cpu().numpy().view(np.uint32),
        magnitudes.cpu().numpy(),
        values,
        synchronized(lambda: torch.topk(magnitudes, k)),
    )


def main():
    rivals = {
        "tensorflow": against_tensorflow,
        "torch": against_torch,
        "torch-gpu": against_torch_gpu,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("rival", choices=rivals)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    k = args.elements // 100
    core, exact, indices, magnitudes, values, rival = rivals[args.rival](
        args.library, args.elements, k
    )
    exact()
    found = indices()
    if not np.array_equal(np.sort(magnitudes[found])[::-1], values):
        raise SystemExit(f"FAILED: exact selection differs from {args.rival}'s top-k")
    if not np.all(found[1:] > found[:-1]):
        raise SystemExit("FAILED: indices do not increase")

    # In turn, so that other load weighs on all three.
    functions = {f"{args.rival} top-k, 1 %": rival, "exact, 1 %": exact, "1 of 100": core.chunks}
    times = {name: [] for name in functions}
    for _ in range(args.rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append((time.perf_counter() - start) * 1e3)
    print(f"{args.elements} elements; exact selection equals {args.rival}'s top-k")
    print("| selection | best ms | median ms | times faster (median of rounds) |")
    print("|---|---|---|---|")
    rival_times = next(iter(times.values()))
    for name, measured in times.items():
        faster = statistics.median(r / t for r, t in zip(rival_times, measured, strict=True))
        print(
            f"| {name} | {min(measured):.2f} | {statistics.median(measured):.2f} | {faster:.1f} |"
        )


if __name__ == "__main__":
    main()
