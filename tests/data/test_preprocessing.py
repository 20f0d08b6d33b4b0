"""From an image to the model's input, on `digits`, which need no network."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from pydantic import ValidationError

from vitreous.config import DataConfig, build_config
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def mnist_like(digits: Dataset) -> Preprocessing:
    return Preprocessing.for_dataset(digits)


PLAIN = Preprocessing(
    image_size=(4, 6), channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.1, 0.5), resize="bilinear", polarity="as-is"
)
GRAY = PLAIN.model_copy(update={"channels": 1, "mean": (0.5,), "std": (0.2,)})


def seven(ink: str = "black", paper: str = "white", size: tuple[int, int] = (300, 200)) -> Image.Image:
    image = Image.new("RGB", size, paper)
    ImageDraw.Draw(image).line([(60, 40), (120, 40), (80, 160)], fill=ink, width=14)
    return image


# --- the block ---------------------------------------------------------------------------------------------------


def test_the_block_survives_json(mnist_like: Preprocessing) -> None:
    assert (mnist_like.resize, mnist_like.polarity, mnist_like.image_size) == ("mnist", "light-on-dark", (28, 28))
    assert Preprocessing.model_validate_json(mnist_like.model_dump_json()) == mnist_like


@pytest.mark.parametrize("change", [{"mean": (0.1, 0.2)}, {"std": (0.0,)}, {"extra": 1}, {"image_size": 0}])
def test_a_block_edited_by_hand_is_validated(mnist_like: Preprocessing, change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build_config(Preprocessing, {**mnist_like.model_dump(), **change}, "config.json")


def test_the_block_is_frozen(mnist_like: Preprocessing) -> None:
    with pytest.raises(ValidationError):
        mnist_like.mean = (0.0,)  # type: ignore[misc]


def test_to_input_normalises_each_channel() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 4, 6)
    expected = torch.tensor([(0 - 0.5) / 0.2, (0.2 - 0.4) / 0.1, (1 - 0.3) / 0.5])
    inputs = PLAIN.to_input(images)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, expected.view(1, 3, 1, 1).expand(2, 3, 4, 6))


def test_training_images_are_standardised(digits: Dataset, mnist_like: Preprocessing) -> None:
    inputs = mnist_like.to_input(digits.train.images)
    assert inputs.mean().abs() < 1e-3
    assert inputs.std() == pytest.approx(1, abs=1e-3)


# --- drawn digits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inverted", [False, True])
def test_a_digit_of_the_data_is_unchanged(digits: Dataset, mnist_like: Preprocessing, inverted: bool) -> None:
    for image in digits.test.images[:50]:
        pixels = image[0].numpy()
        prepared = mnist_like.prepare(255 - pixels if inverted else pixels)
        np.testing.assert_array_equal(prepared.pixels, image)
        assert prepared.notes == (("dark on light: inverted to light on dark",) if inverted else ())
        again = mnist_like.prepare(prepared.pixels[0])
        np.testing.assert_array_equal(again.pixels, prepared.pixels)


def test_ink_on_paper_is_inverted_scaled_and_centred(mnist_like: Preprocessing) -> None:
    prepared = mnist_like.prepare(seven())
    assert prepared.pixels.shape == (1, 28, 28)
    assert prepared.notes == (
        "colours converted to gray",
        "dark on light: inverted to light on dark",
        "the drawing scaled to fit 20×20 and centred by its mass in 28×28, as MNIST's digits are",
    )
    pixels = prepared.pixels[0].astype(float)
    indices = np.arange(28)
    for axis in (0, 1):
        centre = (pixels.sum(1 - axis) @ indices) / pixels.sum()
        assert 13.5 <= centre < 14.5
    assert pixels.max() == 255


def test_the_same_drawing_in_any_form(mnist_like: Preprocessing, tmp_path: Path) -> None:
    """Polarity, colours, transparency, file format and position make next to no difference."""
    expected = mnist_like.prepare(seven()).pixels.astype(int)
    buffer = io.BytesIO()
    seven().save(buffer, "PNG")
    seven().save(tmp_path / "seven.jpg", quality=90)
    mask = seven("white", "black").convert("L")
    transparent = Image.merge("RGBA", [*Image.new("RGB", mask.size, "white").split(), mask])
    moved = Image.new("RGB", (220, 180), "white")
    moved.paste(seven().crop((0, 0, 180, 180)), (40, 0))
    for image in (
        np.asarray(seven()),
        seven("white", "black"),
        seven("#222266", "#eeeecc"),
        transparent,
        moved,
        buffer.getvalue(),
        tmp_path / "seven.jpg",
        str(tmp_path / "seven.jpg"),
    ):
        difference = np.abs(mnist_like.prepare(image).pixels - expected)
        assert difference.mean() < 3


@pytest.mark.parametrize("form", ["path", "bytes", "array", "Pillow"])
def test_a_long_side_is_refused_in_any_form(mnist_like: Preprocessing, tmp_path: Path, form: str) -> None:
    """As `predict` and the server get it: 500,000×1 pixels are 140 bytes of PNG, and took 2.9 GB."""
    pixels = np.zeros((1, 500_000), np.uint8)
    pixels[0, 1000:3000] = 255
    picture, path = Image.fromarray(pixels), tmp_path / "long.png"
    picture.save(path)
    image = {"path": path, "bytes": path.read_bytes(), "array": pixels, "Pillow": picture}[form]
    for preprocessing in (mnist_like, PLAIN):
        with pytest.raises(DataError, match=r"is 1×500000 pixels; the limit is 16,384 along each side"):
            preprocessing.prepare(image)


def test_a_blank_sheet_is_refused(mnist_like: Preprocessing, tmp_path: Path) -> None:
    Image.new("L", (50, 50), 240).save(tmp_path / "empty.png")
    with pytest.raises(DataError, match=r"empty\.png looks blank: no stroke stands out"):
        mnist_like.prepare(tmp_path / "empty.png")


def test_another_size_and_three_channels_follow_the_data() -> None:
    data = load_dataset(DataConfig(name="digits", image_size=(32, 32), channels=3))
    original = load_dataset(DataConfig(name="digits")).test.images[3, 0].numpy()
    prepared = Preprocessing.for_dataset(data).prepare(original)
    np.testing.assert_array_equal(prepared.pixels, data.test.images[3])
    assert prepared.notes == ("resized to 32×32",)


# --- any other images --------------------------------------------------------------------------------------------


def test_a_picture_is_resized_and_keeps_its_colours() -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:, :, 0] = 200
    prepared = PLAIN.prepare(picture)
    assert prepared.pixels.shape == (3, 4, 6)
    assert prepared.pixels[:, 2, 3].tolist() == [200, 0, 0]
    assert prepared.notes == ("resized from 40×60 to 4×6",)


def test_channels_are_converted_and_noted() -> None:
    gray = np.full((4, 6), 90, np.uint8)
    assert PLAIN.prepare(gray).notes == ("gray repeated over three channels",)
    assert PLAIN.prepare(gray).pixels[:, 0, 0].tolist() == [90, 90, 90]
    colour = GRAY.prepare(np.full((4, 6, 3), (255, 0, 0), np.uint8))
    assert colour.notes == ("colours converted to gray",)
    assert colour.pixels[0, 0, 0] == 76
    assert GRAY.prepare(gray).notes == ()


@pytest.mark.parametrize("array", [np.zeros((4, 6)), np.zeros((4, 6, 2), np.uint8), np.zeros((0, 6), np.uint8)])
def test_arrays_that_are_not_images(array: np.ndarray) -> None:
    with pytest.raises(DataError, match="expected uint8"):
        PLAIN.prepare(array)


def test_a_file_that_is_not_an_image(tmp_path: Path) -> None:
    (tmp_path / "letter.png").write_text("Dear reader")
    with pytest.raises(DataError, match=r"letter\.png is not a PNG, JPEG, WebP, BMP, GIF or TIFF image"):
        PLAIN.prepare(tmp_path / "letter.png")
