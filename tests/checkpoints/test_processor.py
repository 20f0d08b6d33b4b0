"""The normalisation in a preprocessor_config.json, against the real processor; what it does otherwise is noted."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import vitreous
from vitreous.checkpoints import read_checkpoint, save_model
from vitreous.checkpoints.convert import convert
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError
from vitreous.export.catalog import BUNDLED_SAMPLES
from vitreous.runs import Run
from vitreous.runs.record import Calibration

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


@pytest.fixture
def folder(tiny, tmp_path):
    save_model(tiny(), tmp_path / "hf", "hf", mean=MEAN, std=STD)
    return tmp_path / "hf"


def change(folder, **changes) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


NORMALISATIONS = {
    "as written": {},
    "one number": {"image_mean": 0.5, "image_std": 0.25},
    "not normalised": {"do_normalize": False},
    "from -1 to 1": {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 1.0, 1.0]},
    "not rescaled": {"do_rescale": False, "image_mean": [100.0, 110.0, 120.0], "image_std": [50.0, 60.0, 70.0]},
}


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_the_input_is_the_real_processors(folder, transformers_vit, name):
    from transformers import AutoImageProcessor

    change(folder, **NORMALISATIONS[name])
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    theirs = AutoImageProcessor.from_pretrained(folder)(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    preprocessing = read_checkpoint(folder).preprocessing
    assert preprocessing is not None
    ours = preprocessing.to_input(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_what_is_not_reproduced_is_noted(folder):
    assert not any("image processor" in note for note in read_checkpoint(folder).notes)
    change(folder, do_center_crop=True, crop_size={"height": 24, "width": 24}, size={"shortest_edge": 28}, resample=3)
    (note,) = (note for note in read_checkpoint(folder).notes if "image processor" in note)
    for words in ("crops the centre", "another filter", "the shorter side only", "vitreous stretches"):
        assert words in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_mean": ["a"]}, "image_mean"),
        ({"image_std": [0.1, float("inf"), 1.0]}, "image_std"),
        ({"rescale_factor": "x"}, "rescale_factor='x'"),
        ({"rescale_factor": 0}, "rescale_factor=0"),
        ({"rescale_offset": -1.0}, "pixels that are shifted"),
        ({"do_flip_channel_order": True}, "BGR"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(folder, changes, words):
    change(folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    assert words in str(caught.value)


def test_a_mean_for_other_channels_is_not_used(folder):
    change(folder, image_mean=[0.5], image_std=[0.5])
    checkpoint = read_checkpoint(folder)
    assert checkpoint.preprocessing is None
    assert any("the input's mean has 1 numbers, for 3 channels" in note for note in checkpoint.notes)


# --- an exported run: the real processor and model against `vitreous predict`, on PNG files -----------------

SIZES = {"small": (13, 9), "as the model": (28, 28), "large": (200, 200), "wide": (60, 150), "tall": (301, 97)}
ONE_LEVEL = 1e-3  # of probability, from pixels that differ by one level of 255; another arithmetic differs by 0.003


def run_in(folder, tiny, channels, **preprocessing) -> Run:
    """Return a calibrated run."""
    model = tiny(image_size=28, patch_size=7, channels=channels, zero_head=False)
    values = {"image_size": (28, 28), "channels": channels, "mean": (0.3,) * channels, "std": (0.2,) * channels}
    values |= {"resize": "bilinear", "polarity": "as-is"} | preprocessing
    run = Run.adopt(folder, model, Preprocessing(**values), tuple("abcdefg"), [])
    figures = dict.fromkeys(("nll", "raw_nll", "calibration_error", "raw_calibration_error"), 0.1)
    run.record = run.record.replace(calibration=Calibration(temperature=2.5, data="x", images=100, **figures))
    run.write_record()
    return Run.open(folder)


def both_predictions(run, exported, file, mode) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of `vitreous predict` and of transformers, for one file."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    ours = np.asarray(vitreous.predict([file], run=run).probabilities)[0]
    pixels = AutoImageProcessor.from_pretrained(exported)(Image.open(file).convert(mode), return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForImageClassification.from_pretrained(exported).eval()(**pixels).logits
    return ours, logits.softmax(dim=-1)[0].numpy()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """PNG files of several sizes, in colour and gray."""
    folder, random, files = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0), {}
    for name, (height, width) in SIZES.items():
        coarse = random.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST)
        for mode in ("RGB", "L"):
            files[name, mode] = folder / f"{name}-{mode}.png"
            picture.convert(mode).save(files[name, mode])
    return files


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_an_exported_run_predicts_as_before(tiny, tmp_path, transformers_vit, pictures, channels, mode):
    run = run_in(tmp_path / "run", tiny, channels)
    lines = convert(run.path, tmp_path / "hf", "hf")
    assert "the head is divided by the run's temperature 2.5: probabilities are calibrated" in lines
    for (name, _), file in pictures.items():
        ours, theirs = both_predictions(run, tmp_path / "hf", file, mode)
        tolerance = 1e-5 if name == "as the model" else ONE_LEVEL
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=tolerance, err_msg=file.name)


def test_what_the_processor_cannot_do_is_stated(tiny, tmp_path, transformers_vit, pictures):
    """Each note names a case in which the probabilities do differ."""
    cropped = run_in(tmp_path / "crop", tiny, 3, fit="crop")
    assert any("keeps the aspect ratio (fit='crop')" in line for line in convert(cropped.path, tmp_path / "1", "hf"))
    ours, theirs = both_predictions(cropped, tmp_path / "1", pictures["wide", "RGB"], "RGB")
    assert np.abs(ours - theirs).max() > ONE_LEVEL
    digits = run_in(tmp_path / "digits", tiny, 1, resize="mnist", polarity="light-on-dark")
    lines = convert(digits.path, tmp_path / "2", "hf")
    assert any("inverts dark-on-light drawings, crops the digit" in line for line in lines)
    assert any("lays transparent parts over black or white" in line for line in lines)
    drawn = Image.new("L", (280, 280), 255)
    ImageDraw.Draw(drawn).line([(140, 40), (140, 240)], fill=0, width=24)
    drawn.save(tmp_path / "drawn.png")
    transparent = Image.new("RGBA", (28, 28), (0, 0, 0, 0))
    ImageDraw.Draw(transparent).ellipse([8, 4, 20, 24], outline=(10, 10, 10, 255))
    transparent.save(tmp_path / "transparent.png")
    for file in ("drawn.png", "transparent.png"):
        ours, theirs = both_predictions(digits, tmp_path / "2", tmp_path / file, "L")
        assert np.abs(ours - theirs).max() > ONE_LEVEL, file
    assert any("MNIST's own images, 28×28 and light on black, give the same probabilities" in line for line in lines)
    for sample in json.loads(BUNDLED_SAMPLES.read_text())["samples"][:3]:
        pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8).reshape(28, 28)
        Image.fromarray(pixels).save(tmp_path / "digit.png")
        ours, theirs = both_predictions(digits, tmp_path / "2", tmp_path / "digit.png", "L")
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)
