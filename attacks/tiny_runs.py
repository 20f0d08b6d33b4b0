"""A small training to damage, kill and resume: seconds long, deterministic, on the digits that scikit-learn carries.

Trainings run in forked processes: a process that has run torch itself cannot be forked safely, so the family's never
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.cases import Finding, Verdict, judge_message

STEPS = 12
TRAIN = (
    "train", "vit", "--data", "digits",
    *(word for setting in (
        "model.depth=1", "model.dim=16", "model.mlp_dim=16", "data.train_per_class=16", "train.batch_size=32",
        "train.checkpoint_seconds=0", "train.log_every=2", "train.threads=1", f"train.epochs={STEPS / 5}",
    ) for word in ("--set", setting)),
)  # fmt: skip
RUN, LOG, METRICS = "run", "log.txt", "metrics.jsonl"
_TIMES = ("elapsed_seconds", "images_per_second")
#: what a process asks the system to change, as Python's audit events name it; os.replace is a rename
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"})


def warm_up() -> None:
    """Import what a training needs, without running it."""
    import sklearn.datasets  # noqa: F401

    from vitreous.cli import app  # noqa: F401
    from vitreous.data import digits  # noqa: F401
    from vitreous.training import loop  # noqa: F401


# --- commands in forked processes ------------------------------------------------------------------------------------


def start(arguments: tuple[str, ...], before: Callable[[], None] = lambda: None) -> int:
    """Run `vitreous ARGUMENTS` in a forked process, with its output in the log; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        before()
        code = run_command(arguments)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run_command(arguments: tuple[str, ...]) -> int:
    """Run the command line in this process; return its exit code, 1 after a traceback."""
    from vitreous.cli import main

    sys.argv = ["vitreous", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def finish(pid: int) -> int:
    """Wait for a process; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def command(*arguments: str) -> tuple[int, str]:
    """Run a command in a forked process; return its exit code and what it printed."""
    code = finish(start(arguments))
    return code, Path(LOG).read_text(encoding="utf-8", errors="replace")


def kill_at_change(number: int) -> Callable[[], None]:
    """Return what makes a process kill itself before its change `number` of the file system; 0 counts them only."""

    def watch() -> None:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in _CHANGES or (event == "open" and _writes(arguments)):
                count += 1
                if number == 0:
                    os.write(counted, b".")
                elif count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        counted = os.open("changes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.addaudithook(hook)

    return watch


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    here = isinstance(path, str | bytes | os.PathLike) and RUN in os.fsdecode(path)
    return here and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


# --- the reference -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """An undisturbed training, and an unfinished one with two checkpoints."""

    weights: bytes
    metrics: list[dict[str, Any]]
    files: frozenset[str]
    changes: int
    seconds: float
    folder: Path
    unfinished: Path


def make_reference(home: Path) -> Reference:
    """Train to the end, and once more until it is killed in the middle."""
    home.mkdir(parents=True, exist_ok=True)
    previous = Path.cwd()
    os.chdir(home)
    try:
        begun = time.monotonic()
        code = finish(start((*TRAIN, "-o", RUN), kill_at_change(0)))
        seconds = time.monotonic() - begun
        changes = len(Path("changes").read_bytes())
        if code:
            raise RuntimeError(f"the reference ended with {code}: {Path(LOG).read_text()}")
        done = home / "done"
        Path(RUN).rename(done)
        finish(start((*TRAIN, "-o", RUN), kill_at_change(changes // 2)))
        unfinished = home / "unfinished"
        Path(RUN).rename(unfinished)
        if len(list((unfinished / "resume").glob("step-*.json"))) < 2:
            raise RuntimeError("the unfinished training has fewer than two checkpoints")
        weights = (done / "model.safetensors").read_bytes()
        return Reference(weights, read_metrics(done), listing(done), changes, seconds, done, unfinished)
    finally:
        os.chdir(previous)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics without the times, which differ."""
    lines = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key not in _TIMES} for line in lines]


def listing(run: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(run)) for path in run.rglob("*") if path.name != ".lock")


def judge_finished(run: Path, reference: Reference, metrics: bool = True) -> Finding:
    """A training that came to its end has the reference's weights and metrics, and leaves nothing else behind."""
    if (run / "model.safetensors").read_bytes() != reference.weights:
        return Finding(Verdict.WRONG, "other weights than without the disturbance")
    if metrics and read_metrics(run) != reference.metrics:
        return Finding(Verdict.WRONG, "other metrics than without the disturbance")
    if left := listing(run) - reference.files:
        return Finding(Verdict.WRONG, f"left behind: {', '.join(sorted(left)[:5])}")
    return Finding(Verdict.IDENTICAL)


def judge_refusal(code: int, output: str) -> Finding:
    """A command that did not succeed: exit code 2 and one sentence, after lines of progress."""
    if code != 2 or "Traceback (most recent call last)" in output:
        last = " | ".join(output.strip().splitlines()[-2:])
        return Finding(Verdict.CRASH, f"exit code {code}: {last[-400:]}")
    _, found, sentence = output.rpartition("vitreous: ")
    return judge_message(sentence if found else output)
