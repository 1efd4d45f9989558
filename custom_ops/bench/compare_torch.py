"""Exact and chunk selection against torch.topk, on the GPU (or `--device cpu`).

    python bench/compare_torch.py build/libscalecom_cuda.so

Checks that exact selection finds the same magnitudes as torch.topk, then times both.
"""

import argparse
import ctypes
import statistics
import time

import torch


class Tensor(ctypes.Structure):
    """scalecom_tensor of scalecom.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("elements", "chunk_size", "chunk_keep", "tail_keep", "offset_bytes")
    ] + [
        (name, ctypes.c_void_p)
        for name in ("gradient", "residual", "offsets", "values", "reduced", "output")
    ]


def layout(gradient, residual, offsets, chunk_size, keep, offset_bytes):
    return Tensor(
        gradient.numel(),
        chunk_size,
        keep,
        1,
        offset_bytes,
        gradient.data_ptr(),
        residual.data_ptr(),
        offsets.data_ptr(),
    )


def milliseconds(function, synchronize, rounds=7):
    function()
    times = []
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", type=int, default=None)
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    n = args.elements or (100_000_000 if on_gpu else 25_000_000)
    k = n // 100
    library = ctypes.CDLL(args.library)
    suffix = "cuda" if on_gpu else "cpu"
    workspace_bytes = getattr(library, f"scalecom_indices_workspace_{suffix}")
    workspace_bytes.restype = ctypes.c_int64
    select_exact = getattr(library, f"scalecom_indices_select_{suffix}")
    select_chunks = getattr(library, f"scalecom_offsets_select_{suffix}")
    if not on_gpu:
        torch.set_num_threads(1)
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None

    torch.manual_seed(0)
    gradient = torch.randn(n, device=args.device)
    residual = torch.randn(n, device=args.device)
    indices = torch.empty(k, dtype=torch.int32, device=args.device)
    flag = torch.zeros(1, dtype=torch.int32, device=args.device)
    exact = layout(gradient, residual, indices, n, k, 4)
    chunks = layout(gradient, residual, indices, 100, 1, 1)
    size = workspace_bytes(ctypes.byref(exact), ctypes.c_int64(1))
    workspace = torch.empty(size, dtype=torch.uint8, device=args.device)
    # Torch's current stream is the null stream; on the CPU the last argument is the executor.
    null = ctypes.c_void_p(None)

    def run_exact():
        status = select_exact(
            ctypes.byref(exact),
            ctypes.c_int64(1),
            ctypes.c_int32(0),
            ctypes.c_void_p(flag.data_ptr()),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_int64(size),
            null,
        )
        assert status == 0, status

    def run_chunks():
        status = select_chunks(
            ctypes.byref(chunks),
            ctypes.c_int64(1),
            ctypes.c_int32(0),
            ctypes.c_void_p(flag.data_ptr()),
            null,
        )
        assert status == 0, status

    magnitudes = (residual + gradient).abs()
    values, _ = torch.topk(magnitudes, k)
    run_exact()
    synchronize()
    found = magnitudes[indices.long() & 0xFFFFFFFF].sort(descending=True).values
    if not torch.equal(found, values):
        raise SystemExit("FAILED: exact selection differs from torch.topk")
    if not torch.all(indices[1:] > indices[:-1]):
        raise SystemExit("FAILED: indices do not increase")

    # Ours reads residual and gradient; torch is given the magnitudes ready made.
    topk = milliseconds(lambda: torch.topk(magnitudes, k), synchronize)
    ours = milliseconds(run_exact, synchronize)
    fewest = milliseconds(run_chunks, synchronize)
    name = torch.cuda.get_device_name() if on_gpu else "CPU, one thread"
    print(f"{n} elements, {name}: equal to torch.topk {torch.__version__}")
    print(f"torch.topk 1 %     {topk:9.3f} ms")
    print(f"exact 1 %          {ours:9.3f} ms   {topk / ours:6.1f} times faster")
    print(f"1 of each 100      {fewest:9.3f} ms   {topk / fewest:6.1f} times faster")


if __name__ == "__main__":
    main()
