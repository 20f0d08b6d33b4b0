"""What this CPU can really run: instruction sets, threads, precision.

A processor may advertise what it cannot do (virtual machines with AMX in their CPUID and no tile palettes: the first
bf16 matrix product dies of an illegal instruction). So nothing is believed before a child process has tried it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # importing torch takes a second, which `vitreous --help` need not
    from torch import Tensor

T = TypeVar("T")

_PROBE_BFLOAT16 = """
import torch
for n in (16, 64, 512):  # small and large products take different kernels
    a = torch.randn(n, n).bfloat16()
    torch.nn.functional.linear(a, a)
    assert torch.isfinite(a @ a).all()
"""


@functools.cache
def flags() -> frozenset[str]:
    """The instruction sets the operating system reports; empty where it does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def guard_amx() -> None:
    """Keep oneDNN off AMX where it is advertised: before torch is imported, since it is read only then.

    fp32, the default here, does not use AMX. Whoever knows theirs works sets ONEDNN_MAX_CPU_ISA=ALL.
    """
    if any(flag.startswith("amx") for flag in flags()):
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def available_cores() -> int:
    """Cores this process may use, which a container may have cut below what the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """What this machine has; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def default_threads() -> int:
    """All cores this process may use, unless OMP_NUM_THREADS says otherwise."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else available_cores()


def prepare(threads: int | None = None) -> int:
    """Settle this process's threads and flush denormals to zero; returns the number of threads.

    Denormals (below 1e-38, as softmax makes when attention logits grow) run in microcode: attention took ten times as
    long. Worker threads inherit the setting when the pool starts, so this goes before the first parallel operation.
    """
    import torch

    _keep_freed_memory()
    torch.set_flush_denormal(True)
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


class SplitBatch:
    """Two threads with half of this process's cores each.

    Operations of a small model take a millisecond or less, and at the end of each one the cores wait for the last of
    them. Two threads that each carry half of a batch through the whole model meet once.
    """

    def __init__(self, threads: int):
        import torch

        before = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(2, initializer=prepare, initargs=(threads // 2,))
        started = threading.Barrier(2)
        for waiting in [self._threads.submit(started.wait) for _ in range(2)]:
            waiting.result()
        torch.set_num_threads(before)  # threads that others start later have as many as were set last

    def both(self, work: Callable[[Tensor], T], batch: Tensor) -> list[T]:
        """`work` of the first half of the batch's rows and of the second, at once."""
        halves = [self._threads.submit(work, half) for half in batch.tensor_split(2) if len(half)]
        return [half.result() for half in halves]


@functools.cache
def _keep_freed_memory() -> None:
    """Have glibc keep what is freed: a step's activations are as large as the last one's, and giving them back to the
    system costs a page fault for every 4 kB (a training step of the CNN took 172 instead of 197 ms of CPU time)."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 2**31 - 1)


@functools.cache
def bfloat16_works() -> bool:
    """Whether bf16 matrix products run here: tried in a child process, since where they do not, they kill it."""
    result = subprocess.run([sys.executable, "-c", _PROBE_BFLOAT16], capture_output=True, timeout=120, check=False)
    return result.returncode == 0


def matmul_gflops(seconds: float = 0.5, size: int = 1024) -> float:
    """fp32 matrix-product GFLOP/s right now, with this process's threads: the yardstick beside every timing."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    for _ in range(3):
        a @ b
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        a @ b
        count += 1
    return 2 * size**3 * count / elapsed / 1e9


def model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe() -> str:
    """One line for reports: what this ran on."""
    cores = available_cores()
    return f"{model_name()}, {cores} core{'s' * (cores != 1)}"


# --- the environment report (`vitreous env`) ------------------------------------------------------------------

_PACKAGES = (
    "torch",
    "numpy",
    "pillow",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "scikit-learn",
    "onnxruntime",
)
_TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def describe_environment() -> dict[str, str]:
    """Return what a bug report needs, and nothing private: no paths, no host or user names."""
    import vitreous

    guard_amx()
    threads = prepare()
    return {
        "vitreous": vitreous.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": model_name(),
        "cores": str(available_cores()),
        "threads": str(threads),
        "instructions": " ".join(flag for flag in _TELLING_FLAGS if flag in flags()) or "not told",
        "fp32 matrix product": f"{matmul_gflops():.0f} GFLOP/s now",
        "bf16 matrix product": "works (tried in a child process)"
        if bfloat16_works()
        else "crashes (tried in a child process)",
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "not set"),
        "cuda": "yes" if _cuda() else "no",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
