"""The normalisation in a preprocessor_config.json, against the real processor; what it does otherwise is noted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.checkpoints import read_checkpoint, save_model
from vitreous.errors import CheckpointError

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
