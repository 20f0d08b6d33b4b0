"""What a training derives from its data."""

from __future__ import annotations

import pytest
import torch

from vitreous.config import Config, TrainConfig, override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.errors import ConfigError
from vitreous.runs import Resolved
from vitreous.training import plan
from vitreous.training.loop import fit


def config(*settings: str) -> Config:
    small = ["data.name=digits", "train.threads=1", "model.depth=1", "model.dim=16", "model.mlp_dim=16"]
    return override(preset("vit"), [*small, *settings])


def test_an_epoch_has_no_fewer_steps_than_the_floor():
    train = TrainConfig(batch_size=128)
    assert plan.steps_per_epoch(50, 50, train) == 10
    assert plan.steps_per_epoch(1295, 128, train) == 10, "digits: the smallest named set is not changed"
    assert plan.steps_per_epoch(54_000, 128, train) == 421
    assert plan.steps_per_epoch(50, 50, train.replace(min_steps_per_epoch=1)) == 1


def test_a_small_set_is_repeated_within_an_epoch(tmp_path):
    """Epochs of ten steps, with the batches that the configuration asks for, and all images seen equally often."""
    run = fit(config("data.train_per_class=5", "train.epochs=2"), tmp_path / "run", progress=False)
    assert (run.resolved.batch_size, run.resolved.steps_per_epoch, run.resolved.steps) == (50, 10, 20)
    assert [(line["step"], line["epoch"]) for line in run.metrics() if line["event"] == "val"] == [(10, 1.0), (20, 2.0)]


def test_validation_takes_less_time_than_training():
    train = TrainConfig()
    assert plan.validation_interval(train, steps_per_epoch=421, batch_size=128, num_validation_images=6000) == 421
    assert plan.validation_interval(train, steps_per_epoch=10, batch_size=128, num_validation_images=143) == 10
    # 50 training images of MNIST and 6,000 for validation: 4 epochs are 2,000 images, forwards and backwards
    assert plan.validation_interval(train, steps_per_epoch=10, batch_size=50, num_validation_images=6000) == 40
    asked = train.replace(validate_every=0.25)
    assert plan.validation_interval(asked, steps_per_epoch=10, batch_size=50, num_validation_images=6000) == 2
    assert plan.validation_interval(asked, steps_per_epoch=1, batch_size=50, num_validation_images=6000) == 1


def test_validations_are_as_often_as_asked_for(tmp_path):
    run = fit(config("train.epochs=1", "train.validate_every=0.3"), tmp_path / "run", progress=False)
    assert [line["step"] for line in run.metrics() if line["event"] == "val"] == [3, 6, 9, 10]


# --- class weights -----------------------------------------------------------------------------------------


def test_class_weights_are_the_inverse_frequency_with_mean_1():
    auto = TrainConfig(class_weights="auto")
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    weights = plan.class_weights(labels, 3, auto)
    assert weights == pytest.approx([100 / 180, 100 / 90, 100 / 30])
    assert sum(weights[label] for label in labels) / 100 == pytest.approx(1)
    assert plan.class_weights(torch.arange(10), 10, auto) == pytest.approx([1.0] * 10)
    assert plan.class_weights(labels, 3, TrainConfig()) is None


def test_no_class_counts_more_than_ten_times_its_share():
    labels = torch.tensor([0] * 9_999 + [1])
    weights = plan.class_weights(labels, 3, TrainConfig(class_weights="auto"))  # class 2 has no image
    unscaled = [10_000 / 3 / 9_999, 10, 10]
    mean = (9_999 * unscaled[0] + 10) / 10_000
    assert weights == pytest.approx([value / mean for value in unscaled])


# --- messages ----------------------------------------------------------------------------------------------


def test_a_short_training_gets_a_hint_with_a_number():
    resolved = Resolved(batch_size=50, steps=24, steps_per_epoch=3)
    assert plan.hint(config(), resolved) == (
        "only 24 steps (3 per epoch), where about 300 are needed to learn much: add --epochs 100"
    )
    assert plan.hint(config(), resolved.model_copy(update={"steps_per_epoch": 7})).endswith("--epochs 50")
    assert plan.hint(config(), resolved.model_copy(update={"seconds_per_step": 0.04})).endswith("--seconds 20")
    assert plan.hint(config(), resolved.model_copy(update={"steps": 300})) is None
    fine_tuning = config("start.weights=somewhere")
    assert plan.hint(fine_tuning, resolved).endswith("--epochs 40")
    assert plan.hint(fine_tuning, resolved.model_copy(update={"steps": 100})) is None


def test_the_hint_is_printed_once_before_training(tmp_path, capsys):
    fit(config("train.epochs=0.2"), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "vit on digits: only 2 steps (10 per epoch), where about 300 are needed to learn much: add epochs=30"
    ), "as Python writes it; the command line says --epochs 30"
    assert sum("only" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("train.early_stopping=3", "train.early_stopping=3"),
        ("train.keep=best", "train.keep='best'"),
    ],
)
def test_judging_by_validation_needs_validation_images(setting, named, tmp_path):
    asked = config(setting, "data.val_fraction=0")
    with pytest.raises(ConfigError, match=rf"{named} needs validation images, and .*digits.* has none .*=0\): set"):
        fit(asked, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    plan.require_validation(config("data.val_fraction=0"), load_dataset(asked.data))
    plan.require_validation(config("train.early_stopping=3", "train.keep=last"), load_dataset(config().data))
