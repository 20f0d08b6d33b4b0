"""The bundled models reach the accuracy in their records, measured again on the MNIST test set; their graphs fit."""

import base64
import json

import numpy as np
import onnx
import pytest
import torch

from vitreous.data.datasets import load_dataset
from vitreous.errors import DataError
from vitreous.evaluation.prediction import evaluate_run, predict_images
from vitreous.export import parity
from vitreous.export.catalog import BUNDLED_SAMPLES, digit_samples
from vitreous.export.graph import describe
from vitreous.export.served_graphs import find_onnx, graph_kinds
from vitreous.runs import BUNDLED, Run, open_run

LARGEST_BYTES = 5_000_000


@pytest.fixture(scope="module", params=["vit", "cnn"])
def run(request) -> Run:
    return Run.open(BUNDLED / request.param)


def test_the_stated_figure_is_found_again(run):
    try:
        load_dataset(run.config.data)
    except DataError as error:
        pytest.skip(f"MNIST cannot be had here: {error}")
    stated = run.test_results
    found = evaluate_run(run)
    assert found.count == 10_000
    assert found.correct == stated.correct
    assert found.nll == pytest.approx(stated.nll, rel=1e-4)
    assert found.accuracy >= 0.99
    assert found.calibration_error == pytest.approx(stated.calibration_error, rel=1e-3)
    assert found.calibration_error < 0.01
    assert found.raw_calibration_error > 0.05  # label smoothing, before calibration


def test_each_is_small_and_has_its_provenance(run):
    assert (run.path / "model.safetensors").stat().st_size <= LARGEST_BYTES
    provenance = run.record.provenance
    assert provenance["command"].startswith("vitreous train")
    assert len(provenance["commit"]) == 40
    assert run.record.data.checksums
    assert run.class_names == tuple("0123456789")


def test_the_broken_one_is_small_and_has_its_provenance():
    run = Run.open("bundled:broken")
    assert (run.path / "model.safetensors").stat().st_size <= 300_000
    assert run.record.provenance["command"].startswith("vitreous train post-vit")
    assert set(run.config.model.fixes) == {"normalisation", "class-token", "pre-norm", "head"}  # all but attention's


def test_no_run_named_means_the_vit():
    assert open_run(None).path == BUNDLED / "vit"
    assert open_run(None).config.model.kind == "vit"


# --- what `python -m vitreous.export.bundle` writes ------------------------------------------------------------------


@pytest.fixture
def digits() -> torch.Tensor:
    """The bundled samples: uint8 (100, 1, 28, 28)"""
    return torch.from_numpy(pixels_of(json.loads(BUNDLED_SAMPLES.read_text()))).view(-1, 1, 28, 28)


def pixels_of(samples) -> np.ndarray:
    return np.array([list(base64.b64decode(sample["pixels"])) for sample in samples["samples"]], np.uint8)


def test_the_graphs_are_what_export_makes_of_the_weights(run, digits, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))  # only the bundled ones are found
    monkeypatch.setattr(parity, "sample_images", lambda run, count: (digits[:count], "bundled samples"))
    model = run.load_model()
    for kind in graph_kinds(run):
        (file,) = run.path.glob(f"{kind}-*.onnx")
        assert find_onnx(run, kind) == file.read_bytes()  # the SHA-256 in its name is right
        # same outputs, of today's names, in a process without torch
        assert parity.check_parity(file, run, model, full=kind == "full").max_difference < parity.MAX_DIFFERENCE
        metadata = {one.key: json.loads(one.value) for one in onnx.load(file).metadata_props}
        expected = describe(run, model, metadata["meanings"])
        for described in (metadata, expected):
            del described["vitreous_version"]
        similarity = metadata.pop("position_similarity"), expected.pop("position_similarity")
        assert metadata["weights_sha256"] is not None
        assert metadata == expected
        if similarity[1] is not None:  # rounded, so another machine may differ in the last digit
            np.testing.assert_allclose(*similarity, atol=2e-4)


def test_the_samples_are_the_digits():
    bundled, made = json.loads(BUNDLED_SAMPLES.read_text()), digit_samples(Run.open("bundled:vit"))
    assert [sample["label"] for sample in bundled["samples"]] == [sample["label"] for sample in made["samples"]]
    difference = pixels_of(bundled).astype(int) - pixels_of(made)
    assert np.abs(difference).mean() < 0.1  # bicubic interpolation rounds differently on another machine


def test_a_smiley_is_unlike_digits(run, digits):
    """A smiley is a "0" for a classifier; it must not be believed. (How often: bench/novelty.py.)"""
    from PIL import Image, ImageDraw

    picture = Image.new("L", (140, 140), 255)
    draw = ImageDraw.Draw(picture)
    draw.ellipse((20, 20, 120, 120), outline=0, width=8)
    for x in (52, 88):
        draw.ellipse((x - 5, 51, x + 5, 61), fill=0)
    draw.arc((40, 40, 100, 100), 20, 160, fill=0, width=8)
    (smiley,) = predict_images(run, [picture])
    assert smiley.unlike
    # scikit-learn's digits are another source: 8×8 pixels, enlarged; most are still like MNIST's
    found = predict_images(run, [image[0].numpy() for image in digits])
    assert sum(one.unlike for one in found) < 50
