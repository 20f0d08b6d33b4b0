"""A person's image → the model's input, by the preprocessing block that a run keeps in its config.json.

That block is the only source for how an image becomes input: prediction, serving, exports and the page all obey it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from vitreous.config import Positive, Size
from vitreous.data import digit_normalisation
from vitreous.data.datasets import Dataset
from vitreous.data.images import DecodedImage, convert, decode_image, from_pillow, luma
from vitreous.data.splits import Polarity
from vitreous.errors import DataError

ImageLike = Path | str | bytes | Image.Image | np.ndarray


@dataclass(frozen=True)
class Prepared:
    """An image as the model wants it, what was done to it, and the pictures on the way, in order."""

    pixels: Tensor  # uint8 (C, H, W)
    notes: tuple[str, ...]
    steps: dict[str, np.ndarray] = field(default_factory=dict)  # uint8 (H, W) or (H, W, 3)


class Preprocessing(BaseModel):
    """How an image becomes input: brought to size and channels, then (pixel / 255 - mean) / std."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image_size: Size
    channels: Positive
    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]
    resize: Literal[
        "mnist", "bilinear"
    ]  # mnist: as data/digit_normalisation.py says, then bilinear if the size is another
    polarity: Polarity

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"preprocessing: mean and std need {self.channels} numbers each, one a channel")
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
        """uint8, or floats in [0, 1], (n, C, H, W) → normalised float32 of the same shape."""
        mean = torch.tensor(self.mean, device=images.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, -1, 1, 1)
        pixels = images if images.is_floating_point() else images.float() / 255
        return (pixels - mean) / std

    def prepare(self, image: ImageLike, name: str | None = None) -> Prepared:
        """Bring any image to the size and channels the model wants, saying what was done."""
        if self.channels not in (1, 3):
            raise DataError(
                f"the model takes {self.channels} channels, and a picture has 1 or 3: give it tensors instead"
            )
        by_strokes = self.resize == "mnist"
        decoded = _decode(image, name, over_contrast=by_strokes)
        name = name or (str(image) if isinstance(image, str | Path) else "the image")
        return self._prepare_strokes(decoded, name) if by_strokes else self._prepare_plain(decoded)

    def _prepare_strokes(self, decoded: DecodedImage, name: str) -> Prepared:
        notes = list(decoded.notes)
        pixels = decoded.pixels
        if pixels.shape[2] == 3:
            notes.append("colours turned to gray")
        gray = luma(pixels) if pixels.shape[2] == 3 else pixels[:, :, 0]
        drawn = digit_normalisation.normalise(gray)
        if drawn is None:
            raise DataError(f"{name} looks blank: no stroke stands out from its background; expected one drawn digit")
        if drawn.inverted:
            notes.append("dark on light: inverted to light on dark")
        steps = {"gray": gray, "light on dark": drawn.light_on_dark}
        if not drawn.ready:
            assert drawn.ink is not None
            assert drawn.scaled is not None
            steps |= {"ink": drawn.ink, "scaled": drawn.scaled}
            notes.append("the drawing scaled to fit 20×20 and centred by its mass in 28×28, as MNIST's digits are")
        planes = torch.from_numpy(drawn.centred.copy())[None, None]  # (1, 1, 28, 28)
        if self.image_size != (digit_normalisation.SIDE, digit_normalisation.SIDE):
            notes.append(f"resized to {self.image_size[0]}×{self.image_size[1]}")
        steps["centred"] = drawn.centred
        ready = convert(planes, self.image_size, self.channels)[0]
        return Prepared(ready, tuple(notes), steps)

    def _prepare_plain(self, decoded: DecodedImage) -> Prepared:
        notes = list(decoded.notes)
        pixels = decoded.pixels
        height, width, channels = pixels.shape
        if channels != self.channels:
            notes.append("colours turned to gray" if channels == 3 else "gray repeated over three channels")
        if (height, width) != self.image_size:
            notes.append(f"resized from {height}×{width} to {self.image_size[0]}×{self.image_size[1]}")
        planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]  # (1, C, H, W)
        ready = convert(planes, self.image_size, self.channels)[0]
        resized = ready.permute(1, 2, 0).numpy()
        steps = {"picture": pixels.squeeze(2) if channels == 1 else pixels}
        steps["resized"] = resized.squeeze(2) if self.channels == 1 else resized
        return Prepared(ready, tuple(notes), steps)


def _decode(image: ImageLike, name: str | None, over_contrast: bool) -> DecodedImage:
    backdrop: Literal["white", "contrast"] = "contrast" if over_contrast else "white"
    if isinstance(image, Image.Image):
        return from_pillow(image, backdrop)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    return decode_image(image, name=name, backdrop=backdrop)


def _from_array(array: np.ndarray) -> DecodedImage:
    shaped = array[:, :, None] if array.ndim == 2 else array
    if array.dtype != np.uint8 or shaped.ndim != 3 or shaped.shape[2] not in (1, 3) or shaped.size == 0:
        raise DataError(
            f"an image array of {array.dtype}, shape {array.shape}; expected uint8, (H, W), (H, W, 1) or (H, W, 3)"
        )
    return DecodedImage(shaped)
