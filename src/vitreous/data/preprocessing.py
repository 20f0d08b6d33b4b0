"""From an image to the model's input, by the preprocessing block in a run's config.json.

Prediction, serving, exports and the page all follow that block and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, model_validator

from vitreous.config import Positive, Size
from vitreous.data.digit_normalisation import SIDE, normalise
from vitreous.data.images import Backdrop, DecodedImage, check_extent, convert, decode_image, from_pillow, luma
from vitreous.data.splits import Polarity
from vitreous.errors import DataError
from vitreous.reports.formats import by

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.data.datasets import Dataset

ImageLike = Path | str | bytes | Image.Image | np.ndarray


@dataclass(frozen=True)
class Prepared:
    """An image in the model's size and channels, and notes on what was done to it."""

    pixels: np.ndarray  # uint8 (C, H, W)
    notes: tuple[str, ...]


class Preprocessing(BaseModel):
    """How an image becomes input: converted to size and channels, then (pixel / 255 - mean) / std."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image_size: Size
    channels: Positive
    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]
    resize: Literal["mnist", "bilinear"]  # mnist: digit_normalisation.py, then bilinear to another size than 28×28
    polarity: Polarity

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"preprocessing: mean and std need {self.channels} numbers each, one per channel")
        if min(self.std) <= 0:
            raise ValueError(f"preprocessing: std={self.std} must be above 0")
        return self

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> Self:
        return cls(
            image_size=dataset.image_size,
            channels=dataset.channels,
            mean=dataset.mean,
            std=dataset.std,
            resize="mnist" if dataset.polarity == "light-on-dark" else "bilinear",
            polarity=dataset.polarity,
        )

    def to_input(self, images: Tensor) -> Tensor:
        """Normalise (n, C, H, W) images, uint8 or floats in [0, 1], to float32."""
        import torch

        mean = torch.tensor(self.mean, device=images.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, -1, 1, 1)
        pixels = images if images.is_floating_point() else images.float() / 255
        return (pixels - mean) / std

    def prepare(self, image: ImageLike, name: str | None = None) -> Prepared:
        """Convert any image to the model's size and channels."""
        if self.channels not in (1, 3):
            raise DataError(f"the model takes {self.channels} channels, and an image has 1 or 3: pass tensors instead")
        name = name or (str(image) if isinstance(image, str | Path) else "the image")
        decoded = _decode(image, name, backdrop="contrast" if self.resize == "mnist" else "white")
        pixels, notes = decoded.pixels, list(decoded.notes)
        if self.resize == "mnist":
            pixels = _normalise_digit(pixels, notes, name)
            if self.image_size != (SIDE, SIDE):
                notes.append(f"resized to {by(*self.image_size)}")
        else:
            height, width, channels = pixels.shape
            if channels != self.channels:
                notes.append("colours converted to gray" if channels == 3 else "gray repeated over three channels")
            if (height, width) != self.image_size:
                notes.append(f"resized from {by(height, width)} to {by(*self.image_size)}")
        planes = pixels.transpose(2, 0, 1).copy()  # (C, H, W)
        if planes.shape != (self.channels, *self.image_size):
            import torch  # here, because a drawn digit of 28×28 needs none of it

            planes = convert(torch.from_numpy(planes)[None], self.image_size, self.channels)[0].numpy()
        return Prepared(planes, tuple(notes))


def _normalise_digit(pixels: np.ndarray, notes: list[str], name: str) -> np.ndarray:
    """Return the one digit drawn in an (H, W, C) image, as MNIST has it: (28, 28, 1)."""
    if pixels.shape[2] == 3:
        notes.append("colours converted to gray")
    digit = normalise(luma(pixels) if pixels.shape[2] == 3 else pixels[:, :, 0])
    if digit is None:
        raise DataError(f"{name} looks blank: no stroke stands out from its background; expected one drawn digit")
    if digit.inverted:
        notes.append("dark on light: inverted to light on dark")
    if not digit.ready:
        notes.append("the drawing scaled to fit 20×20 and centred by its mass in 28×28, as MNIST's digits are")
    return digit.centred[:, :, None]


def _decode(image: ImageLike, name: str, backdrop: Backdrop) -> DecodedImage:
    if isinstance(image, Image.Image):
        check_extent(image.height, image.width, name)
        return from_pillow(image, backdrop)
    if not isinstance(image, np.ndarray):
        return decode_image(image, name=name, backdrop=backdrop)
    pixels = image[:, :, None] if image.ndim == 2 else image
    if image.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.size == 0:
        raise DataError(
            f"an image array of {image.dtype}, shape {image.shape}; expected uint8, (H, W), (H, W, 1) or (H, W, 3)"
        )
    check_extent(pixels.shape[0], pixels.shape[1], name)
    return DecodedImage(pixels)
