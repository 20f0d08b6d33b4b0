"""Class weights in the loss: by hand, however a batch is divided, and what they are for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from trainings import small

from vitreous.config import override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.evaluation.prediction import evaluate_run
from vitreous.models.fast.split_batch import SplitBatch
from vitreous.runs import Resolved, Run
from vitreous.training import distributed, plan
from vitreous.training.loop import fit
from vitreous.training.setup import fit_to_data
from vitreous.training.step import Stepper

EXACT = ("train.precision=float64", "train.class_weights=auto", "model.dropout=0", "model.drop_path=0")


def stepper(*settings: str, name: str = "vit") -> Stepper:
    """A training on digits of which nearly all sevens and half of the threes are missing."""
    config = small(*(EXACT if name == "vit" else EXACT[:2]), *settings, name=name)
    dataset = load_dataset(config.data)
    labels = dataset.train.labels.numpy()
    kept = np.sort(np.concatenate([np.flatnonzero(labels == c)[:: {7: 20, 3: 2}.get(c, 1)] for c in range(10)]))
    dataset = dataclasses.replace(dataset, train=dataset.train.take(kept))
    weights = plan.class_weights(dataset.train.labels, 10, config.train)
    resolved = Resolved(batch_size=64, steps=10, steps_per_epoch=10, class_weights=weights)
    preprocessing = Preprocessing.for_dataset(dataset)
    return Stepper(fit_to_data(config, dataset), dataset, preprocessing, resolved, distributed.Group())


def by_hand(one: Stepper, indices: torch.Tensor, smoothing: float) -> float:
    """Sum over images: weight of the class × cross-entropy to the smoothed label; over the number of images."""
    pixels, labels = one.batch(0, indices)
    with torch.no_grad():
        log_probabilities = one.model(one.preprocessing.to_input(pixels).double()).log_softmax(dim=1)
    total = 0.0
    for row, label in zip(log_probabilities, labels.tolist(), strict=True):
        target = torch.full((10,), smoothing / 10, dtype=torch.float64)
        target[label] += 1 - smoothing
        total -= one.resolved.class_weights[label] * float((target * row).sum())
    return total / len(indices)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_one_computed_by_hand(smoothing):
    one = stepper(f"train.label_smoothing={smoothing}")
    for parameter in one.model.parameters():  # the head starts at zero, where all losses are equal
        torch.nn.init.normal_(parameter, std=0.2)
    indices = torch.arange(64)
    expected = by_hand(one, indices, smoothing)
    assert max(one.resolved.class_weights) > 5 * min(one.resolved.class_weights)
    assert one.step(0, 0, indices)[0] == pytest.approx(expected, rel=1e-12)


def test_models_that_return_log_probabilities_are_weighted_too():
    one = stepper(name="post-design")
    indices = torch.arange(64)
    expected = by_hand(one, indices, 0.0)  # log-softmax leaves log-probabilities as they are
    assert one.step(0, 0, indices)[0] == pytest.approx(expected, rel=1e-12)


def test_the_step_is_the_same_however_the_batch_is_divided():
    """The sum of the weights differs from part to part: dividing by it would change the step."""

    def gradients(one: Stepper) -> list[torch.Tensor]:
        torch.manual_seed(1)
        for parameter in one.model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        one._backward(0, torch.arange(64))
        return [parameter.grad for parameter in one.model.parameters() if parameter.grad is not None]

    threads = stepper()
    threads.split_batch = SplitBatch(2)
    whole = gradients(stepper())
    assert len(whole) > 10
    for divided in (gradients(stepper("train.micro_batch=24")), gradients(threads)):
        for ours, theirs in zip(divided, whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_teacher_counts_as_much_as_the_label():
    """The weight belongs to the image: with a share of 1, the loss is the weighted distillation loss alone."""
    losses = [stepper("train.teacher=bundled:cnn", f"train.teacher_weight={w}").step(0, 0, torch.arange(64))[0]
              for w in (0.0, 0.5, 1.0)]  # fmt: skip
    assert losses[1] == pytest.approx((losses[0] + losses[2]) / 2, rel=1e-9)
    one = stepper("train.teacher=bundled:cnn")
    pixels, labels = one.batch(0, torch.arange(64))
    teacher = one.teacher.probabilities(pixels, 2.0)
    log_probabilities = (one.model(one.preprocessing.to_input(pixels).double()) / 2).log_softmax(dim=1)
    weights = torch.tensor(one.resolved.class_weights, dtype=torch.float64)[labels]
    expected = -(weights * (teacher * log_probabilities).sum(dim=1)).mean() * 4
    assert losses[2] == pytest.approx(expected.item(), rel=1e-9)


# --- whole trainings ---------------------------------------------------------------------------------------


def rare_class(folder: Path) -> str:
    """Two classes that overlap, one of them with a twentieth of the images; a balanced test set."""
    random = np.random.default_rng(0)

    def draw(labels: np.ndarray) -> np.ndarray:
        images = random.normal(110, 60, (len(labels), 14, 14))
        images[labels == 1, 3:11, 3:11] += 22
        return images.clip(0, 255).astype(np.uint8)

    labels, test_labels = (np.arange(600) % 20 == 0).astype(int), np.arange(200) % 2
    file = folder / "rare.npz"
    np.savez(file, images=draw(labels), labels=labels, test_images=draw(test_labels), test_labels=test_labels)
    return str(file)


def test_a_rare_class_is_found_more_often(tmp_path):
    data = rare_class(tmp_path)

    def recall(weights: str) -> tuple[float, Run]:
        config = override(preset("vit"), [f'data.name="{data}"', "train.epochs=6", f"train.class_weights={weights}",
                          "train.threads=1", "train.batch_size=32", "model.depth=1", "model.dim=32",
                          "data.augment.rotate=0", "data.augment.scale=0"])  # fmt: skip
        run = fit(config, tmp_path / weights, progress=False)
        evaluation = evaluate_run(run)
        return float((evaluation.logits.argmax(axis=1) == 1)[evaluation.labels == 1].mean()), run

    (plain, without), (weighted, with_weights) = recall("none"), recall("auto")
    assert weighted > plain + 0.2
    assert with_weights.test_results.accuracy > without.test_results.accuracy
    assert without.resolved.class_weights is None
    assert Run.open(with_weights.path).resolved.class_weights == pytest.approx((0.526, 10.0), abs=0.02)


def test_two_processes_train_as_one(tmp_path, processes):
    flags = [f"--set={setting}" for setting in (
        f'data.name="{rare_class(tmp_path)}"', "train.threads=1", "train.batch_size=64", "train.log_every=1",
        "train.epochs=1", "train.micro_batch=10", "model.depth=1", "model.dim=16", "model.mlp_dim=16", *EXACT,
    )]  # fmt: skip
    runs = []
    for count in ("1", "2"):
        command = ["-m", "vitreous", "train", "vit", *flags, "--processes", count, "-o", str(tmp_path / count)]
        result = processes.run(*command)
        assert result.returncode == 0, result.stderr
        runs.append(Run.open(tmp_path / count))
    one, two = ([line["loss"] for line in run.metrics()] for run in runs)
    assert len(one) > 10
    assert one == pytest.approx(two, abs=1e-8)
    assert runs[0].resolved.class_weights == runs[1].resolved.class_weights
    assert runs[1].resolved.world_size == 2
