"""Decoding of untrusted image files, and the conversions (size, channels) that every image goes through.

The formats are those of `file_formats.py`, whatever a file's name. Its size is checked before anything is decoded.
torch is imported only where it is needed: a server that decodes drawn digits, and processes that decode, do without.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitreous.data.file_formats import (
    FORMATS,
    MAX_PIXELS,
    MAX_SIDE,
    SUFFIXES,
    check_extent,
    check_tiff,
    displayed_extent,
    orientation,
    read_header,
)
from vitreous.data.fitting import Fit, fit_image, luma, to_channels
from vitreous.downloads.files import open_plain
from vitreous.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "MAX_FILE_BYTES", "MAX_PIXELS", "MAX_SIDE", "SUFFIXES", "Backdrop", "DecodedImage", "check_extent", "convert",
    "declared_extent", "decode_image", "from_pillow", "image_extent", "is_gray", "luma", "read_image_file",
]  # fmt: skip

MAX_FILE_BYTES = 32 * 1024**2
MAX_TINT = 8  # of 255 levels between the channels of an image that counts as gray
MAX_JPEG_SCANS = 100  # a progressive JPEG has about ten; each costs a pass over the whole image
DRAFT = 2  # a JPEG is decoded at a half, a quarter or an eighth where that is at least so many times the target's size

Backdrop = Literal["white", "contrast"]
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip


@dataclass(frozen=True)
class DecodedImage:
    pixels: np.ndarray  # uint8 (H, W, 1) or (H, W, 3)
    notes: tuple[str, ...] = ()
    extent: tuple[int, int] = (0, 0)  # (height, width) of the image itself: a JPEG may be decoded at a fraction of it
    digest: bytes = b""  # of the source: the bytes of a JPEG, the pixels of anything else


def decode_image(
    source: Path | str | bytes,
    *,
    name: str | None = None,
    backdrop: Backdrop = "white",
    max_bytes: int = MAX_FILE_BYTES,
    target: tuple[int, int] | None = None,
) -> DecodedImage:
    """Decode a file, or the bytes of one, to one channel if it is grayscale and to three otherwise.

    Transparent parts are laid over white; `backdrop="contrast"` takes black instead where the drawing is light. An
    image that is to be shrunk to `target` (height, width) is decoded at a fraction of its size where a JPEG allows it.
    """
    name = name or ("the image" if isinstance(source, bytes) else str(source))
    data = source if isinstance(source, bytes) else read_image_file(source, name, max_bytes=max_bytes)
    if len(data) > max_bytes:
        raise DataError(f"{name} is too large; images of up to {max_bytes} bytes are read")
    with _open(io.BytesIO(data), name) as image:
        _check_content(image, data, name)
        notes = _frame_notes(image, name)
        is_jpeg, extent = image.format in ("JPEG", "MPO"), None
        if is_jpeg:
            extent = displayed_extent(image)
            if target is not None:
                height, width = target if orientation(image) < 5 else target[::-1]
                image.draft(None, (DRAFT * width, DRAFT * height))
        image.load()  # turns a TIFF by itself
        turn = _TURNS.get(orientation(image)) if image.format != "TIFF" else None
        decoded = from_pillow(image if turn is None else image.transpose(turn), backdrop)
        digest = _digest(data) if is_jpeg else image_digest(decoded.pixels)
        return DecodedImage(decoded.pixels, (*notes, *decoded.notes), extent or decoded.extent, digest)


def image_extent(
    path: Path | str, name: str | None = None, offset: int = 0, size: int | None = None
) -> tuple[int, int]:
    """Return (height, width) as displayed, from the header alone; of a part of a file where an offset is given."""
    name = name or str(path)
    with _reading(path, name), open_plain(Path(path)) as stream:
        too_large = os.fstat(stream.fileno()).st_size > MAX_FILE_BYTES
        part: IO[bytes] = stream
        if offset or size is not None or too_large:  # a larger file is refused once it is decoded
            stream.seek(offset)
            part = io.BytesIO(stream.read(MAX_FILE_BYTES if size is None else min(size, MAX_FILE_BYTES)))
        with _open(part, name) as image:
            return displayed_extent(image)


def declared_extent(data: bytes) -> tuple[int, int]:
    """Return (height, width) from the header; (0, 0) where it is damaged or of another format."""
    try:
        with read_header(io.BytesIO(data)) as image:
            return image.height, image.width
    except Exception:  # as in _open
        return 0, 0


def read_image_file(
    path: Path | str, name: str, offset: int = 0, size: int | None = None, max_bytes: int = MAX_FILE_BYTES
) -> bytes:
    """Return the bytes of an image file, or of a part of a file; one byte too many where it is too large."""
    with _reading(path, name), open_plain(Path(path)) as stream:
        rest = os.fstat(stream.fileno()).st_size - offset if size is None else size
        stream.seek(offset)
        return stream.read(max(0, min(rest, max_bytes + 1)))  # not more: `read` would allocate all that it is given


class UnreadableError(DataError):
    """The file itself could not be read, whatever is in it: it may be readable later."""


@contextlib.contextmanager
def _reading(path: Path | str, name: str) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; expected an image file") from None
    except FileNotFoundError:
        if os.path.islink(path):
            raise DataError(f"{name} is a link to a file that does not exist") from None
        raise DataError(f"there is no file {name}") from None
    except OSError as error:
        raise UnreadableError(f"cannot read {name}: {error.strerror or error}") from None


def _check_content(image: Image.Image, data: bytes, name: str) -> None:
    """Refuse what takes long to decode, or is not complete, though its header is as it should be."""
    scanned = image.format in ("JPEG", "MPO") or (image.format == "TIFF" and image.info["compression"] == "jpeg")
    if scanned and data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise DataError(f"{name} is a JPEG of more than {MAX_JPEG_SCANS} scans; save it again")
    if image.format == "PNG" and b"IEND" not in data:
        raise DataError(f"{name} is truncated: the end mark of a PNG file is missing")


def _frame_notes(image: Image.Image, name: str) -> tuple[str, ...]:
    if image.format in ("GIF", "TIFF"):
        part = "frame of an animated GIF" if image.format == "GIF" else "page of a TIFF of several"
        return (f"only the first {part} is read",) if getattr(image, "is_animated", False) else ()
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's JPEG with a second, smaller image inside
        raise DataError(f"{name} is an animation of {frames} frames; expected a single image")
    return ()


@contextlib.contextmanager
def _open(stream: IO[bytes], name: str) -> Iterator[Image.Image]:
    """Yield an image of which only the header has been read; turn any error, then or later, into a DataError."""
    try:
        with read_header(stream) as image:
            check_extent(image.height, image.width, name)
            check_tiff(image, name)
            yield image
    except DataError as error:
        raise DataError(str(error) if name in str(error) else f"{name} cannot be used: {error}") from None
    except Image.DecompressionBombError:  # raised by Pillow itself for WebP
        raise DataError(f"{name} declares too many pixels; the limit is {MAX_PIXELS:,}: crop or shrink it") from None
    except UnidentifiedImageError:
        stream.seek(0)
        problem = f"is not a {FORMATS} image, whatever its name, or is damaged" if stream.read(1) else "is empty"
        raise DataError(f"{name} {problem}") from None
    except Exception as error:  # Pillow raises many types of exception on damaged files
        raise DataError(f"{name} cannot be decoded: {str(error).rstrip('.')}; is the file complete?") from None


# --- Pillow's modes → eight bits, one or three channels -----------------------------------------------------------


def from_pillow(image: Image.Image, backdrop: Backdrop = "white") -> DecodedImage:
    extent = (image.height, image.width)
    if image.mode.startswith("I"):  # the modes of 16 bits per pixel
        deep = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
        shallow = ((deep + 128) // 257).astype(np.uint8)  # 65535 / 255 = 257; rounded
        return DecodedImage(shallow[:, :, None], ("16 bits per pixel reduced to 8",), extent)
    if image.has_transparency_data:
        return _flatten(np.array(image.convert("RGBA")), backdrop)
    if image.mode in ("1", "L"):
        return DecodedImage(np.asarray(image if image.mode == "L" else image.convert("L"))[:, :, None], (), extent)
    return DecodedImage(np.asarray(image if image.mode == "RGB" else image.convert("RGB")), (), extent)


def _flatten(rgba: np.ndarray, backdrop: Backdrop) -> DecodedImage:
    pixels, alpha = rgba[:, :, :3], rgba[:, :, 3].astype(np.uint16)  # 255·255 + 127 is the largest number below
    notes: tuple[str, ...] = ()
    if alpha.min() < 255:
        is_light = 2 * int((luma(pixels) * alpha).sum(dtype=np.int64)) > 255 * int(alpha.sum(dtype=np.int64))
        shade = 0 if backdrop == "contrast" and is_light else 255
        under = shade * (255 - alpha) + 127
        for channel in range(3):  # in place, one at a time: a third of the memory
            pixels[:, :, channel] = (pixels[:, :, channel] * alpha + under) // 255
        notes = (f"transparent parts laid over {'white' if shade else 'black'}",)
    gray = (pixels == pixels[:, :, :1]).all()
    height, width = alpha.shape
    return DecodedImage(pixels[:, :, :1] if gray else pixels, notes, (height, width))


def is_gray(pixels: np.ndarray) -> bool:
    """Return whether an (H, W, C) image has no colour but the invisible tint that lossy formats leave."""
    if pixels.shape[2] == 1:
        return True
    red, green, blue = pixels[:, :, 0], pixels[:, :, 1], pixels[:, :, 2]  # faster than a reduction over three
    most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    return bool((most - least).max() <= MAX_TINT)


def image_digest(pixels: np.ndarray) -> bytes:
    """Return the digest of an (H, W, C) image as it is seen: gray may be stored in colour."""
    return _digest((to_channels(pixels, 1) if is_gray(pixels) else pixels).transpose(2, 0, 1).tobytes())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


# --- the conversions every image goes through, in training and in prediction alike --------------------------------


def convert(images: Tensor, size: tuple[int, int], channels: int, fit: Fit = "stretch") -> Tensor:
    """Convert uint8 (n, C, H, W) to (n, channels, *size)."""
    import torch

    if tuple(images.shape[1:]) == (channels, *size):
        return images
    converted = np.empty((len(images), channels, *size), np.uint8)
    for row, image in zip(converted, images.numpy(), strict=True):
        row[:] = to_channels(fit_image(image.transpose(1, 2, 0), size, fit), channels).transpose(2, 0, 1)
    return torch.from_numpy(converted)
