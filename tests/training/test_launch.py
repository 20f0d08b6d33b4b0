"""`vitreous train --processes N`: one command, several ranks, stopped and reported as one."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Child, Processes

from vitreous.errors import ConfigError
from vitreous.runs import Run
from vitreous.training.launch import is_launched

TINY = ("--set", "model.depth=1", "--set", "model.dim=16", "--set", "model.mlp_dim=16", "--set", "model.num_heads=2")


@pytest.fixture
def train(processes: Processes, tmp_path: Path) -> Callable[..., Child]:
    """Start `vitreous train` in the test's folder."""
    return functools.partial(processes.vitreous, "train", cwd=tmp_path)


def test_two_processes_share_one_training(tmp_path, train):
    process = train("vit", "--data", "digits", "--epochs", "1", "--processes", "2", *TINY)
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


def test_a_mistake_is_reported_once(tmp_path, train):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    arguments = ("vit", "--data", "digits", "--processes", "2", "-o", "taken")
    process = train(*arguments)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.count("taken") == 1
    assert "Traceback" not in errors
    assert (tmp_path / "taken" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)])
def test_stopping_saves_on_all_ranks_and_resumes(tmp_path, train, number, code):
    settings = ("--epochs", "4000", "--set", "train.checkpoint_seconds=0.1", *TINY)
    process = train("vit", "--data", "digits", "--processes", "2", "-o", "run", *settings)
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
    alone = train("--resume", "-o", "run")
    assert "resume with --processes 2" in alone.communicate(timeout=120)[1]
    steps = [json.loads(path.read_text())["step"] for path in (tmp_path / "run" / "resume").glob("step-*.json")]
    assert max(steps) > 0


def test_two_ranks_go_on_where_they_stopped(tmp_path, train):
    """Stopped and resumed: the same bits as a training that was never stopped."""
    settings = ("--epochs", "12", "--processes", "2", "--set", "train.checkpoint_seconds=0.1", *TINY)
    whole = train("vit", "--data", "digits", "-o", "whole", *settings)
    whole.communicate(timeout=240)
    stopped = train("vit", "--data", "digits", "-o", "run", *settings)
    while not list((tmp_path / "run" / "resume").glob("step-*.json")):
        assert stopped.poll() is None, "it was to be stopped before its end"
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=120)
    assert stopped.returncode == 143
    resumed = train("--resume", "-o", "run", "--processes", "2")
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert Run.open(tmp_path / "run").record.weights == Run.open(tmp_path / "whole").record.weights
