"""Trainings killed (SIGKILL) before each change of the file system and at random moments, then resumed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from attacks import tiny_runs
from attacks.cases import Case, Finding, Verdict, numbered, take_turns
from attacks.tiny_runs import RUN, TRAIN, Reference

TITLE = "trainings that are killed"
SECONDS = 180.0
_MOMENTS, _WRITES = 200, 400  # the reference has about 150 changes; the rest repeat them
_MEGABYTES = 600.0  # a training's own

_reference: Reference


def warm_up() -> None:
    global _reference
    tiny_runs.warm_up()
    _reference = tiny_runs.make_reference(Path(tempfile.mkdtemp()))


def cases(seed: int) -> Iterator[Case]:
    yield from take_turns(
        numbered("kills", "killed before a change of a file", _WRITES, seed, megabytes=_MEGABYTES),
        numbered("kills", "killed at a random moment", _MOMENTS, seed, megabytes=_MEGABYTES),
        numbered("kills", "killed three times", _MOMENTS, seed, megabytes=_MEGABYTES),
        numbered("kills", "stopped by SIGTERM", _MOMENTS // 4, seed, megabytes=_MEGABYTES),
    )


def prepare(case: Case, folder: Path) -> None:
    """The input is a moment."""


def attack(case: Case, folder: Path) -> Finding:
    numbers = case.random()
    changes, seconds = _reference.changes, _reference.seconds
    if case.kind == "killed before a change of a file":
        # a step coprime to the count visits every change once, spread out from the start
        change = 1 + int(case.name) * 37 % changes if changes % 37 else 1 + int(case.name) % changes
        tiny_runs.finish(tiny_runs.start(_next_command(), tiny_runs.kill_at_change(change)))
        return _recover(f"killed before change {change} of {changes}")
    times = 3 if case.kind == "killed three times" else 1
    number = signal.SIGTERM if case.kind == "stopped by SIGTERM" else signal.SIGKILL
    moments = []
    for _ in range(times):
        moments.append(numbers.uniform(0, 1.1 * seconds))
        pid = tiny_runs.start(_next_command())
        time.sleep(moments[-1])
        os.kill(pid, number)
        tiny_runs.finish(pid)
    return _recover("killed after " + ", ".join(f"{moment:.2f} s" for moment in moments))


def _next_command() -> tuple[str, ...]:
    """A user goes on with --resume; where nothing had been written yet, with the same command."""
    if (Path(RUN) / "config.json").exists():
        return ("train", "--resume", "-o", RUN)
    return (*TRAIN, "-o", RUN)


def _recover(what: str) -> Finding:
    code, output = tiny_runs.command(*_next_command())
    if code:
        finding = tiny_runs.judge_refusal(code, output)
        if finding.verdict is Verdict.REFUSED:  # a sentence is not enough here: nothing may be lost
            return Finding(Verdict.WRONG, f"{what}, then refused: {finding.detail}")
        return Finding(finding.verdict, f"{what}, then {finding.detail}")
    finding = tiny_runs.judge_finished(Path(RUN), _reference)
    return finding if finding.verdict.passed else Finding(finding.verdict, f"{what}: {finding.detail}")
