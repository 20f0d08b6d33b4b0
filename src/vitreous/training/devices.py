"""The device of a training: which one, what it can compute, and how it repeats its results."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from vitreous import hardware
from vitreous.errors import ConfigError
from vitreous.training.distributed import Group


def available_devices() -> dict[str, bool]:
    """Return which devices torch knows and whether they are available."""
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pick_device(device: str, group: Group) -> str:
    """Return the device that --device names, by default the fastest; several processes cannot share a GPU."""
    available = available_devices()
    if device == "auto":
        candidates = ("cuda", "mps", "cpu") if group.world_size == 1 else ("cuda", "cpu")
        device = next(name for name in candidates if available[name])
    if device not in available:
        raise ConfigError(f"--device {device!r}: choose from auto, cpu, cuda, mps")
    if not available[device]:
        raise ConfigError(f"--device {device!r} is not available here; choose cpu or auto")
    if device == "mps" and group.world_size > 1:
        raise ConfigError(
            f"--device mps trains in one process, not {group.world_size}: leave out --processes, or choose --device cpu"
        )
    if device == "cuda" and group.local_world_size > (gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"{group.local_world_size} processes on a machine with {gpus} GPUs, and each needs its own: use"
            f" --processes {gpus}, or --device cpu"
        )
    return device


def check_precision(precision: str, device: str) -> None:
    """Raise if the device cannot compute in that precision."""
    if device == "mps" and precision != "float32":
        raise ConfigError(f"train.precision={precision!r} does not run on mps: use --set train.precision=float32")
    if precision != "bfloat16":
        return
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            "train.precision='bfloat16' needs a GPU of compute capability 8 or more: use --set train.precision=float32"
        )
    if device == "cpu" and not hardware.bfloat16_works():
        raise ConfigError(
            "train.precision='bfloat16' does not run on this CPU: it advertises the instructions, and a matrix product"
            " in a child process crashed; use --set train.precision=float32"
        )


def resolve_precision(precision: str, device: str) -> str:
    """Return the precision that "auto" means on that device: bfloat16 where it is much faster, otherwise float32."""
    if precision != "auto":
        return precision
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if device == "cpu" and hardware.bfloat16_is_faster() else "float32"


def describe_hardware(device: str) -> str:
    """Return one line for reports: the CPU and its cores, and the GPU that trains."""
    cpu = hardware.describe()
    return f"{torch.cuda.get_device_name()}; {cpu}" if device == "cuda" else cpu


def make_repeatable(device: torch.device) -> None:
    """Have CUDA repeat its results bit by bit, for exact resume; torch warns where it has no such kernel.

    cuBLAS reads the variable when it is first used. The CPU's kernels are repeatable anyway.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time


def seed_generators(seed: int, rank: int, step: int = 0) -> None:
    """Begin the random numbers of a rank (dropout): others than those of other ranks, and of earlier steps."""
    torch.manual_seed(seed * 7919 + rank + 1 + step * 2**32)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the state of every generator that a training on this device draws from, on the CPU."""
    states = {"generators": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_generators"] = torch.cuda.get_rng_state()
    if device.type == "mps":
        states["mps_generators"] = torch.mps.get_rng_state()
    return states


def set_generator_states(device: torch.device, states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["generators"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda_generators"])
    if device.type == "mps":
        torch.mps.set_rng_state(states["mps_generators"])
