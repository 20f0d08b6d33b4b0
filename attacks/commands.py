"""Hostile command lines and settings (`command_lines.py`), each run by `vitreous.cli.main` in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import vitreous.cli
from attacks import command_line_files, command_lines, tiny_runs
from attacks.cases import Case, Finding, Verdict

TITLE = "command lines and settings"
SECONDS = 90.0  # command_lines.py has a limit of its own
_COUNT = 3000
_MEGABYTES = 1024.0  # a small model and its data

_files: Path
_seams = contextlib.ExitStack()


def warm_up() -> None:
    """Make the files that the command lines name, in a fork, because that trains; replace what would take long."""
    global _files
    tiny_runs.warm_up()
    _files = Path(tempfile.mkdtemp())
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            command_line_files.prepare(_files)
            os._exit(0)
        os._exit(1)
    if tiny_runs.finish(pid):
        raise RuntimeError("the files for the command lines could not be made")
    _seams.enter_context(command_lines.seams())


def cases(seed: int) -> Iterator[Case]:
    for number, arguments in enumerate(command_lines.cases(seed, _COUNT)):
        kind = f"vitreous {arguments[0]}" if tuple(arguments[:1]) in _VERBS else "other command lines"
        yield Case("commands", kind, str(number), seed, megabytes=_MEGABYTES)


_VERBS = {words[:1] for words in command_lines.COMMANDS}


def prepare(case: Case, folder: Path) -> None:
    for number, arguments in enumerate(command_lines.cases(case.seed, _COUNT)):
        if number == int(case.name):
            (folder / "arguments.json").write_text(json.dumps(arguments), encoding="utf-8")
            return


def attack(case: Case, folder: Path) -> Finding:
    arguments = json.loads((folder / "arguments.json").read_text(encoding="utf-8"))
    os.chdir(_files)
    refusals: list[BaseException | None] = []
    command_line = vitreous.cli.main

    def recorded() -> None:
        try:
            command_line()
        except SystemExit as end:
            if end.code == 2:
                refusals.append(end.__context__)
            raise

    with mock.patch.object(vitreous.cli, "main", recorded):
        problem = command_lines.attempt(arguments)
    if problem is None:  # a command line that is accepted ends where its work would start
        accepted = not refusals or isinstance(refusals[0], command_lines._Stop)
        return Finding(Verdict.HANDLED if accepted else Verdict.REFUSED)
    shown = " ".join(argument if len(argument) < 60 else f"{argument[:60]}…" for argument in arguments)
    return Finding(Verdict.HANG if "still running" in problem else Verdict.CRASH, f"vitreous {shown}: {problem}")
