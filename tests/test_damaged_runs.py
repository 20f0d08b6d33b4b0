"""Damaged, edited and half-made runs: a sentence, or the older checkpoint; never a traceback or a wrong value."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from vitreous.config import override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.downloads.files import atomic_write_bytes, remove_leftovers, replacing
from vitreous.errors import RunError, VitreousError
from vitreous.runs import BUNDLED, Resolved, ResumePoint, Run, RunRecord
from vitreous.training.setup import fit_to_data

FACTS = {"elapsed_seconds": 12.5, "window": [3.25, 7, 64], "window_seconds": 0.5}
LEFTOVER = ".config.json.0123456789ab.part"


@pytest.fixture(scope="module")
def create():
    config = override(preset("vit"), ["data.name=digits", "model.depth=1", "model.dim=16"])
    dataset = load_dataset(config.data)
    resolved = Resolved(batch_size=64, steps=10, steps_per_epoch=5)

    def _create(path: Path, name: str = "vit") -> Run:
        fitted = fit_to_data(config, dataset).replace(name=name)
        return Run.create(path, fitted, dataset, Preprocessing.for_dataset(dataset), resolved)

    return _create


@pytest.fixture
def run(create, tmp_path) -> Run:
    return create(tmp_path / "run")


@pytest.fixture
def with_checkpoints(run) -> Run:
    for step in (1, 2):
        run.log(event="train", step=step)
        run.save_resume_point(ResumePoint(step, {"x": torch.full((1,), float(step))}, FACTS))
    return run


def flips(data: bytes, every: int = 1):
    for bit in range(0, 8 * len(data), every):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def without_checksum(file: Path) -> dict:
    """The JSON as vitreous 0.1 wrote it; removing the checksum is also how a person accepts an edit."""
    content = json.loads(file.read_text())
    content.pop("checksum", None)
    return content


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_every_flipped_bit_of_a_checkpoint_means_the_one_before(with_checkpoints, suffix):
    file = with_checkpoints.path / "resume" / f"step-000000002.{suffix}"
    undamaged, whole = with_checkpoints.resume_point(), file.read_bytes()
    assert undamaged.step == 2
    for damaged in flips(whole):
        file.write_bytes(damaged)
        point = with_checkpoints.resume_point()
        assert point.step == 1 or point.facts == undamaged.facts, damaged
        assert point.tensors["x"] == point.step


def test_a_flipped_bit_never_gives_a_checkpoint_of_0_1_another_step(with_checkpoints):
    file = with_checkpoints.path / "resume" / "step-000000002.json"
    file.write_text(json.dumps(without_checksum(file)))
    assert with_checkpoints.resume_point().step == 2
    metrics = (with_checkpoints.path / "metrics.jsonl").read_bytes()
    for damaged in flips(file.read_bytes()):
        file.write_bytes(damaged)
        point = with_checkpoints.resume_point()
        assert point.tensors["x"] == point.step, damaged
        assert metrics[: point.facts["metrics_bytes"]].endswith(b"\n")


WRONG = [
    {"step": 1}, {"step": True}, {"step": "2"}, {"step": None}, {"step": 2.0}, {"step": 10**400},
    {"metrics_bytes": -1}, {"metrics_bytes": 3}, {"metrics_bytes": 10**9}, {"metrics_bytes": "60"},
    {"sha256": 0}, {"sha256": "x"}, {"elapsed_seconds": "1"}, {"elapsed_seconds": -1.0}, {"elapsed_seconds": 10**400},
    {"elapsed_seconds": float("nan")}, {"window": [1.0, 2.0]}, {"window": "abc"}, {"window": [1.0, 2.0, float("inf")]},
    {"window_seconds": []}, {"unknown": 1},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: next(iter(changes)))
def test_wrong_values_without_a_checksum_mean_the_one_before(with_checkpoints, changes):
    file = with_checkpoints.path / "resume" / "step-000000002.json"
    file.write_text(json.dumps(without_checksum(file) | changes))
    assert with_checkpoints.resume_point().step == 1
    assert with_checkpoints.rewind().step == 1
    assert [line["step"] for line in with_checkpoints.metrics()] == [1]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_a_checkpoint_that_is_not_one_means_the_one_before(with_checkpoints, content):
    (with_checkpoints.path / "resume" / "step-000000002.json").write_bytes(content)
    assert with_checkpoints.resume_point().step == 1


def test_a_copied_checkpoint_has_the_step_of_its_content(with_checkpoints):
    """A whole file under another name: its checksum holds, its step is another."""
    folder = with_checkpoints.path / "resume"
    for suffix in ("json", "safetensors"):
        (folder / f"step-000000001.{suffix}").rename(folder / f"step-000000009.{suffix}")
    assert with_checkpoints.resume_point().step == 2


def test_a_checkpoint_that_may_not_be_read_is_not_removed(with_checkpoints, monkeypatch):
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(RunError, match=r"cannot read the checkpoint .*step-000000002\.json.*Permission denied"):
        with_checkpoints.rewind()
    assert len(list((with_checkpoints.path / "resume").iterdir())) == 4


# --- config.json -------------------------------------------------------------------------------------------------


def known(record: RunRecord) -> dict:
    return record.model_dump(include=set(RunRecord.model_fields))


def test_a_flipped_bit_of_the_record_is_an_error_or_changes_nothing(run):
    file, expected = run.path / "config.json", known(run.record)
    noticed = unchanged = 0
    for damaged in flips(file.read_bytes(), every=13):  # coprime to 8: every bit of a byte has its turn
        file.write_bytes(damaged)
        try:
            assert known(Run.open(run.path).record) == expected, damaged
            unchanged += 1
        except VitreousError:
            noticed += 1
    assert noticed > 20 * unchanged  # unchanged: 1e-06 and 1E-06, or the word "checksum" itself


def test_the_error_of_an_edit_says_how_to_accept_it(run):
    file = run.path / "config.json"
    file.write_text(file.read_text().replace('"light-on-dark"', '"as-is"'))
    with pytest.raises(RunError, match=r"config\.json' was edited or damaged .* remove its line \"checksum\""):
        Run.open(run.path)
    lines = [line for line in file.read_text().splitlines() if '"checksum"' not in line]
    file.write_text("\n".join(lines))
    accepted = Run.open(run.path)
    assert accepted.preprocessing.polarity == "as-is"
    accepted.write_record()
    assert '"checksum"' in file.read_text(), "vouched for again, once it is written again"
    assert Run.open(run.path).record == accepted.record


def test_order_and_white_space_do_not_matter(run):
    file = run.path / "config.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(record.items()))))
    assert Run.open(run.path).record == run.record


def test_the_checksum_covers_the_keys_of_other_tools(run):
    file = run.path / "config.json"
    file.write_text(json.dumps(without_checksum(file) | {"note": "mine"}))
    Run.open(run.path).write_record()
    assert Run.open(run.path).record.note == "mine"
    file.write_text(file.read_text().replace("mine", "yours"))
    with pytest.raises(RunError, match="edited or damaged"):
        Run.open(run.path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"format": ' + b"1" * 5000 + b"}", b"\xff" * 10])
def test_a_record_that_cannot_be_parsed_is_a_sentence(run, content):
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json' cannot be read .*it is damaged: restore it, or train again"):
        Run.open(run.path)


@pytest.mark.parametrize("name", ["vit", "cnn"])
def test_the_bundled_models_have_checksums(name):
    assert "checksum" in json.loads((BUNDLED / name / "config.json").read_text())


# --- metrics.jsonl -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"[1]", b"7", b'{"loss": NaN}', b'{"loss": 1e999}', b'{"step": 1%s}' % (b"0" * 400), b"[" * 100_000,
     b'{"step": 1%s}' % (b"0" * 5000), b'{"loss": 0.\x005}', b""],
)  # fmt: skip
def test_damaged_metrics_are_a_sentence(run, line):
    run.log(event="train", step=1, loss=0.5)
    file = run.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(RunError, match=r"line 2 of .*metrics\.jsonl' is not .*: remove it"):
        run.metrics()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_a_run_is_not_waited_for(with_checkpoints):
    run = with_checkpoints
    files = [run.path / "resume" / "step-000000002.safetensors", run.path / "metrics.jsonl"]
    for file in (*files, run.path / "model.safetensors"):
        file.unlink(missing_ok=True)
        os.mkfifo(file)
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a writer"))
    signal.alarm(20)
    try:
        assert run.resume_point().step == 1, "the older checkpoint"
        for read in (run.metrics, run.rewind, run.load_model):
            with pytest.raises(RunError, match=r"pipe, socket or device|has no weights yet"):
                read()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_a_loss_that_is_not_finite_is_logged_as_json(run):
    run.log(event="val", step=1, loss=float("nan"), accuracy=0.1)
    assert run.metrics() == [{"event": "val", "step": 1, "loss": None, "accuracy": 0.1}]


# --- folders that a kill left half-made --------------------------------------------------------------------------


def killed_in(call: str, act) -> None:
    """Run `act` in a child process that is killed when it gets to `os.CALL`."""
    if (child := os.fork()) == 0:
        setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_in_the_very_first_write_leaves_a_folder_that_is_free(create, tmp_path, call):
    killed_in(call, lambda: create(tmp_path / "run"))
    names = {entry.name for entry in (tmp_path / "run").iterdir()}
    assert ".lock" in names
    assert len(names) == 2, "a lock, and what was being written"
    create(tmp_path / "run")
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {".lock", "config.json"}


def test_a_killed_write_is_cleaned_up_when_the_run_is_opened_for_training(with_checkpoints):
    run, resume = with_checkpoints, with_checkpoints.path / "resume"
    killed_in("replace", lambda: run.save_resume_point(ResumePoint(3, {"x": torch.zeros(1)}, FACTS)))
    killed_in("replace", run.write_record)
    assert [len(list(folder.glob(".*.part"))) for folder in (run.path, resume)] == [1, 1]
    mine = run.path / ".notes.part"  # not a name of ours
    mine.write_text("kept")
    with run.locked():
        assert list(run.path.rglob("*.part")) == [mine]
    assert run.resume_point().step == 2


def test_a_failed_creation_leaves_no_folder(create, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "mine").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        for name in ("run", "mine"):
            with pytest.raises(RunError, match=r"cannot write the run folder .*No space left"):
                create(tmp_path / name)
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "mine").is_dir(), "it was there before"
    create(tmp_path / "mine")


def test_of_two_that_create_the_same_folder_one_does(create, tmp_path, monkeypatch):
    mkdir = Path.mkdir

    def mkdir_after_the_other(path: Path, *arguments: object, **options: object) -> None:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        create(path, name="first")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir_after_the_other)
    with pytest.raises(RunError, match="exists already: add resume=True"):
        create(tmp_path / "run", name="second")
    assert Run.open(tmp_path / "run").config.name == "first"


def test_a_file_that_is_being_written_is_no_leftover(tmp_path):
    (tmp_path / LEFTOVER).write_text("of a killed process")
    with replacing(tmp_path / "big") as stream:
        stream.write(b"half")
        remove_leftovers(tmp_path)
        assert not (tmp_path / LEFTOVER).exists()
        assert Path(stream.name).exists()
        stream.write(b" and half")
    assert (tmp_path / "big").read_bytes() == b"half and half"


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    from vitreous.downloads import files

    lock = files._lock_temporary

    def lock_after_it_was_removed(descriptor: int, wait: bool) -> bool:
        monkeypatch.setattr(files, "_lock_temporary", lock)
        remove_leftovers(tmp_path)
        return lock(descriptor, wait)

    monkeypatch.setattr(files, "_lock_temporary", lock_after_it_was_removed)
    atomic_write_bytes(tmp_path / "file", b"whole")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"file": b"whole"}
