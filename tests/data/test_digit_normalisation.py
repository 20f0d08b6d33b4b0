"""The MNIST normalisation: exact integer arithmetic that leaves MNIST's own digits where they are."""

from __future__ import annotations

import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data import digit_normalisation
from vitreous.data.datasets import Dataset

SIDES = st.integers(1, 12)


@given(st.data(), SIDES, SIDES, SIDES, SIDES)
def test_area_averaging_is_exact(data: st.DataObject, h: int, w: int, height: int, width: int) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, 255), min_size=h * w, max_size=h * w)), np.uint8).reshape(h, w)
    for (i, j), found in np.ndenumerate(digit_normalisation.area_average(values, height, width)):
        total = Fraction(0)
        for (r, c), value in np.ndenumerate(values):
            rows = min(Fraction((i + 1) * h, height), r + 1) - max(Fraction(i * h, height), r)
            columns = min(Fraction((j + 1) * w, width), c + 1) - max(Fraction(j * w, width), c)
            total += max(rows, 0) * max(columns, 0) * int(value)
        mean = total / (Fraction(h, height) * Fraction(w, width))
        assert found == (mean + Fraction(1, 2)).__floor__()


@pytest.mark.parametrize("size", [(1, 5000), (5000, 3), (700, 301), (3000, 3000)])
def test_area_averaging_of_large_images_is_exact(size: tuple[int, int]) -> None:
    """As the product of two dense matrices of integers."""
    values = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    longer = max(size)
    height, width = (max(1, (448 * side + longer) // (2 * longer)) for side in size)

    def overlaps(source: int, target: int) -> np.ndarray:
        starts, pixels = np.arange(target)[:, None] * source, np.arange(source) * target
        return np.maximum(np.minimum(starts + source, pixels + target) - np.maximum(starts, pixels), 0).astype(float)

    total = (overlaps(size[0], height) @ values @ overlaps(size[1], width).T).astype(np.int64)  # exact below 2⁵³
    expected = (2 * total + values.size) // (2 * values.size)
    np.testing.assert_array_equal(digit_normalisation.area_average(values, height, width), expected)


@pytest.mark.parametrize("size", [(1, 500_000), (500_000, 1), (700, 700)])
def test_memory_is_proportional_to_the_image(size: tuple[int, int]) -> None:
    """As dense matrices, the weights of 500,000 pixels along one side took 2.9 GB."""
    gray = np.zeros(size, np.uint8)
    gray[size[0] // 3 : size[0] // 2 + 1, size[1] // 3 : size[1] // 2 + 1] = 255
    tracemalloc.start()
    try:
        assert digit_normalisation.normalise(gray) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * gray.size


def test_time_at_1120_pixels() -> None:
    """At most 10 ms of CPU time, all threads together; 1.5 ms where this was written, where dense matrices took 16."""
    gray = np.zeros((1120, 1120), np.uint8)
    gray[200:900, 500:600] = 255
    seconds = []
    for _ in range(10):
        start = time.process_time()
        digit_normalisation.normalise(gray)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.010


def test_centring_leaves_mnist_digits_in_place(mnist: Dataset) -> None:
    """MNIST's digits are scaled already: cropping and centring them again changes nothing."""
    for image in mnist.test.images[:, 0].numpy():
        rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
        digit = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        np.testing.assert_array_equal(digit_normalisation.centre(digit), image)


@pytest.mark.parametrize("inverted", [False, True])
def test_an_enlarged_digit_is_restored(mnist: Dataset, inverted: bool) -> None:
    """Enlarged fivefold onto a wider sheet, off the middle, perhaps as ink on paper: nearly MNIST's pixels again."""
    differences = []
    for image in mnist.test.images[:100, 0].numpy():
        sheet = np.zeros((200, 220), np.uint8)
        sheet[40:180, 70:210] = np.kron(image, np.ones((5, 5), np.uint8))
        drawn = digit_normalisation.normalise(255 - sheet if inverted else sheet)
        assert drawn is not None
        assert drawn.inverted == inverted
        differences.append(np.abs(drawn.centred.astype(int) - image).max())
    # not all: a faint outermost row may have determined the bounding box
    assert np.mean(np.array(differences) <= digit_normalisation.MIN_INK) > 0.97


@pytest.mark.parametrize("inverted", [False, True])
def test_an_mnist_digit_is_unchanged(mnist: Dataset, inverted: bool) -> None:
    for image in mnist.test.images[:500, 0].numpy():
        drawn = digit_normalisation.normalise(255 - image if inverted else image)
        assert drawn is not None
        assert drawn.ready
        np.testing.assert_array_equal(drawn.centred, image)


def test_uneven_paper_grain_and_faint_ink() -> None:
    """A photograph: paper lit from one side, grain, a gray pen. Only the pen's stroke is left."""
    rng = np.random.default_rng(0)
    paper = np.linspace(165, 195, 600)[None, :] + rng.normal(0, 5, (800, 600))
    paper[200:600, 280:320] = 60
    drawn = digit_normalisation.normalise(paper.clip(0, 255).astype(np.uint8))
    assert drawn is not None
    assert drawn.inverted
    assert drawn.scaled is not None
    assert drawn.scaled.shape == (20, 2)  # 400×40: the stroke's box and nothing else
    assert drawn.centred[:4].max() == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (28, 28), (400, 400)])
@pytest.mark.parametrize("shade", [0, 128, 255])
def test_blank_pictures(size: tuple[int, int], shade: int) -> None:
    assert digit_normalisation.normalise(np.full(size, shade, np.uint8)) is None


@given(st.data(), st.integers(1, 40), st.integers(1, 40))
def test_any_picture_is_blank_or_fits(data: st.DataObject, height: int, width: int) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    gray = np.random.default_rng(seed).choice(np.array([0, 10, 200, 255], np.uint8), (height, width))
    drawn = digit_normalisation.normalise(gray)
    if drawn is not None:
        assert drawn.centred.shape == (28, 28)
        assert drawn.centred.dtype == np.uint8
        assert drawn.centred.max() > 0
        if drawn.scaled is not None:
            assert max(drawn.scaled.shape) == 20
            assert np.count_nonzero(drawn.centred) == np.count_nonzero(drawn.scaled)  # nothing cropped
