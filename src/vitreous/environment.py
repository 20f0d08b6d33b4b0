"""`vitreous env`: what a bug report needs, and nothing private (no paths, no host or user names)."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from vitreous import __version__, cpu

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
    cpu.guard_amx()
    threads = cpu.prepare()
    return {
        "vitreous": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu.model_name(),
        "cores": str(cpu.available_cores()),
        "threads": str(threads),
        "instructions": " ".join(flag for flag in _TELLING_FLAGS if flag in cpu.flags()) or "not told",
        "fp32 matrix product": f"{cpu.matmul_gflops():.0f} GFLOP/s now",
        "bf16 matrix product": "works (tried in a child process)"
        if cpu.bfloat16_works()
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
