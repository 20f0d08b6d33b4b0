"""Resuming: decided under the lock, whatever other processes did until then."""

from __future__ import annotations

import json

import filelock
import pytest

from vitreous.config import Config, override
from vitreous.config.presets import preset
from vitreous.errors import RunError
from vitreous.runs import Run
from vitreous.training import setup
from vitreous.training.distributed import Group
from vitreous.training.loop import Trainer, fit

TINY = ["data.name=digits", "train.threads=1", "train.batch_size=64", "train.epochs=0.2", "model.depth=1",
        "model.dim=16", "model.mlp_dim=16"]  # fmt: skip


def tiny(*settings: str) -> Config:
    return override(preset("vit"), [*TINY, *settings])


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A fine-tuning that was stopped at its first checkpoint."""
    base = fit(tiny(), tmp_path / "base", progress=False)
    save = Trainer._save

    def save_and_stop(trainer: Trainer, done: int) -> None:
        save(trainer, done)
        raise KeyboardInterrupt

    config = tiny(f"start.weights={json.dumps(str(base.path))}", "train.checkpoint_seconds=0")
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "run", progress=False)
    return Run.open(tmp_path / "run")


def before_the_lock(monkeypatch, act) -> None:
    """Call `act` when a lock is next asked for: what another process does between a decision and the lock."""
    acquire = filelock.FileLock.acquire

    def acquire_after_it(lock, *arguments, **options):
        monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
        act()
        return acquire(lock, *arguments, **options)

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire_after_it)


def test_a_run_that_another_process_finished_meanwhile_is_done(interrupted, monkeypatch):
    """Its checkpoints are gone then: going on would start over from random weights, and overwrite the result."""
    finished = []

    def finish() -> None:
        finished.append(fit(interrupted.config, interrupted.path, resume=True, progress=False))

    before_the_lock(monkeypatch, finish)
    run = fit(interrupted.config, interrupted.path, resume=True, progress=False)
    assert run.is_done
    assert run.record == finished[0].record
    assert Run.open(run.path).record == finished[0].record
    run.load_model()


def test_checkpoints_left_by_a_kill_after_the_last_write_are_removed(interrupted, monkeypatch):
    """The record says that the run is done before its checkpoints are removed."""
    with monkeypatch.context() as patched:
        patched.setattr("vitreous.runs.run.shutil.rmtree", lambda *_, **__: None)  # killed before it
        run = fit(interrupted.config, interrupted.path, resume=True, progress=False)
    assert list((run.path / "resume").iterdir())
    fit(run.config, run.path, resume=True, progress=False)
    assert not (run.path / "resume").exists()
    assert Run.open(run.path).is_done


def test_a_checkpoint_that_was_lost_meanwhile_means_the_starting_weights(interrupted, monkeypatch):
    """Whether they are needed depends on the checkpoints that are there once the run is locked."""
    before_the_lock(monkeypatch, lambda: [file.unlink() for file in (interrupted.path / "resume").iterdir()])
    with setup.open_or_create(interrupted.config, interrupted.path, True, "cpu", setup.distributed.Group()) as opened:
        assert opened[2] is not None


def test_the_lock_lasts_until_the_run_is_trained(interrupted, monkeypatch):
    train = Trainer.train

    def train_while_another_wants_to(trainer: Trainer, *arguments: object) -> None:
        with pytest.raises(RunError, match="is being trained by another process"):
            fit(interrupted.config, interrupted.path, resume=True, progress=False)
        monkeypatch.setattr(Trainer, "train", train)
        train(trainer, *arguments)

    monkeypatch.setattr(Trainer, "train", train_while_another_wants_to)
    assert fit(interrupted.config, interrupted.path, resume=True, progress=False).is_done


def test_other_ranks_fail_as_rank_0_does(monkeypatch):
    """Only rank 0 locks and creates; the others would wait for it in vain."""
    acted = []
    rank_1 = Group(rank=1, world_size=2)
    monkeypatch.setattr(Group, "broadcast", lambda self, value: RunError("of rank 0"))
    with pytest.raises(RunError, match="of rank 0"):
        setup._on_rank_0(rank_1, lambda: acted.append(1))
    assert not acted


def test_a_checkpoint_of_another_model_is_a_sentence(interrupted):
    """The record was edited, and the edit accepted."""
    file = interrupted.path / "config.json"
    record = json.loads(file.read_text())
    record.pop("checksum", None)
    record["config"]["model"]["mlp_dim"] = 24
    file.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"the checkpoint of step 1 in .* does not fit the model in config\.json"):
        fit(interrupted.config, interrupted.path, resume=True, progress=False)
