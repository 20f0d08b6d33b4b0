"""`stretch`, `crop` and `letterbox` by the rule of the module's docstring, written again in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data.fitting import cropped_size, fit_image, has_aspect_of, inner_size
from vitreous.data.images import DecodedImage
from vitreous.data.target import Target

RNG = np.random.default_rng(0)
SIDES = st.integers(1, 40)


def resize_axis(values: np.ndarray, count: int) -> np.ndarray:
    """Resize the first axis as the docstring says."""
    n = len(values)
    if n == count:
        return values
    scale = n / count
    reach = max(scale, 1.0)
    rows = []
    for i in range(count):
        centre = (i + 0.5) * scale
        first, last = max(0, math.floor(centre - reach + 0.5)), min(n, math.floor(centre + reach + 0.5))
        weights = [max(0.0, 1 - abs(k + 0.5 - centre) / reach) for k in range(first, last)]
        whole = [math.floor(weight / sum(weights) * 2**22 + 0.5) for weight in weights]
        total = sum(weight * values[k].astype(np.int64) for weight, k in zip(whole, range(first, last), strict=True))
        rows.append(np.clip((2**21 + total) >> 22, 0, 255).astype(np.uint8))
    return np.stack(rows)


def resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    along_rows = resize_axis(pixels.transpose(1, 0, 2), size[1]).transpose(1, 0, 2)
    return resize_axis(along_rows, size[0])


def fit_by_hand(pixels: np.ndarray, size: tuple[int, int], fit: str) -> np.ndarray:
    (h, w), (H, W) = pixels.shape[:2], size
    if fit == "stretch":
        return resize(pixels, size)
    too_wide = w * H > h * W
    if fit == "crop":
        rows, columns = h, w
        if too_wide:
            columns = max(1, (2 * h * W + H) // (2 * H))
        else:
            rows = max(1, (2 * w * H + W) // (2 * W))
        top, left = (h - rows) // 2, (w - columns) // 2
        return resize(pixels[top : top + rows, left : left + columns], size)
    if too_wide:
        rows, columns = max(1, (2 * h * W + w) // (2 * w)), W
    else:
        rows, columns = H, max(1, (2 * w * H + h) // (2 * h))
    result = np.zeros((H, W, pixels.shape[2]), np.uint8)
    top, left = (H - rows) // 2, (W - columns) // 2
    result[top : top + rows, left : left + columns] = resize(pixels, (rows, columns))
    return result


@pytest.mark.parametrize("fit", ["stretch", "crop", "letterbox"])
@given(height=SIDES, width=SIDES, rows=SIDES, columns=SIDES, channels=st.sampled_from([1, 3]), seed=st.integers(0, 99))
def test_the_rule_in_numpy(
    fit: str, height: int, width: int, rows: int, columns: int, channels: int, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    ours = fit_image(pixels, (rows, columns), fit)  # type: ignore[arg-type]
    np.testing.assert_array_equal(ours, fit_by_hand(pixels, (rows, columns), fit))


@given(st.tuples(*[st.integers(1, 16_384)] * 2), st.tuples(*[st.integers(1, 512)] * 2))
def test_geometry(extent: tuple[int, int], size: tuple[int, int]) -> None:
    """What is kept is inside the image, and as large as possible; what is drawn is inside the canvas."""
    rows, columns = cropped_size(extent, size)
    assert 1 <= rows <= extent[0]
    assert 1 <= columns <= extent[1]
    assert rows == extent[0] or columns == extent[1]
    inner = inner_size(extent, size)
    assert 1 <= inner[0] <= size[0]
    assert 1 <= inner[1] <= size[1]
    assert inner[0] == size[0] or inner[1] == size[1]


def test_a_photograph_is_cropped_in_its_centre_and_bordered_evenly() -> None:
    photo = np.zeros((100, 300, 3), np.uint8)
    photo[:, 100:200] = 200
    assert (fit_image(photo, (10, 10), "crop") == 200).all()
    boxed = fit_image(photo, (30, 30), "letterbox")
    assert (boxed[:10] == 0).all()
    assert (boxed[20:] == 0).all()
    assert boxed[15, 15, 0] == 200


def test_an_image_of_the_size_is_returned_as_it_is() -> None:
    pixels = RNG.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    for fit in ("stretch", "crop", "letterbox"):
        assert fit_image(pixels, (7, 9), fit) is pixels  # type: ignore[arg-type]


def test_the_same_aspect_within_two_per_cent() -> None:
    assert has_aspect_of(np.array([[100, 200], [51, 101]]), (28, 56))
    assert not has_aspect_of(np.array([[100, 200], [100, 205]]), (28, 56))


@pytest.mark.parametrize(
    ("fit", "note"),
    [
        ("stretch", "resized from 30×90 to 10×10"),
        ("crop", "cropped from 30×90 to the 30×30 in its centre, then resized to 10×10"),
        ("letterbox", "resized from 30×90 to 3×10, with black borders up to 10×10"),
    ],
)
def test_the_notes_say_what_was_done(fit: str, note: str) -> None:
    decoded = DecodedImage(np.zeros((30, 90, 1), np.uint8))
    assert Target((10, 10), 1, fit).prepare(decoded, "x").notes == (note,)  # type: ignore[arg-type]
