"""What this machine can run: instruction sets, threads, memory, precision, and the report of `vitreous env`.

A processor may advertise what it cannot do: in some virtual machines CPUID reports AMX, and the first bf16 matrix
product dies of an illegal instruction. So a child process tries it first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vitreous.errors import ConfigError

_PROBE_BFLOAT16 = """
import torch
for n in (16, 64, 512):  # small and large products take different kernels
    a = torch.randn(n, n).bfloat16()
    torch.nn.functional.linear(a, a)
    assert torch.isfinite(a @ a).all()
"""


def _cpuinfo(*keys: str) -> str:
    """Return the first value of one of these keys in /proc/cpuinfo; empty where there is none."""
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(keys)), "")


@functools.cache
def flags() -> frozenset[str]:
    """Return the instruction sets that the operating system reports."""
    return frozenset(_cpuinfo("flags", "Features").split())


def model_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def describe() -> str:
    """Return one line for reports: the CPU and its cores."""
    cores = available_cores()
    return f"{model_name()}, {cores} core{'s' * (cores != 1)}"


def guard_amx() -> None:
    """Keep oneDNN off AMX where it is advertised. Call this before torch is imported, which reads the variable.

    fp32, the default here, does not use AMX. Set ONEDNN_MAX_CPU_ISA=ALL on a machine where AMX works.
    """
    if any(flag.startswith("amx") for flag in flags()):
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def available_cores() -> int:
    """Return the cores this process may use; a container may allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take, of the machine, its container and its own limit; None: unknown.

    `root` is where /proc and /sys are, for tests.
    """
    bounds = (_free_of_machine(root), _free_of_containers(root), _free_of_process(root))
    return min((bound for bound in bounds if bound is not None), default=None)


def require_memory(needed: int, what: str, change: str) -> None:
    """Refuse what cannot fit: `what` needs at least that many bytes, `change` says which settings need fewer."""
    free = free_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"{what} need more than {gigabytes(needed)} of memory, and {gigabytes(free)} are free: {change}"
        )


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 10**10 else f"{count / 1e9:.2g} GB"


def _free_of_machine(root: Path) -> int | None:
    available = _numbers(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _free_of_containers(root: Path) -> int | None:
    """Return what the control groups of this process leave: limit minus use, without the page cache."""
    bounds = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
        else:
            continue
        group = base / path.lstrip("/")
        # every group above limits too; inside a container the path may not exist, and the base is the container's own
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(base))):
            limit, used = _text(folder / names[0]).strip(), _text(folder / names[1]).strip()
            if limit.isdecimal() and used.isdecimal():
                cached = _numbers(folder / "memory.stat")
                bounds.append(int(limit) - int(used) + sum(cached.get(name, 0) for name in names[2:]))
    return max(0, min(bounds)) if bounds else None


def _free_of_process(root: Path) -> int | None:
    """Return what `ulimit -v` leaves."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = _text(root / "proc/self/statm").split()
    return max(0, limit - (int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number per line."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def default_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else all cores this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    count = int(asked[:9]) if asked.isdecimal() else 0  # nine digits are more than enough, and parse in no time
    return min(count, most_threads()) if count else available_cores()


def prepare(threads: int | None = None) -> int:
    """Configure this thread and those it starts; return the number of threads per operation.

    Denormals (below 1e-38, as softmax gives when attention logits grow) run in microcode: attention took ten times as
    long. Worker threads inherit the setting when the pool starts, so call this before the first parallel operation.
    """
    import torch

    _keep_freed_memory()
    torch.set_flush_denormal(True)
    most = most_threads()
    if threads is not None and threads > most:
        raise ConfigError(
            f"{threads:,} threads are more than this machine can start ({available_cores()} cores, at most {most:,}"
            " threads): lower --threads, or leave it out to use all cores"
        )
    if threads is not None or torch.get_num_threads() > most:
        torch.set_num_threads(threads or most)
    return torch.get_num_threads()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run the block's operations on one thread, for those too small to share.

    A second thread has to be waited for, and on a busy machine that is long: dividing 500 images of 28×28 by 255 took
    10 ms on two threads and 0.6 ms on one (docs/log.md).
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def most_threads() -> int:
    """Return how many threads are sensible: a run of a larger machine resumes here, slower; OpenMP dies of 99,999."""
    return max(256, 4 * available_cores())


_freed_memory_is_returned = False


def _keep_freed_memory() -> None:
    """Have glibc keep freed memory: a step's activations are as large as the last one's, and returning them to the
    system costs a page fault per 4 kB (a training step of the CNN took 172 instead of 197 ms of CPU time)."""
    if not _freed_memory_is_returned:
        _set_malloc(mmap_threshold=32 << 20, trim_threshold=2**31 - 1)


def return_freed_memory() -> None:
    """Have glibc return what is freed, for trainings that are to take little memory.

    Where blocks are gathered and freed all the time, what is kept is so fragmented that a sharded ViT-B/16 took more
    than a whole one (docs/scale.md).
    """
    global _freed_memory_is_returned
    _freed_memory_is_returned = True
    _set_malloc(mmap_threshold=1 << 16, trim_threshold=1 << 17)


def _set_malloc(mmap_threshold: int, trim_threshold: int) -> None:
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, mmap_threshold)  # M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(-1, trim_threshold)  # M_TRIM_THRESHOLD


@functools.cache
def bfloat16_works() -> bool:
    """Return whether bf16 matrix products run here, tried in a child process because they may kill it."""
    command = [sys.executable, "-P", "-c", _PROBE_BFLOAT16]  # -P: no modules from the current folder
    result = subprocess.run(command, capture_output=True, timeout=120, check=False)
    return result.returncode == 0


@functools.cache
def bfloat16_is_faster() -> bool:
    """Return whether bf16 matrix products run here and take at most two thirds of the time of fp32 ones.

    Without instructions for it they are emulated, and not tried. Where AMX is advertised and kept out of the way, they
    can be slower than fp32 (140 against 220 GFLOP/s); with AVX512_BF16 alone they were 2.3 to 2.8 times as fast.
    """
    if not flags() & {"avx512_bf16", "amx_bf16", "bf16"} or not bfloat16_works():
        return False
    import torch

    def product(dtype: torch.dtype) -> Callable[[], object]:
        a, b = torch.randn(4096, 128).to(dtype), torch.randn(256, 128).to(dtype)  # as a small ViT has them
        return lambda: torch.nn.functional.linear(a, b)

    products = {dtype: product(dtype) for dtype in (torch.float32, torch.bfloat16)}
    shortest = dict.fromkeys(products, math.inf)
    for _ in range(60):  # in turn, for a tenth of a second: on a busy machine one of them alone can have a bad moment
        for dtype, multiply in products.items():
            start = time.perf_counter()
            multiply()
            shortest[dtype] = min(shortest[dtype], time.perf_counter() - start)
    return 1.5 * shortest[torch.bfloat16] <= shortest[torch.float32]


def matmul_gflops(seconds: float = 0.5, size: int = 1024, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure the reference throughput that is given beside every timing: fp32 matrix products, GFLOP/s now.

    With one thread, `clock=time.process_time` measures it on a busy machine too.
    """
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    for _ in range(3):
        a @ b
    count, start = 0, clock()
    while (elapsed := clock() - start) < seconds:
        a @ b
        count += 1
    return 2 * size**3 * count / elapsed / 1e9


def versions() -> dict[str, str]:
    """Return the versions that a run records."""
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}


# --- the environment report (`vitreous env`) ------------------------------------------------------------------

_PACKAGES = (
    "torch", "numpy", "pillow", "safetensors", "pydantic", "typer", "rich", "matplotlib", "scikit-learn", "onnxruntime",
)  # fmt: skip
_REPORTED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def describe_environment() -> dict[str, str]:
    """Return what a bug report needs, and nothing private: no paths, no host or user names."""
    guard_amx()
    import torch

    import vitreous

    threads = prepare()
    return {
        "vitreous": vitreous.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": model_name(),
        "cores": str(available_cores()),
        "threads": str(threads),
        "instructions": " ".join(flag for flag in _REPORTED_FLAGS if flag in flags()) or "not reported",
        "fp32 matrix product": f"{matmul_gflops():.0f} GFLOP/s now",
        "bf16 matrix product": f"{'works' if bfloat16_works() else 'crashes'} (tried in a child process)",
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "not set"),
        "cuda": "yes" if torch.cuda.is_available() else "no",
    }


def _version(package: str) -> str:
    import importlib.metadata  # slow to import, and `vitreous --help` imports this module

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
