"""Small trainings for the tests: configurations, processes, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from processes import Child

from vitreous.config import Config, override
from vitreous.config.presets import preset
from vitreous.runs import Run

TIME_FIELDS = {"elapsed_seconds", "images_per_second"}


def small(*settings: str, name: str = "vit") -> Config:
    base = ["data.name=digits", "train.threads=1", "train.batch_size=64"]
    if name == "vit":
        base += ["model.depth=2", "model.dim=32", "model.mlp_dim=48", "model.dropout=0.1", "model.drop_path=0.1"]
    return override(preset(name), [*base, *settings])


def timeless(run: Run) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in TIME_FIELDS} for line in run.metrics()]


def wait_for_checkpoint(path: Path, count: int, process: Child) -> None:
    deadline = time.monotonic() + 120
    while len(list((path / "resume").glob("step-*.json"))) < 1 or newest_step(path) < count:
        assert process.poll() is None, process.output()
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.02)


def newest_step(path: Path) -> int:
    return max((int(file.stem[5:]) for file in (path / "resume").glob("step-*.json")), default=0)


NO_THREADS_OF_GLOO = """
from pathlib import Path
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
assert not [name for name in names if "gloo" in name], "threads that may abort the process as it ends, or hang it"
"""


def torchrun(script: str, path: Path, processes: int = 2) -> None:
    path.write_text(script + NO_THREADS_OF_GLOO)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", str(path)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
