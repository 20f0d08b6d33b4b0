"""`vitreous train --processes N`: one command, several ranks, stopped and reported as one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitreous.errors import ConfigError
from vitreous.runs import Run
from vitreous.training.launch import is_launched


def train(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vitreous", "train", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip


def test_two_processes_share_one_training(tmp_path):
    process = train("vit", "--data", "digits", "--epochs", "1", "--processes", "2", cwd=tmp_path)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert out.count("on the test set") == 1, "one rank speaks"
    run = Run.open(tmp_path / "runs" / "digits-vit")  # both ranks agreed on the folder that rank 0 made
    assert run.resolved.world_size == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-vit"]


def test_processes_inside_another_launchers_job(monkeypatch):
    assert not is_launched(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched(2)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match=r"--processes 2 inside a job of 8 .*leave --processes out"):
        is_launched(2)


def test_a_mistake_is_reported_once(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    arguments = ("vit", "--data", "digits", "--processes", "2", "-o", "taken")
    process = train(*arguments, cwd=tmp_path)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.count("taken") == 1
    assert "Traceback" not in errors
    assert (tmp_path / "taken" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)])
def test_stopping_saves_on_all_ranks_and_resumes(tmp_path, number, code):
    settings = ("--epochs", "400", "--set", "train.checkpoint_seconds=0.5")
    process = train("vit", "--data", "digits", "--processes", "2", "-o", "run", *settings, cwd=tmp_path)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "run" / "resume").glob("step-*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert errors.count("stopped at step") == 1
    assert "vitreous train --resume --processes 2 -o run" in errors
    assert "Traceback" not in errors
    alone = train("--resume", "-o", "run", cwd=tmp_path)
    assert "resume with --processes 2" in alone.communicate(timeout=120)[1]
    steps = [json.loads(path.read_text())["step"] for path in (tmp_path / "run" / "resume").glob("step-*.json")]
    assert max(steps) > 0


def test_two_ranks_go_on_where_they_stopped(tmp_path):
    """Stopped and resumed: the same bits as a training that was never stopped."""
    settings = ("--epochs", "12", "--processes", "2", "--set", "train.checkpoint_seconds=0.2")
    whole = train("vit", "--data", "digits", "-o", "whole", *settings, cwd=tmp_path)
    whole.communicate(timeout=240)
    stopped = train("vit", "--data", "digits", "-o", "run", *settings, cwd=tmp_path)
    while not list((tmp_path / "run" / "resume").glob("step-*.json")):
        assert stopped.poll() is None, "it was to be stopped before its end"
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=120)
    assert stopped.returncode == 143
    resumed = train("--resume", "-o", "run", "--processes", "2", cwd=tmp_path)
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert Run.open(tmp_path / "run").record.weights == Run.open(tmp_path / "whole").record.weights
