"""Trainings on two processes (`--processes 2`) of which one is killed or stopped, or whose launcher is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from attacks import tiny_runs
from attacks.cases import Case, Finding, Verdict, take_turns
from attacks.tiny_runs import LOG, RUN, TRAIN, Reference

TITLE = "trainings on two processes"
SECONDS = 150.0
TIMEOUT_SECONDS = 20.0  # train.timeout_seconds of these trainings
END_SECONDS = 45.0  # in which all must have ended, beyond that timeout: two processes import torch on a busy machine
_ROUNDS = 6
_MEGABYTES = 1024.0
#: kind → which rank (None: the launcher) gets which signal
LOSSES: dict[str, tuple[int | None, signal.Signals]] = {
    "rank 1 killed": (1, signal.SIGKILL),
    "rank 0 killed": (0, signal.SIGKILL),
    "rank 1 stopped": (1, signal.SIGSTOP),
    "launcher killed": (None, signal.SIGKILL),
    "launcher ended by SIGTERM": (None, signal.SIGTERM),
}

_reference: Reference
_train: tuple[str, ...]


def warm_up() -> None:
    """Train without a disturbance."""
    global _reference, _train
    from vitreous.config import TrainConfig

    _train = (*TRAIN, "--set", "train.epochs=12", "--processes", "2")
    if "timeout_seconds" in TrainConfig.model_fields:
        _train = (*_train, "--set", f"train.timeout_seconds={TIMEOUT_SECONDS:g}")
    home = Path(tempfile.mkdtemp())
    os.chdir(home)
    started = time.monotonic()
    process = _start(*_train, "-o", RUN)
    if process.wait():
        raise RuntimeError(Path(LOG).read_text(encoding="utf-8"))
    weights = (home / RUN / "model.safetensors").read_bytes()
    metrics, files = tiny_runs.read_metrics(home / RUN), tiny_runs.listing(home / RUN)
    seconds = time.monotonic() - started
    _reference = Reference(weights, metrics, files, 0, seconds, home / RUN, home / RUN)


def cases(seed: int) -> Iterator[Case]:
    """At a random moment within the second after the first checkpoint."""
    yield from take_turns(
        *(
            iter([Case("processes", loss, str(number), seed, megabytes=_MEGABYTES) for number in range(_ROUNDS)])
            for loss in LOSSES
        )
    )


def prepare(case: Case, folder: Path) -> None:
    """The input is a moment."""


def attack(case: Case, folder: Path) -> Finding:
    orphaned = case.kind == "launcher killed"
    process = _start(*_train, *(("--set", "train.epochs=2000") if orphaned else ()), "-o", RUN)
    ranks = _await_training(process)
    if len(ranks) < 2:
        return Finding(Verdict.CRASH, f"the training did not begin: {_log()[-300:]}")
    time.sleep(case.random().uniform(0, 1.0))
    target, number = LOSSES[case.kind]
    with contextlib.suppress(ProcessLookupError):  # it may have finished
        os.kill(process.pid if target is None else ranks[target], number)
    silent = TIMEOUT_SECONDS if number == signal.SIGSTOP else 0.0
    try:
        code = process.wait(END_SECONDS + silent)
    except subprocess.TimeoutExpired:
        return Finding(Verdict.HANG, "the command did not end")
    if still_there := _await_end(ranks, END_SECONDS):
        return Finding(Verdict.HANG, f"{len(still_there)} of the ranks did not end")
    if orphaned:  # a long training: its end would be an orphan's work
        done = (Path(RUN) / "model.safetensors").exists()
        return Finding(Verdict.HANG, "orphaned ranks trained on") if done else Finding(Verdict.HANDLED, "all ended")
    if code:
        finding = _judge_message(code)
        if not finding.verdict.passed:
            return finding
    return _resume(case.kind)


def _judge_message(code: int) -> Finding:
    """One sentence says what happened and how to go on."""
    output = _log()
    if "Traceback (most recent call last)" in output:
        return Finding(Verdict.CRASH, f"exit code {code}: {output.strip()[-300:]}")
    sentences = [line for line in output.splitlines() if line.startswith("vitreous: ")]
    if len(sentences) != 1 or "--resume" not in sentences[0]:
        return Finding(Verdict.CRASH, f"exit code {code}, no sentence how to resume: {output.strip()[-300:]}")
    return Finding(Verdict.REFUSED, sentences[0])


def _resume(what: str) -> Finding:
    begun = (Path(RUN) / "config.json").exists()
    arguments = ("train", "--resume", "--processes", "2", "-o", RUN) if begun else (*_train, "-o", RUN)
    try:
        code = _start(*arguments).wait(SECONDS)
    except subprocess.TimeoutExpired:
        return Finding(Verdict.HANG, f"{what}: the resumed training did not end")
    if code:
        return Finding(Verdict.WRONG, f"{what}, then it could not be resumed: {_log().strip()[-300:]}")
    return tiny_runs.judge_finished(Path(RUN), _reference)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    with Path(LOG).open("wb") as log:
        command = [sys.executable, "-m", "vitreous", *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _log() -> str:
    return Path(LOG).read_text(encoding="utf-8", errors="replace")


def _await_training(process: subprocess.Popen[bytes]) -> list[int]:
    """Wait for the first checkpoint; return the ranks' process ids, in the order of their start."""
    deadline = time.monotonic() + SECONDS / 3
    while time.monotonic() < deadline and process.poll() is None:
        if list((Path(RUN) / "resume").glob("step-*.json")):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return [int(child) for child in children][:2]
        time.sleep(0.02)
    return []


def _await_end(pids: list[int], seconds: float) -> list[int]:
    """Return those processes that are still there after some seconds."""
    deadline = time.monotonic() + seconds
    while (running := [pid for pid in pids if _is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return running


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
