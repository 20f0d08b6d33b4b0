"""A family of attacks with planted faults, to show that each is noticed; imported by a child process by its name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from attacks.cases import Case, Finding, Verdict, refused_or
from vitreous.errors import DataError

TITLE = "planted faults"
SECONDS = 60.0
EXPECTED = {
    "sentence": Verdict.REFUSED,
    "sentence with a list": Verdict.REFUSED,
    "correct": Verdict.HANDLED,
    "traceback": Verdict.CRASH,
    "exit": Verdict.CRASH,
    "two sentences": Verdict.CRASH,
    "no sentence": Verdict.CRASH,
    "a message of 100 kB": Verdict.CRASH,
    "killed": Verdict.CRASH,
    "above its bound": Verdict.MEMORY,
    "above its bound, then refused": Verdict.MEMORY,
    "beyond all memory": Verdict.MEMORY,
    "wrong": Verdict.WRONG,
    "input cannot be made": Verdict.CRASH,
}


def warm_up() -> None:
    pass


def cases(seed: int) -> Iterator[Case]:
    for name in EXPECTED:
        yield Case("planted", "a kind", name, seed, megabytes=50)


def prepare(case: Case, folder: Path) -> None:
    if case.name == "input cannot be made":
        raise RuntimeError("a mistake of the attack")
    (folder / "input").write_text(str(case.random().random()))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")


def attack(case: Case, folder: Path) -> Finding:
    assert float((folder / "input").read_text()) == case.random().random()
    assert (folder / "pipe").is_fifo()
    assert (folder / "link").is_symlink()
    return refused_or(lambda: _attack(case.name))


def _attack(name: str) -> Finding:
    if name == "hang":
        time.sleep(600)
    if name == "traceback":
        raise KeyError("planted")
    if name == "exit":
        raise SystemExit(0)
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("above its bound"):
        hog = bytearray(100 * 2**20)
        hog[::4096] = b"x" * len(hog[::4096])
    if name == "beyond all memory":
        bytearray(2**40)
    messages = {
        "sentence": "the file is damaged: restore it",
        "sentence with a list": "the file is damaged; tried:\n  - this\n  - that",
        "two sentences": "the file is damaged\nand this, too",
        "no sentence": "",
        "a message of 100 kB": "x" * 100_000,
        "above its bound, then refused": "out of memory: use fewer",
    }
    if name in messages:
        raise DataError(messages[name])
    return Finding(Verdict.WRONG if name == "wrong" else Verdict.HANDLED)
