"""From an image to the model's input, by the preprocessing block in a run's config.json.

Prediction, serving, exports and the page all follow that block and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, model_validator

from vitreous.config import Positive, Size
from vitreous.data.fitting import Fit
from vitreous.data.images import DecodedImage, check_extent, decode_image, from_pillow
from vitreous.data.splits import Polarity
from vitreous.data.target import Prepared, Target
from vitreous.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.data.datasets import Dataset

ImageLike = Path | str | bytes | Image.Image | np.ndarray


class Preprocessing(BaseModel):
    """How an image becomes input: converted to size and channels, then (pixel / 255 - mean) / std."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image_size: Size
    channels: Positive
    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]
    resize: Literal["mnist", "bilinear"]  # mnist: digit_normalisation.py, then bilinear to another size than 28×28
    polarity: Polarity
    fit: Fit = "stretch"  # fitting.py; older records have none, and stretched
    shuffled: bool = False  # trained on shuffled patches (shuffling.py), for a study: no other image becomes input

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
            fit=dataset.fit,
            shuffled=dataset.shuffled,
        )

    def to_input(self, images: Tensor) -> Tensor:
        """Normalise (n, C, H, W) images, uint8 or floats in [0, 1], to float32."""
        import torch

        mean = torch.tensor(self.mean, device=images.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, -1, 1, 1)
        pixels = images if images.is_floating_point() else images.float() / 255
        return (pixels - mean) / std

    @property
    def target(self) -> Target:
        """What `prepare`, and decoding in several processes (`workers.decode`), convert images to."""
        if self.shuffled:
            raise DataError(
                "the model was trained on images with shuffled patches (data.shuffle_patches), for a study: it predicts"
                " those of its own data alone, with `vitreous evaluate`"
            )
        if self.channels not in (1, 3):
            raise DataError(f"the model takes {self.channels} channels, and an image has 1 or 3: pass tensors instead")
        return Target(self.image_size, self.channels, self.fit, digits=self.resize == "mnist")

    def prepare(self, image: ImageLike, name: str | None = None) -> Prepared:
        """Convert any image to the model's size and channels."""
        target = self.target
        name = name or (str(image) if isinstance(image, str | Path) else "the image")
        decoded = _decode(image, name, target)
        prepared = target.prepare(decoded, name)
        return Prepared(prepared.pixels, (*decoded.notes, *prepared.notes))


def _decode(image: ImageLike, name: str, target: Target) -> DecodedImage:
    if isinstance(image, Image.Image):
        check_extent(image.height, image.width, name)
        return from_pillow(image, target.backdrop)
    if not isinstance(image, np.ndarray):
        return decode_image(image, name=name, backdrop=target.backdrop, target=target.decoded_size)
    pixels = image[:, :, None] if image.ndim == 2 else image
    if image.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.size == 0:
        raise DataError(
            f"an image array of {image.dtype}, shape {image.shape}; expected uint8, (H, W), (H, W, 1) or (H, W, 3)"
        )
    check_extent(pixels.shape[0], pixels.shape[1], name)
    return DecodedImage(pixels)
