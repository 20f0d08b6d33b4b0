"""A run that goes on with another number of processes: the same images in the same order, the same weights."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch
from processes import Processes
from trainings import small, timeless, wait_for_checkpoint

from vitreous.data.prepare_folder import prepare_folder
from vitreous.errors import RunError
from vitreous.runs import Run
from vitreous.training import plan
from vitreous.training.distributed import Group
from vitreous.training.loop import fit

#: float64 and no dropout: what is left is the order of the sums
SETTINGS = (
    "train.precision=float64", "train.log_every=1", "train.epochs=4", "train.batch_size=64", "train.threads=1",
    "train.micro_batch=20", "train.clip_norm=1", "train.class_weights=auto", "train.ema_decay=0.9", "model.dim=16",
    "model.depth=1", "model.mlp_dim=16", "model.dropout=0", "model.drop_path=0", "data.augment.shift=2",
    "data.augment.crop=0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    prepare_folder("digits", folder, size=(21, 21), shards=3)
    return folder


def flags(data: Path) -> list[str]:
    return ["--data", str(data), *(word for setting in SETTINGS for word in ("--set", setting))]


def test_a_run_of_two_processes_goes_on_with_one_and_with_three(
    tmp_path: Path, shards: Path, processes: Processes
) -> None:
    """64 images are 22 + 21 + 21: each image counts the same, also where the shares are not equal."""
    config = small(*SETTINGS).replace(data=small(*SETTINGS).data.replace(name=str(shards)))
    whole = fit(config, tmp_path / "whole", progress=False)

    checkpoints = ("--set", "train.checkpoint_seconds=0")
    started = processes.vitreous(
        "train", "vit", *flags(shards), *checkpoints, "--processes", "2", "-o", str(tmp_path / "two")
    )
    wait_for_checkpoint(tmp_path / "two", 5, started)
    started.send_signal(signal.SIGTERM)
    assert started.wait() == 143, started.output()
    stopped = Run.open(tmp_path / "two").resume_point()
    assert stopped is not None
    step = stopped.step
    assert 5 <= step < whole.resolved.steps

    for count in (1, 3):
        path = shutil.copytree(tmp_path / "two", tmp_path / f"on-{count}")
        resumed = processes.vitreous("train", "--resume", "-o", str(path), "--processes", str(count))
        _, errors = resumed.communicate()
        assert resumed.wait() == 0, errors
        run = Run.open(path)
        assert run.resolved.world_sizes == ((0, 2), (step, count))
        assert run.resolved.world_size == count
        for ours, theirs in zip(timeless(whole), timeless(run), strict=True):
            assert ours["event"] == theirs["event"]
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-9), (count, ours, theirs)
        expected, found = whole.load_model().state_dict(), run.load_model().state_dict()
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, rtol=1e-6, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}"
            )


def test_one_process_and_three_are_recorded_from_their_first_step(tmp_path: Path) -> None:
    run = fit(small("train.epochs=0.1"), tmp_path / "run", progress=False)
    three = plan.for_processes(run, Group(rank=0, world_size=3, local_world_size=3))
    assert (three.world_size, three.threads, three.batch_size) == (3, 1, run.resolved.batch_size)
    assert plan.note_processes(run, three, 5).world_sizes == ((0, 1), (5, 3))
    two = plan.for_processes(run, Group(rank=0, world_size=2, local_world_size=2))
    assert plan.note_processes(run, two, 9).world_sizes == ((0, 1), (5, 3), (9, 2))
    assert plan.note_processes(run, three, 5).world_sizes == ((0, 1), (5, 3)), "what was not kept does not count"
    assert Run.open(run.path).resolved.world_sizes == ((0, 1), (5, 3))
    assert plan.note_processes(run, plan.for_processes(run, Group()), 0).world_sizes == ()


def test_more_processes_than_images_in_a_batch_are_refused(tmp_path: Path) -> None:
    run = fit(small("train.epochs=0.01", "train.batch_size=2"), tmp_path / "run", progress=False)
    with pytest.raises(RunError, match=r"batches of 2 images, too few for 3 processes: .* 2 or fewer"):
        plan.for_processes(run, Group(rank=0, world_size=3, local_world_size=3))
