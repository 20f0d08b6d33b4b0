"""Distillation: the teacher sees the batch as the student does, weighs what it should, and stays the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous.config import Config, DataConfig, override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ConfigError, RunError
from vitreous.runs import Resolved, Run
from vitreous.training import distributed
from vitreous.training.distillation import Teacher, distillation_loss
from vitreous.training.loop import fit
from vitreous.training.setup import fit_to_data
from vitreous.training.step import Stepper


def student(*settings: str) -> Config:
    small = ["data.name=digits", "model.depth=1", "train.epochs=1", "train.teacher=bundled:cnn"]
    return override(preset("vit"), [*small, *settings])


def stepper(config: Config) -> Stepper:
    dataset = load_dataset(config.data)
    resolved = Resolved(batch_size=16, steps=10, steps_per_epoch=10)
    return Stepper(
        fit_to_data(config, dataset), dataset, Preprocessing.for_dataset(dataset), resolved, distributed.Group()
    )


def test_the_loss_is_least_where_student_and_teacher_agree():
    torch.manual_seed(0)
    theirs = torch.randn(5, 10, dtype=torch.float64)
    for temperature in (1.0, 2.0, 5.0):
        taught = (theirs / temperature).softmax(dim=1)
        logits = theirs.clone().requires_grad_()
        distillation_loss(logits, taught, temperature).backward()
        assert logits.grad is not None
        assert logits.grad.abs().max() < 1e-12
        by_hand = -(taught * (theirs / temperature).log_softmax(dim=1)).sum(dim=1).mean() * temperature**2
        assert distillation_loss(theirs, taught, temperature).item() == pytest.approx(by_hand.item(), rel=1e-12)


def test_the_teacher_sees_the_very_images_of_the_batch(monkeypatch):
    one = stepper(student())
    assert one.teacher is not None
    seen = []
    monkeypatch.setattr(one.teacher, "probabilities", lambda pixels, _: seen.append(pixels) or torch.full((8, 10), 0.1))
    indices = torch.arange(8)
    pixels, _ = one.batch(3, indices)
    one.step(0, 3, indices)
    assert torch.equal(seen[0], pixels)
    assert not torch.equal(pixels, one.dataset.train.images[:8].float() / 255), "augmented"


def test_its_share_of_the_loss():
    indices = torch.arange(16)
    losses = {}
    for weight in (0.0, 0.25, 1.0):
        losses[weight] = stepper(student(f"train.teacher_weight={weight}")).step(0, 0, indices)[0]
    assert losses[0.0] == stepper(student("train.teacher=null")).step(0, 0, indices)[0]
    assert losses[0.25] == pytest.approx(0.75 * losses[0.0] + 0.25 * losses[1.0], rel=1e-5)
    assert losses[1.0] != losses[0.0]


def test_a_run_records_its_teacher(tmp_path):
    run = fit(student(), tmp_path / "run", progress=False)
    assert run.resolved.teacher == {
        "run": "bundled:cnn", "sha256": Run.open("bundled:cnn").record.weights.sha256,
    }  # fmt: skip
    assert run.test_results.accuracy > 0.3


def test_a_teacher_of_other_images_is_refused(tmp_path):
    images, labels = np.zeros((60, 28, 28), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "three.npz", images=images, labels=labels)
    config = student().replace(data=DataConfig(name=str(tmp_path / "three.npz")))
    with pytest.raises(ConfigError, match=r"train.teacher='bundled:cnn' has other classes than .*three.npz"):
        fit(config, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists(), "refused before anything is written"
    with pytest.raises(ConfigError, match="other image size"):
        Teacher("bundled:cnn", load_dataset(DataConfig(name="digits", image_size=(14, 14))))
    with pytest.raises(RunError, match="there is no run folder 'nowhere'"):
        fit(student("train.teacher=nowhere"), tmp_path / "run", progress=False)


def test_another_teacher_cannot_go_on_with_a_run(tmp_path: Path):
    fit(student(), tmp_path / "run", progress=False)
    run = Run.open(tmp_path / "run")
    run.resolved.teacher["sha256"] = "0" * 64
    run.record = run.record.replace(status="training")
    run.write_record()
    with pytest.raises(RunError, match="the teacher 'bundled:cnn' changed since"):
        fit(run.config, run.path, resume=True, progress=False)
