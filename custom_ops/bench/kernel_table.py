#!/usr/bin/env python3
"""What ptxas and the machine code say of each CUDA kernel, as a table; needs no GPU.

    bench/kernel_table.py [--arch 90] [--before COMMIT]

Registers, spills and shared memory are ptxas's. Bytes in flight are read from the machine code: the
most that a thread has asked of global memory, in the order of the code, before an instruction uses
the first of it. With what a multiprocessor holds of such threads that is how much memory is kept
busy. nvdisasm comes with the CUDA toolkit, or from `pip install nvidia-cuda-nvdisasm`.
"""

import argparse
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[1]
FLAGS = ["-std=c++17", "-O3", "-ftz=true", "-Iinclude", "-I.", "-Xptxas", "-v", "-cubin"]
# Of one multiprocessor: threads, KiB of shared memory for blocks. Each has 65,536 registers.
LIMITS = {
    75: (1024, 64),
    80: (2048, 164),
    86: (1536, 100),
    89: (1536, 100),
    90: (2048, 228),
    120: (1536, 100),
}
REGISTERS = 65536
LOAD = re.compile(r"\bLDG\.(\S+) (R\d+)")
OPERAND = re.compile(r"\bR(\d+)(\.64)?")
KERNEL = re.compile(r"scalecom::\(anonymous namespace\)::(\w+(?:<\w+>)?)\(")


def find_nvdisasm() -> str:
    places = [*site.getsitepackages(), site.getusersitepackages()]
    inside = [
        str(path) for place in places for path in pathlib.Path(place).glob("nvidia/*/bin/nvdisasm")
    ]
    found = shutil.which("nvdisasm") or next(iter(inside), None)
    if found is None:
        raise SystemExit(
            "kernel_table.py: expected nvdisasm on the path; received none. Install the CUDA "
            "toolkit's, or `pip install nvidia-cuda-nvdisasm`."
        )
    return found


def run(*command, **options) -> str:
    process = subprocess.run(command, capture_output=True, text=True, **options)
    if process.returncode != 0:
        raise SystemExit(process.stderr)
    return process.stdout + process.stderr


def plain_name(mangled: str) -> str | None:
    found = KERNEL.search(run("c++filt", mangled))
    return found and found[1].replace("__nv_", "").replace("__half", "float16")


def bytes_of_load(modifiers: str) -> int:
    for width in (128, 64):
        if str(width) in modifiers.split("."):
            return width // 8
    return 2 if "U16" in modifiers or "S16" in modifiers else 1 if "U8" in modifiers else 4


def bytes_in_flight(code: str) -> int:
    """Of one kernel's machine code."""
    most = 0
    waiting: dict[int, int] = {}  # register that is loaded -> number of the load
    sizes: dict[int, int] = {}  # load -> bytes
    for number, line in enumerate(code.splitlines()):
        load = LOAD.search(line)
        used = line[load.end() :] if load else line
        for register, pair in OPERAND.findall(used):
            for i in range(1 + bool(pair)):
                sizes.pop(waiting.pop(int(register) + i, -1), None)
        if load:
            size = bytes_of_load(load[1])
            sizes[number] = size
            for i in range(max(1, size // 4)):
                waiting[int(load[2][1:]) + i] = number
            most = max(most, sum(sizes.values()))
        elif re.search(
            r"\*/ +(BRA|EXIT|RET)", line
        ):  # unconditional: what follows comes from elsewhere
            waiting, sizes = {}, {}
    return most


def kernels(source: pathlib.Path, arch: int) -> dict[str, tuple[int, int, int, int]]:
    """Kernel -> registers, bytes spilled, bytes of shared memory, bytes in flight."""
    facts = {}
    nvdisasm = find_nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(source.glob("core/cuda/*.cu")):
            cubin = pathlib.Path(folder, file.stem)
            said = run("nvcc", *FLAGS, f"-arch=sm_{arch}", "-o", cubin, file, cwd=source)
            code = run(nvdisasm, "-c", cubin)
            functions = dict(re.findall(r"\n\.text\.(\w+):(.*?)(?=\n//-{5}|\Z)", code, re.S))
            for entry in re.split(r"Compiling entry function '", said)[1:]:
                mangled = entry.partition("'")[0]
                name = plain_name(mangled)
                registers = int(re.search(r"Used (\d+) registers", entry)[1])
                spilled = sum(map(int, re.findall(r"(\d+) bytes spill", entry)))
                shared = re.search(r"(\d+) bytes smem", entry)
                facts[f"{file.stem}: {name}"] = (
                    registers,
                    spilled,
                    int(shared[1]) if shared else 0,
                    bytes_in_flight(functions[mangled]),
                )
    return facts


def threads_on_multiprocessor(registers: int, shared: int, arch: int) -> int:
    """Of blocks of 256."""
    threads, kib = LIMITS[arch]
    blocks = min(threads // 256, REGISTERS // (256 * -(-registers // 8) * 8))
    return 256 * (min(blocks, kib * 1024 // (shared + 1024)) if shared else blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", type=int, default=90, choices=sorted(LIMITS))
    parser.add_argument(
        "--before", metavar="COMMIT", help="another version, for columns beside this one's"
    )
    arguments = parser.parse_args()
    now = kernels(HERE, arguments.arch)
    versions = [now]
    if arguments.before:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "archive", arguments.before, "."], cwd=HERE, check=True, capture_output=True
            )
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            versions.insert(0, kernels(pathlib.Path(folder), arguments.arch))
    names = list(dict.fromkeys(name for version in versions for name in sorted(version)))
    columns = [
        "registers",
        "spills",
        "bytes in flight, a thread",
        "KiB in flight, a multiprocessor",
    ]
    print(f"| kernel, sm_{arguments.arch} |", " | ".join(columns), "|")
    print("|---" * (1 + len(columns)) + "|")
    for name in names:
        cells = []
        for version in versions:
            if name not in version:
                cells.append(["-"] * len(columns))
                continue
            registers, spilled, shared, flying = version[name]
            held = threads_on_multiprocessor(registers, shared, arguments.arch)
            cells.append([str(registers), str(spilled), str(flying), f"{flying * held / 1024:.0f}"])
        print(
            f"| {name} |",
            " | ".join(" → ".join(column) for column in zip(*cells, strict=True)),
            "|",
        )


if __name__ == "__main__":
    sys.exit(main())
