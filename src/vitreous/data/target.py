"""What images are converted to: a size, channels and a fit. One function, for training and prediction alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitreous.data.digit_normalisation import SIDE, normalise
from vitreous.data.fitting import Fit, cropped_size, fit_image, inner_size, luma, to_channels
from vitreous.data.images import Backdrop, DecodedImage
from vitreous.errors import DataError
from vitreous.reports.formats import by


@dataclass(frozen=True)
class Prepared:
    """An image in the model's size and channels, and notes on what was done to it."""

    pixels: np.ndarray  # uint8 (C, H, W)
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    size: tuple[int, int]  # height, width
    channels: int | None = None  # None: as the file has it
    fit: Fit = "stretch"
    digits: bool = False  # drawn digits: MNIST's normalisation first (digit_normalisation.py)

    @property
    def backdrop(self) -> Backdrop:
        return "contrast" if self.digits else "white"

    @property
    def decoded_size(self) -> tuple[int, int] | None:
        """Return the size below which a decoder may shrink; None: it may not."""
        return None if self.digits else self.size

    def prepare(self, decoded: DecodedImage, name: str) -> Prepared:
        """Convert a decoded image; the notes are on the conversion alone."""
        pixels, notes = decoded.pixels, list[str]()
        if self.digits:
            pixels = _normalise_digit(pixels, notes, name)
            if self.size != (SIDE, SIDE):
                notes.append(f"resized to {by(*self.size)}")
        else:
            if self.channels not in (None, pixels.shape[2]):
                notes.append("gray repeated over three channels" if self.channels == 3 else "colours converted to gray")
            extent = decoded.extent if all(decoded.extent) else pixels.shape[:2]
            if extent != self.size:
                notes.append(self._describe_fit(extent))
        fitted = fit_image(pixels, self.size, self.fit)
        converted = to_channels(fitted, self.channels or fitted.shape[2])
        return Prepared(np.ascontiguousarray(converted.transpose(2, 0, 1)), tuple(notes))

    def _describe_fit(self, extent: tuple[int, int]) -> str:
        if self.fit == "crop" and (kept := cropped_size(extent, self.size)) != extent:
            return f"cropped from {by(*extent)} to the {by(*kept)} in its centre, then resized to {by(*self.size)}"
        if self.fit == "letterbox" and (inner := inner_size(extent, self.size)) != self.size:
            return f"resized from {by(*extent)} to {by(*inner)}, with black borders up to {by(*self.size)}"
        return f"resized from {by(*extent)} to {by(*self.size)}"


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
