"""Half of a batch on each of two threads: equal gradients, equal bits each time, and only where it is faster."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from vitreous.config import Config, override
from vitreous.config.presets import preset
from vitreous.errors import RunError
from vitreous.models.fast import split_batch
from vitreous.models.fast.split_batch import SplitBatch, split_is_faster
from vitreous.training.loop import fit

PLAIN = ("data.name=digits", "model.depth=2", "model.dim=32", "model.mlp_dim=48", "model.dropout=0",
         "model.drop_path=0", "train.epochs=0.5", "train.threads=2", "train.log_every=1")  # fmt: skip


def small(*settings: str) -> Config:
    return override(preset("vit"), [*PLAIN, *settings])


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(split_batch, "AT_LEAST", 0)


def counted(monkeypatch) -> list[int]:
    """Return a list that will hold the number of rows of each batch that is split."""
    rows: list[int] = []
    run = SplitBatch.run

    def run_counted(self, step, batch):
        if batch.ndim == 1:  # indices of a training step; inference splits the images themselves
            rows.append(len(batch))
        return run(self, step, batch)

    monkeypatch.setattr(SplitBatch, "run", run_counted)
    return rows


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model.safetensors")


def test_the_gradients_are_those_of_the_whole_batch(tmp_path, monkeypatch):
    exact = ("train.precision=float64", "train.optimizer=adamw", "train.clip_norm=0.5", "train.batch_size=33")
    whole = fit(small(*exact), tmp_path / "whole", progress=False)
    monkeypatch.setattr(split_batch, "AT_LEAST", 0)
    rows = counted(monkeypatch)
    split = fit(small(*exact), tmp_path / "split", progress=False)
    assert rows, "the batch was split"
    assert set(rows) == {33}
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], tensor, rtol=1e-9, atol=1e-11)
    losses, accuracies = (
        [[line[key] for line in run.metrics()] for run in (whole, split)] for key in ("loss", "accuracy")
    )
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert accuracies[0] == accuracies[1]


@pytest.mark.usefixtures("always")
def test_the_same_seed_gives_the_same_bits(tmp_path):
    runs = [fit(small(), tmp_path / str(number), progress=False) for number in range(3)]
    for name, tensor in weights(runs[0]).items():
        assert all(torch.equal(weights(run)[name], tensor) for run in runs[1:]), name


@pytest.mark.usefixtures("always")
def test_one_image_is_not_split(tmp_path, monkeypatch):
    rows = counted(monkeypatch)
    fit(small("train.batch_size=1", "train.epochs=0.002"), tmp_path / "run", progress=False)
    assert set(rows) == {1}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "setting",
    ["model.dropout=0.1", "model.drop_path=0.1", "train.micro_batch=16", "train.threads=1", "train.threads=3"],
)
def test_no_split_where_bits_would_change_or_cores_idle(tmp_path, monkeypatch, setting):
    rows = counted(monkeypatch)
    fit(small("train.epochs=0.1", setting), tmp_path / "run", progress=False)
    assert rows == []


@pytest.mark.usefixtures("always")
def test_a_loss_that_is_no_number_still_ends_the_run_in_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"the loss became (nan|inf) at step"):
        fit(small("train.optimizer=sgd", "train.lr=1e30"), tmp_path / "run", progress=False)


def test_large_steps_and_small_ones():
    for name in ("vit", "mnist-fast", "mnist-vit", "mnist-best", "fashion-best"):
        config = preset(name)
        assert split_is_faster(config.model, config.train.batch_size, threads=2), name
    assert not split_is_faster(preset("vit").model, 16, threads=2), "Python would take longer than the operations"
    best = preset("mnist-best").model
    assert not split_is_faster(best, 10**6, threads=2), "operations of that size gain nothing"
    assert not split_is_faster(best.replace(dropout=0.1), 256, threads=2), "the threads would share its random numbers"
    assert not split_is_faster(preset("cnn").model, 256, threads=2), "measured for ViTs alone"


def test_the_threads_are_configured_and_leave_the_others_alone():
    def settings(_rows: torch.Tensor) -> tuple[threading.Thread, int, float]:
        time.sleep(0.1)  # so that one of them does not take both
        return threading.current_thread(), torch.get_num_threads(), (torch.full((1,), 1e-39) * 1.0).item()

    before = torch.get_num_threads()
    pair = SplitBatch(4)
    (one, *found), (other, *same) = pair.run(settings, torch.arange(2))
    assert one is not other
    assert found == same == [2, 0.0], "half of the cores each, denormals flushed"
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == before, "torch gives new threads what was set last"
    del pair
    gc.collect()
    for thread in (one, other):
        thread.join(10)
        assert not thread.is_alive(), "they end with it"
