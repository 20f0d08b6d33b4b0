"""Run folders with damaged, missing or replaced files: resumed, evaluated and opened again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attacks import tiny_runs
from attacks.cases import Case, Finding, Verdict, flip_bits, judge_message, listed, numbered, take_turns
from attacks.tiny_runs import METRICS, RUN, Reference

TITLE = "damaged runs"
SECONDS = 40.0
DAMAGED = "damaged"
_COUNT = 150  # of each kind
_MEGABYTES = 600.0  # a training's own

#: kind → the files that it damages; the first part of the kind names the state of the run
FILES = {
    "unfinished: config.json": "config.json",
    "unfinished: metrics.jsonl": METRICS,
    "unfinished: a checkpoint's JSON": "resume/step-*.json",
    "unfinished: a checkpoint's tensors": "resume/step-*.safetensors",
    "finished: config.json": "config.json",
    "finished: metrics.jsonl": METRICS,
    "finished: the weights": "model.safetensors",
}
REPLACEMENTS = ("missing", "empty", "a folder", "a pipe", "a link to itself", "/dev/zero", "zeros", "not UTF-8",
                "nested for ever", "no permission", "null", "a list", "duplicated")  # fmt: skip

_reference: Reference
_evaluation: str


def warm_up() -> None:
    global _reference, _evaluation
    tiny_runs.warm_up()
    home = Path(tempfile.mkdtemp())
    _reference = tiny_runs.make_reference(home)
    os.chdir(home)
    shutil.copytree(_reference.folder, RUN)
    code, _evaluation = tiny_runs.command("evaluate", "--run", RUN, "--json")
    if code:
        raise RuntimeError(_evaluation)


def cases(seed: int) -> Iterator[Case]:
    for sources in (
        (listed("runs", kind, REPLACEMENTS, seed, megabytes=_MEGABYTES) for kind in FILES),
        (numbered("runs", kind, _COUNT, seed, megabytes=_MEGABYTES) for kind in FILES),
    ):
        yield from take_turns(*sources)


def prepare(case: Case, folder: Path) -> None:
    source = _reference.unfinished if case.kind.startswith("unfinished") else _reference.folder
    target = folder / DAMAGED
    shutil.copytree(source, target)
    numbers = case.random()
    file = numbers.choice(sorted(target.glob(FILES[case.kind])))
    if not case.name.isdigit():
        _replace(file, case.name)
        return
    data = file.read_bytes()
    if numbers.random() < 0.25:
        file.write_bytes(data[: numbers.randrange(len(data))])
    else:
        file.write_bytes(flip_bits(data, numbers))


def _replace(file: Path, by: str) -> None:
    data = file.read_bytes()
    if by == "no permission":
        file.chmod(0)
        return
    if by == "duplicated":  # what a careless merge of two folders leaves
        if file.parent.name == "resume":
            file.with_name(file.name.replace("step-0", "step-1")).write_bytes(data)
        else:
            file.write_bytes(data * 2)
        return
    file.unlink()
    if by == "a folder":
        file.mkdir()
    elif by == "a pipe":
        os.mkfifo(file)
    elif by == "a link to itself":
        file.symlink_to(file)
    elif by == "/dev/zero":
        file.symlink_to(by)
    elif by != "missing":
        contents = {
            "empty": b"", "zeros": bytes(len(data)), "not UTF-8": b"\xff\xfe" + data[2:], "null": b"null",
            "nested for ever": b"[" * 100_000, "a list": b"[1, 2]",
        }  # fmt: skip
        file.write_bytes(contents[by])


def attack(case: Case, folder: Path) -> Finding:
    """Either the result is that of the undamaged run, or there is one sentence."""
    shutil.rmtree(RUN, ignore_errors=True)
    shutil.copytree(DAMAGED, RUN, symlinks=True, copy_function=_copy)
    about_metrics = FILES[case.kind] == METRICS
    if case.kind.startswith("unfinished"):
        code, output = tiny_runs.command("train", "--resume", "-o", RUN)
        if code:
            return tiny_runs.judge_refusal(code, output)
        # metrics.jsonl has no checksum of its own: its damage must not reach the weights
        return tiny_runs.judge_finished(Path(RUN), _reference, metrics=not about_metrics)
    if about_metrics:
        return _read_metrics()
    code, output = tiny_runs.command("evaluate", "--run", RUN, "--json")
    if code:
        return tiny_runs.judge_refusal(code, output)
    if output != _evaluation:
        return Finding(Verdict.WRONG, f"another evaluation: {output[:200]}")
    return _compare_records()


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    elif os.access(source, os.R_OK):
        shutil.copy2(source, target)
    else:
        Path(target).touch(mode=0)


def _compare_records() -> Finding:
    """What a report would say about the run is what was recorded."""
    recorded, damaged = (
        json.loads((path / "config.json").read_text(encoding="utf-8")) for path in (_reference.folder, Path(RUN))
    )
    for part in ("config", "preprocessing", "data", "resolved", "results", "versions", "created", "weights"):
        if recorded[part] != damaged.get(part):
            return Finding(Verdict.WRONG, f"{part!r} of config.json changed, and nothing noticed it")
    return Finding(Verdict.IDENTICAL)


def _read_metrics() -> Finding:
    from vitreous.errors import VitreousError
    from vitreous.runs import Run

    try:
        lines = Run.open(RUN).metrics()
    except VitreousError as error:
        return judge_message(str(error))
    if not all(isinstance(line, dict) for line in lines):
        return Finding(Verdict.WRONG, "lines that are no objects")
    return Finding(Verdict.HANDLED)  # no checksum: a flipped digit is another number
