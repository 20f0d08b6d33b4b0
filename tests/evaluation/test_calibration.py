"""Temperature: equal to a general optimiser, robust where it is not defined, stored in the run and used everywhere."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import optimize, special
from typer.testing import CliRunner

import vitreous
from vitreous.cli import app
from vitreous.config import override
from vitreous.config.presets import preset
from vitreous.errors import DataError, RunError
from vitreous.evaluation.calibration import (
    COLDEST,
    HOTTEST,
    LEAST_IMAGES,
    calibrate_run,
    fit_calibration,
    fit_temperature,
    in_words,
    statistics_sample,
)
from vitreous.evaluation.novelty import Novelty
from vitreous.evaluation.prediction import Evaluation, compute_outputs, evaluate_run, predict_images
from vitreous.models.representations import representation_names
from vitreous.runs import Run, load_run_data
from vitreous.training.loop import fit

SETTINGS = [
    "data.name=digits", "model.depth=2", "model.dim=32", "model.mlp_dim=32", "model.num_heads=2", "train.epochs=4",
    "train.batch_size=64", "train.threads=1", "train.label_smoothing=0.3", "data.val_fraction=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return fit(override(preset("vit"), SETTINGS), tmp_path_factory.mktemp("runs") / "digits", progress=False)


def scored(n: int = 400, c: int = 5, scale: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, c, n)
    return random.normal(size=(n, c)) + 1.5 * np.eye(c)[labels] * scale, labels


def smoothed_loss(temperature: float, logits: np.ndarray, labels: np.ndarray) -> float:
    n, c = logits.shape
    logs = special.log_softmax(logits / temperature, axis=1)
    targets = np.full((n, c), 1 / (n + 2) / (c - 1))
    targets[np.arange(n), labels] = (n + 1) / (n + 2)
    return float(-(targets * logs).sum(axis=1).mean())


@pytest.mark.parametrize("true", [0.2, 0.5, 1.0, 3.0, 9.0])
def test_it_is_the_minimum_that_scipy_finds(true):
    logits, labels = scored()
    logits = logits * true
    best = optimize.minimize_scalar(
        lambda log: smoothed_loss(np.exp(log), logits, labels), bounds=(np.log(0.01), np.log(50)), method="bounded"
    )
    assert fit_temperature(logits, labels) == pytest.approx(np.exp(best.x), rel=1e-3)


def test_scaled_logits_scale_the_temperature():
    logits, labels = scored()
    assert fit_temperature(4 * logits, labels) == pytest.approx(4 * fit_temperature(logits, labels), rel=1e-6)


def test_log_probabilities_have_the_temperature_of_their_logits():
    logits, labels = scored()
    logs = special.log_softmax(logits, axis=1)
    assert fit_temperature(logs, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-6)


def test_a_model_without_mistakes_stays_short_of_certainty():
    logits, labels = 2 * np.eye(3)[[0, 1, 2] * 10], np.array([0, 1, 2] * 10)
    temperature = fit_temperature(logits, labels)
    assert temperature > COLDEST
    # the mean confidence is that of Platt's targets
    assert special.softmax(logits / temperature, axis=1).max() == pytest.approx(31 / 32, abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "expected"),
    [
        (np.zeros((5, 3)), [0, 1, 2, 0, 1], 1.0),  # nothing to fit
        (np.full((4, 2), np.nan), [0, 1, 0, 1], 1.0),
        (np.zeros((0, 3)), [], 1.0),
        (np.eye(3)[[1, 2, 0]], [0, 1, 2], HOTTEST),  # always wrong: no confidence at all
        (1e-4 * np.eye(2)[[0, 1] * 50], [0, 1] * 50, COLDEST),
    ],
)
def test_degenerate_cases(logits, labels, expected):
    assert fit_temperature(logits, np.array(labels, np.int64)) == expected


def test_evaluation_uses_it_and_accuracy_does_not():
    logits, labels = scored()
    raw, cold = Evaluation(logits.astype(np.float32), labels), Evaluation(logits.astype(np.float32), labels, 0.5)
    assert cold.accuracy == raw.accuracy
    np.testing.assert_allclose(cold.probabilities, special.softmax(logits / 0.5, axis=1), atol=1e-6)
    assert cold.raw_nll == raw.nll
    assert cold.raw_calibration_error == raw.calibration_error
    assert cold.nll == pytest.approx(
        -special.log_softmax(logits / 0.5, axis=1)[np.arange(400), labels].mean(), rel=1e-5
    )


def test_training_stores_it(run):
    calibration = run.record.calibration
    data = load_run_data(run)
    assert calibration.images == len(data.val)
    assert calibration.temperature < 1  # label smoothing leaves the model underconfident
    assert calibration.nll < calibration.raw_nll
    val = evaluate_run(run, "val")
    assert val.temperature == run.temperature == calibration.temperature
    assert fit_temperature(val.logits, val.labels) == pytest.approx(calibration.temperature, rel=1e-4)
    assert val.calibration_error == pytest.approx(calibration.calibration_error, rel=1e-4)
    test = evaluate_run(run)
    stated = run.test_results
    for name in ("nll", "raw_nll", "calibration_error", "raw_calibration_error"):
        assert getattr(test, name) == pytest.approx(getattr(stated, name), rel=1e-4)
    assert stated.nll < stated.raw_nll
    last = run.metrics()[-1]
    assert last["event"] == "test"
    assert last["loss"] == pytest.approx(stated.raw_nll)  # as the validation losses before it


def test_predictions_are_calibrated(run):
    image = load_run_data(run).test.images[0]
    (prediction,) = predict_images(run, [image[0].numpy()])
    with torch.inference_mode():
        logits = run.load_model()(run.preprocessing.to_input(torch.from_numpy(prediction.pixels)[None]))[0]
    expected = (logits / run.temperature).softmax(0)
    np.testing.assert_allclose(list(prediction.probabilities.values()), expected.numpy(), atol=1e-5)
    assert prediction.unlike is (prediction.novelty > 1)
    assert prediction.as_json()["novelty"] == prediction.novelty


def without_calibration(run: Run, path) -> Run:
    """A copy as an older version wrote it."""
    import shutil

    shutil.copytree(run.path, path)
    copy = Run.open(path)
    old = copy.test_results.model_copy(
        update={"nll": copy.test_results.raw_nll, "calibration_error": copy.test_results.raw_calibration_error,
                "raw_nll": None, "raw_calibration_error": None}
    )  # fmt: skip
    copy.record = copy.record.replace(calibration=None, results=copy.record.results.model_copy(update={"test": old}))
    for file in path.glob("novelty-*"):
        file.unlink()
    copy.write_record()
    return Run.open(path)


def test_calibrate_gives_an_older_run_what_training_gives(run, tmp_path):
    old = without_calibration(run, tmp_path / "old")
    assert old.temperature == 1
    assert Novelty.of_run(old) is None
    assert predict_images(old, [np.full((8, 8), 0, np.uint8) + np.eye(8, dtype=np.uint8) * 255])[0].unlike is None
    found = CliRunner().invoke(app, ["calibrate", "--run", str(old.path), "--json"])
    assert found.exit_code == 0, found.output
    again = Run.open(old.path)
    assert json.loads(found.stdout)["temperature"] == again.temperature == pytest.approx(run.temperature, rel=1e-4)
    assert again.record.calibration.novelty.share == run.record.calibration.novelty.share
    assert again.test_results.nll == pytest.approx(run.test_results.nll, rel=1e-4)
    assert again.test_results.correct == run.test_results.correct
    assert again.record.weights == run.record.weights
    text = CliRunner().invoke(app, ["evaluate", "--run", str(old.path)]).stdout
    assert f"temperature {again.temperature:.3g}" in text
    assert "without it" in text


def test_calibrating_twice_leaves_one_novelty_file(run, tmp_path):
    copy = without_calibration(run, tmp_path / "copy")
    (copy.path / "novelty-0123456789ab.safetensors").write_bytes(b"of another fit")
    vitreous.calibrate(copy)
    vitreous.calibrate(copy.path)
    (file,) = copy.path.glob("novelty-*")
    assert file.name == Run.open(copy.path).record.calibration.novelty.file


def test_a_damaged_novelty_file_is_one_sentence(run, tmp_path):
    copy = without_calibration(run, tmp_path / "copy")
    calibrate_run(copy)
    (file,) = copy.path.glob("novelty-*")
    file.write_bytes(file.read_bytes()[:-4] + b"oops")
    with pytest.raises(RunError, match=r"SHA-256 differs.*vitreous.calibrate"):
        Novelty.of_run(Run.open(copy.path))
    file.unlink()
    with pytest.raises(RunError, match=r"is missing.*vitreous.calibrate"):
        Novelty.of_run(Run.open(copy.path))


def test_other_data_are_for_converted_runs(run):
    with pytest.raises(RunError, match="leave out data="):
        calibrate_run(run, "mnist")


def test_no_validation_images(tmp_path):
    settings = [*SETTINGS[:-1], "data.val_fraction=0", "train.epochs=0.1"]
    run = fit(override(preset("vit"), settings), tmp_path / "run", progress=False)
    assert run.record.calibration is None
    assert run.temperature == 1
    assert run.test_results.nll == run.test_results.raw_nll
    assert "not calibrated" in CliRunner().invoke(app, ["evaluate", "--run", str(run.path)]).stdout
    with pytest.raises(DataError, match="no validation images"):
        calibrate_run(run)


@pytest.mark.parametrize("count", [LEAST_IMAGES - 1, LEAST_IMAGES])
def test_no_temperature_from_too_few_images(run, count):
    dataset = load_run_data(run)
    few = dataclasses.replace(dataset, val=dataset.val.take(np.arange(count)))
    model = run.load_model()
    fitted = fit_calibration(
        lambda split, reduce: compute_outputs(model, split, run.preprocessing, reduce), few, representation_names(model)
    )
    assert fitted is not None
    calibration = fitted[0]
    assert (calibration.temperature == 1) == (count < LEAST_IMAGES)
    assert (calibration.nll == calibration.raw_nll) == (count < LEAST_IMAGES)
    noted = "no temperature is fitted: fewer than 30 validation images"
    assert (noted in calibration.notes) == (count < LEAST_IMAGES)
    assert ("not calibrated (temperature 1)" in in_words(calibration)) == (count < LEAST_IMAGES)
    assert calibration.novelty is not None, "its threshold is a rank, for which 20 images are enough"


def test_statistics_come_from_evenly_spaced_images(run):
    train = load_run_data(run).train
    assert statistics_sample(train, most=len(train)) is train
    sample = statistics_sample(train, most=10)
    assert len(sample) == 10
    assert torch.equal(sample.images[0], train.images[0])
    assert torch.equal(sample.images[-1], train.images[-1])
