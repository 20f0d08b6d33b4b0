"""Images as Python code has them: every way to write the same pixels gives the same images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.image_inputs import as_images
from vitreous.errors import DataError

GRAY = np.random.default_rng(0).integers(0, 256, (4, 9, 7), dtype=np.uint8)  # (n, H, W)
COLOUR = np.random.default_rng(1).integers(0, 256, (4, 9, 7, 3), dtype=np.uint8)  # (n, H, W, C)
FIRST = COLOUR.transpose(0, 3, 1, 2)  # (n, C, H, W)


def pixels(images) -> list[list]:
    return [np.squeeze(image).tolist() for image in images]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GRAY, GRAY),
        (torch.from_numpy(GRAY), GRAY),
        (GRAY[..., None], GRAY),
        (GRAY[:, None], GRAY),
        (torch.from_numpy(GRAY[:, None]), GRAY),
        (list(GRAY), GRAY),
        (tuple(torch.from_numpy(GRAY)), GRAY),
        ((image for image in GRAY), GRAY),
        (GRAY[0], GRAY[:1]),
        (GRAY[:1], GRAY[:1]),
        (torch.from_numpy(GRAY[:3]), GRAY[:3]),  # a gray model: three images, not one in colour
        (GRAY / 255, GRAY),
        (torch.from_numpy(GRAY) / 255, GRAY),
        (GRAY.astype(np.int64), GRAY),
        (GRAY > 127, (GRAY > 127) * 255),
        (np.zeros((0, 9, 7)), []),
        ([], []),
    ],
)
def test_gray(given, expected):
    assert pixels(as_images(given, channels=1)) == [np.asarray(one).tolist() for one in expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (COLOUR, COLOUR),
        (FIRST, COLOUR),
        (torch.from_numpy(FIRST.copy()), COLOUR),
        (torch.from_numpy(FIRST.copy()) / 255, COLOUR),
        (COLOUR[0], COLOUR[:1]),
        (FIRST[0], COLOUR[:1]),
        (torch.from_numpy(FIRST[0].copy()), COLOUR[:1]),
        ([COLOUR[0], FIRST[1]], COLOUR[:2]),
        (np.ones((2, 3, 5, 3)), np.full((2, 3, 5, 3), 255)),  # an array: the last axis; a tensor: the first
        (torch.ones(2, 3, 5, 3), np.full((2, 5, 3, 3), 255)),
    ],
)
def test_colour(given, expected):
    assert pixels(as_images(given, channels=3)) == [np.asarray(one).tolist() for one in expected]


def test_files_and_folders(tmp_path):
    (tmp_path / "b").mkdir()
    paths = [tmp_path / "a.png", tmp_path / "b" / "c.PNG", tmp_path / "z.png"]
    for path in paths:
        Image.fromarray(GRAY[0]).save(path)
    (tmp_path / "notes.txt").write_text("no image")
    assert as_images(tmp_path, 1) == as_images(str(tmp_path), 1) == paths
    assert as_images([str(paths[0]), paths[1]], 1) == paths[:2]
    assert as_images(np.array([str(path) for path in paths]), 1) == paths
    image = Image.fromarray(GRAY[0])
    assert as_images(image, 1) == [image]
    assert as_images(b"bytes of a file", 1) == [b"bytes of a file"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 2, 2, 2, 2)), r"shape \(2, 2, 2, 2, 2\); expected \(H, W\)"),
        (np.zeros((2, 5, 5, 4)), r"shape \(2, 5, 5, 4\)"),
        (np.zeros((5, 0)), "is empty"),
        (torch.randn(3, 9, 9) * 3, "pixels of type float32 from -.* expected whole numbers .* not normalised"),
        (np.full((9, 9), np.nan), "pixels of type float64 from nan to nan"),
        (GRAY.astype(np.int64) + 1000, "pixels of type int64"),
        (3, "3 is no image; expected a path, a folder"),
        ([[0, 1], [1, 0]], "0 is no image"),
        (None, "None is no image"),
    ],
)
def test_what_is_no_image(given, message):
    with pytest.raises(DataError, match=message):
        as_images(given, 1)


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match=r"has no images; expected files of \.png"):
        as_images(tmp_path, 1)
