"""Decoding of untrusted image files, and the two conversions (size, channels) that every image goes through.

Pillow opens PNG, JPEG, WebP and BMP only, whatever the file's name, and opening reads no more than the header. Its size
is checked before anything is decoded, so that a decompression bomb costs neither time nor memory. torch is imported
only where it is needed: a server that decodes drawn digits does without it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.JpegImagePlugin import jpeg_factory
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitreous.downloads.files import open_plain
from vitreous.errors import DataError
from vitreous.reports.formats import by

if TYPE_CHECKING:
    from torch import Tensor

_READERS = {b"\x89PNG": PngImageFile, b"\xff\xd8\xff": jpeg_factory, b"RIFF": WebPImageFile, b"BM": BmpImageFile}
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MAX_FILE_BYTES = 32 * 1024**2
MAX_PIXELS = 50_000_000  # a large camera's photograph; decoded it takes 150 MB
MAX_SIDE = 16_384  # pixels; the largest canvas of browsers, too
MAX_TINT = 8  # of 255 levels between the channels of an image that counts as gray
MAX_JPEG_SCANS = 100  # a progressive JPEG has about ten; each costs a pass over the whole image

Backdrop = Literal["white", "contrast"]


@dataclass(frozen=True)
class DecodedImage:
    pixels: np.ndarray  # uint8 (H, W, 1) or (H, W, 3)
    notes: tuple[str, ...] = ()


def decode_image(
    source: Path | str | bytes,
    *,
    name: str | None = None,
    backdrop: Backdrop = "white",
    max_bytes: int = MAX_FILE_BYTES,
) -> DecodedImage:
    """Decode a file, or the bytes of one, to one channel if it is grayscale and to three otherwise.

    Transparent parts are laid over white; `backdrop="contrast"` takes black instead where the drawing is light.
    """
    name = name or ("the image" if isinstance(source, bytes) else str(source))
    data = source if isinstance(source, bytes) else _read_file(Path(source), name, max_bytes)
    if len(data) > max_bytes:
        raise DataError(f"{name} is too large; images of up to {max_bytes} bytes are read")
    with _open(data, name) as image:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # a camera's JPEG with a second, smaller image inside
            raise DataError(f"{name} is an animation of {frames} frames; expected a single image")
        image.load()
        return from_pillow(ImageOps.exif_transpose(image), backdrop)


def image_extent(path: Path) -> tuple[int, int]:
    """Return (height, width) as displayed, from the header alone."""
    with _open(_read_file(path, str(path), MAX_FILE_BYTES), str(path)) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # EXIF orientation: on its side
        return image.size if turned else (image.height, image.width)


def declared_extent(data: bytes) -> tuple[int, int]:
    """Return (height, width) from the header; (0, 0) where it is damaged or of another format."""
    try:
        with _read_header(data) as image:
            return image.height, image.width
    except Exception:  # as in _open
        return 0, 0


def _read_file(path: Path, name: str, max_bytes: int) -> bytes:
    try:
        with open_plain(path) as stream:
            return stream.read(max_bytes + 1)
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; expected an image file") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {name}") from None
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from None


def check_extent(height: int, width: int, name: str) -> None:
    """Raise a DataError for an image too large to be decoded or resized."""
    if max(height, width) > MAX_SIDE:
        raise DataError(
            f"{name} is {by(height, width)} pixels; the limit is {MAX_SIDE:,} along each side: crop or shrink it"
        )
    if height * width > MAX_PIXELS:
        raise DataError(f"{name} declares {height * width:,} pixels; the limit is {MAX_PIXELS:,}: crop or shrink it")


def _read_header(data: bytes) -> Image.Image:
    """Open an image by its first bytes.

    Image.open would also warn of more than 89 million pixels, which `check_extent` refuses, and a warning cannot be
    suppressed in one thread alone.
    """
    for magic, reader in _READERS.items():
        if data.startswith(magic):
            with contextlib.suppress(SyntaxError):  # Pillow's word for a header that it cannot read
                return reader(io.BytesIO(data), "")
    raise UnidentifiedImageError


@contextlib.contextmanager
def _open(data: bytes, name: str) -> Iterator[Image.Image]:
    """Yield an image of which only the header has been read; turn any error, then or later, into a DataError."""
    try:
        with _read_header(data) as image:
            check_extent(image.height, image.width, name)
            if image.format == "JPEG" and data.count(b"\xff\xda") > MAX_JPEG_SCANS:
                raise DataError(f"{name} is a JPEG of more than {MAX_JPEG_SCANS} scans; save it again")
            if image.format == "PNG" and b"IEND" not in data:
                raise DataError(f"{name} is truncated: the end mark of a PNG file is missing")
            yield image
    except DataError:
        raise
    except Image.DecompressionBombError:  # raised by Pillow itself for WebP
        raise DataError(f"{name} declares too many pixels; the limit is {MAX_PIXELS:,}: crop or shrink it") from None
    except UnidentifiedImageError:
        problem = "is not a PNG, JPEG, WebP or BMP image, whatever its name, or is damaged" if data else "is empty"
        raise DataError(f"{name} {problem}") from None
    except Exception as error:  # Pillow raises many types of exception on damaged files
        raise DataError(f"{name} cannot be decoded: {str(error).rstrip('.')}; is the file complete?") from None


# --- Pillow's modes → eight bits, one or three channels -----------------------------------------------------------


def from_pillow(image: Image.Image, backdrop: Backdrop = "white") -> DecodedImage:
    if image.mode.startswith("I"):  # the modes of 16 bits per pixel
        deep = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
        shallow = ((deep + 128) // 257).astype(np.uint8)  # 65535 / 255 = 257; rounded
        return DecodedImage(shallow[:, :, None], ("16 bits per pixel reduced to 8",))
    if image.has_transparency_data:
        return _flatten(np.array(image.convert("RGBA")), backdrop)
    if image.mode in ("1", "L"):
        return DecodedImage(np.array(image.convert("L"))[:, :, None])
    return DecodedImage(np.array(image.convert("RGB")))


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
    return DecodedImage(pixels[:, :, :1] if gray else pixels, notes)


def is_gray(image: Tensor) -> bool:
    """Return whether a (C, H, W) image has no colour but the invisible tint that lossy formats leave."""
    return image.shape[0] == 1 or bool((image.amax(0) - image.amin(0)).max() <= MAX_TINT)


def luma(pixels: np.ndarray) -> np.ndarray:
    """Return the gray (H, W) of an RGB (H, W, 3) uint8 image: ITU-R 601 in integers, as in Pillow and JavaScript."""
    return np.array(Image.fromarray(pixels).convert("L"))


# --- the conversions every image goes through, in training and in prediction alike --------------------------------


def convert(images: Tensor, size: tuple[int, int], channels: int) -> Tensor:
    """Convert uint8 (n, C, H, W) to (n, channels, *size)."""
    if channels < images.shape[1]:  # resize the smaller number of channels
        return resize(to_channels(images, channels), size)
    return to_channels(resize(images, size), channels)


def to_channels(images: Tensor, channels: int) -> Tensor:
    """Convert uint8 (n, C, H, W) with C of 1 or 3 to (n, channels, H, W): to gray by luma, to colour by repetition."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).byte()[:, None]


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize uint8 (n, C, H, W) to (n, C, *size): bilinear with antialiasing, 1024 at a time to bound the memory."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    import torch
    from torch.nn import functional as F

    resized = [
        F.interpolate(part.float(), size=size, mode="bilinear", antialias=True).round_().clamp_(0, 255).to(torch.uint8)
        for part in images.split(1024)
    ]
    return torch.cat(resized)
