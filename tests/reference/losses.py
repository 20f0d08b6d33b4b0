"""Train the reference cases and return the loss of every step.

`python tests/reference/losses.py [CASE …]` records them in `losses.json`; `test_losses.py` compares. A refactoring must
leave them identical; a change that is meant to alter them records them again and says so in its commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).with_name("losses.json")
_COMMON = ("train.log_every=1", "train.checkpoint_seconds=3600")


def run_python(arguments: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; the tests put a faster start in its place."""
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def colour_images(folder: Path, size: int) -> str:
    """Write 500 colour images of ten classes, made from a fixed seed; return the file's path."""
    random = np.random.default_rng(0)
    labels = np.arange(500) % 10
    means = random.integers(40, 216, (10, size, size, 3))
    images = (means[labels] + random.normal(0, 40, (500, size, size, 3))).clip(0, 255).astype(np.uint8)
    file = folder / f"colour-{size}.npz"
    np.savez(file, images=images, labels=labels)
    return str(file)


def train(folder: Path, name: str, preset: str, data: str, settings: Sequence[str], *flags: str) -> list[float]:
    """Train by the command line in a process of its own, so that no thread setting leaks in; return the losses."""
    command = ["-m", "vitreous", "train", preset, "--data", data, "-o", str(folder / name), *flags]
    for setting in (*_COMMON, *settings):
        command += ["--set", setting]
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "WORLD_SIZE")}
    result = run_python(command, environment)
    if result.returncode:
        raise RuntimeError(result.stderr)
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train"]


def _vit(folder: Path) -> list[float]:
    return train(folder, "vit", "vit", "digits", ["train.batch_size=64", "train.epochs=5", "train.threads=1"])


def _cnn(folder: Path) -> list[float]:
    return train(folder, "cnn", "cnn", "digits", ["train.batch_size=32", "train.epochs=2.5", "train.threads=1"])


def _cifar_fast(folder: Path) -> list[float]:
    settings = ["train.batch_size=8", "train.epochs=2.1277", "train.threads=1", "train.precision=float32"]
    return train(folder, "cifar-fast", "cifar-fast", colour_images(folder, 32), settings)


def _article_vit(folder: Path) -> list[float]:
    return train(
        folder, "post-vit", "post-vit", "digits", ["train.batch_size=8", "train.epochs=0.6212", "train.threads=1"]
    )


def _fine_tuning(folder: Path) -> list[float]:

    train(folder, "start", "vit", "digits", ["train.batch_size=64", "train.epochs=0.5", "train.threads=1"])
    settings = ["train.batch_size=16", "train.epochs=4.5455", "train.threads=1"]
    return train(folder, "tuned", "vit", colour_images(folder, 21), settings, "--from", str(folder / "start"))


def _two_processes(folder: Path) -> list[float]:
    settings = ["train.batch_size=64", "train.epochs=5", "train.threads=1"]
    return train(folder, "ranks", "vit", "digits", settings, "--processes", "2")


def _sharded(folder: Path) -> list[float]:
    settings = ["train.batch_size=64", "train.epochs=2", "train.threads=1", "train.activation_checkpointing=true"]
    return train(folder, "sharded", "vit", "digits", settings, "--processes", "2", "--shard")


HOSTS = (
    "model.depth=1", "model.dim=16", "train.batch_size=64", "train.epochs=6", "train.threads=1", "train.log_every=1",
    "train.timeout_seconds=60",
)  # fmt: skip


def _two_hosts(folder: Path) -> list[float]:
    """What two hosts train in tests/training/test_hosts.py, on one."""
    return train(folder, "hosts", "vit", "digits", HOSTS, "--processes", "2")


def _two_threads(folder: Path) -> list[float]:
    """A batch large enough to be split between two threads, and so two steps per epoch."""
    settings = ["train.batch_size=640", "train.epochs=4", "train.threads=2", "train.min_steps_per_epoch=1"]
    return train(folder, "threads", "vit", "digits", settings)


CASES: dict[str, Callable[[Path], list[float]]] = {
    "vit": _vit,
    "cnn": _cnn,
    "cifar-fast": _cifar_fast,
    "post-vit": _article_vit,
    "fine-tuning": _fine_tuning,
    "two-processes": _two_processes,
    "two-threads": _two_threads,
    "sharded": _sharded,
    "two-hosts": _two_hosts,
}


def machine() -> dict[str, str]:
    """Return what must be equal for equal bits: the kernels that torch chooses, and torch itself."""
    import torch

    from vitreous.hardware import model_name

    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": model_name(), "capability": capability, "torch": torch.__version__}


if __name__ == "__main__":
    recorded = json.loads(RECORDED.read_text())
    chosen = sys.argv[1:] or list(CASES)  # some alone only on the machine that recorded the others
    assert len(chosen) == len(CASES) or recorded["machine"] == machine()
    with tempfile.TemporaryDirectory() as temporary:
        losses = recorded["losses"] if len(chosen) < len(CASES) else {}
        for name in chosen:
            case = CASES[name]
            folder = Path(temporary) / name
            folder.mkdir()
            losses[name] = case(folder)
            print(f"{name}: {len(losses[name])} steps, {losses[name][0]:.4f} → {losses[name][-1]:.4f}", flush=True)
    RECORDED.write_text(json.dumps({"machine": machine(), "losses": losses}, indent=1) + "\n")
