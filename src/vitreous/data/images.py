"""A person's image file → pixels, guarded; and the two conversions (size, channels) that every image goes through.

What a file declares (format, width, height, frames) is read and judged before Pillow decodes anything, so that a bomb
costs neither time nor memory. Only PNG, JPEG, WebP and BMP are opened at all, whatever the file's name says.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LARGEST_FILE = 32 * 1024**2  # bytes
MOST_PIXELS = 50_000_000  # a large camera's photograph; decoded it takes 150 MB
FAINTEST_TINT = 8  # levels of 255 between the channels
MOST_JPEG_SCANS = 100  # a progressive JPEG has about ten; each costs a pass over the whole picture

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
    largest_file: int = LARGEST_FILE,
) -> DecodedImage:
    """Decode a file, or the bytes of one; grayscale files give one channel, all others three.

    Transparent parts are laid over white; `backdrop="contrast"` takes black instead where what is drawn is light.
    """
    name = name or ("the image" if isinstance(source, bytes) else str(source))
    data = source if isinstance(source, bytes) else _read_file(Path(source), name, largest_file)
    if len(data) > largest_file:
        raise DataError(f"{name} has {len(data)} bytes; images of up to {largest_file} bytes are read")
    _judge(data, name)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _refuse_animation(opened, name)
            opened.load()
            return from_pillow(ImageOps.exif_transpose(opened), backdrop)
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise all sorts on damaged files: the file is at fault
        raise DataError(f"{name} cannot be decoded: {_reason(error)}; is the file whole?") from None


def _reason(error: Exception) -> str:
    # Pillow's "cannot identify image file <_io.BytesIO ...>" tells a person nothing
    return "its contents are damaged" if isinstance(error, UnidentifiedImageError) else str(error).rstrip(".")


def _read_file(path: Path, name: str, largest: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(largest + 1)
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; expected an image file") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None


# --- what a file declares of itself ------------------------------------------------------------------------------


def image_extent(path: Path) -> tuple[int, int]:
    """(height, width) as a person sees it, from the header alone."""
    name = str(path)
    data = _read_file(path, name, LARGEST_FILE)
    _judge(data, name)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            width, height = opened.size
            turned = opened.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # EXIF orientation: on its side
    except Exception as error:
        raise DataError(f"{name} cannot be decoded: {_reason(error)}; is the file whole?") from None
    return (width, height) if turned else (height, width)


def _judge(data: bytes, name: str) -> None:
    """Refuse what is not one of our formats, is cut short within its header, or declares too many pixels."""
    try:
        kind, width, height = declared_extent(data)
    except (struct.error, IndexError):
        raise DataError(f"{name} is truncated: it ends within the image's header") from None
    if kind is None:
        if not data:
            raise DataError(f"{name} is empty; expected a PNG, JPEG, WebP or BMP image")
        raise DataError(
            f"{name} is not a PNG, JPEG, WebP or BMP image, whatever its name says; those are the formats read"
        )
    if width < 1 or height < 1:
        raise DataError(f"{name} declares {width}×{height} pixels; an image has at least one")
    if width * height > MOST_PIXELS:
        raise DataError(f"{name} declares {width}×{height} pixels; images of up to {MOST_PIXELS:,} pixels are read")
    if kind == "JPEG" and data.count(b"\xff\xda") > MOST_JPEG_SCANS:
        raise DataError(f"{name} is a JPEG of more than {MOST_JPEG_SCANS} scans; save it anew")
    if kind == "PNG" and b"IEND" not in data:
        raise DataError(f"{name} is truncated: the end mark of a PNG file is missing")


def declared_extent(data: bytes) -> tuple[str | None, int, int]:
    """(format, width, height) by the file's first bytes; (None, 0, 0) for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", *struct.unpack(">II", data[16:24])
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", *_jpeg_extent(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP", *_webp_extent(data)
    if data.startswith(b"BM"):
        if struct.unpack("<I", data[14:18])[0] == 12:  # OS/2's header
            return "BMP", *struct.unpack("<HH", data[18:22])
        width, height = struct.unpack("<ii", data[18:26])
        return "BMP", abs(width), abs(height)  # a negative height: rows from top to bottom
    return None, 0, 0


def _jpeg_extent(data: bytes) -> tuple[int, int]:
    position = 2
    while True:
        marker, length = struct.unpack(">HH", data[position : position + 4])
        if 0xFFC0 <= marker <= 0xFFCF and marker not in (0xFFC4, 0xFFC8, 0xFFCC):  # start of frame
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return width, height
        if marker == 0xFFFF:  # fill byte
            position += 1
        elif marker < 0xFFC0 or length < 2:
            return 0, 0
        else:
            position += 2 + length


def _webp_extent(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return (width, height) if len(data) >= 30 else (0, 0)
    if kind == b"VP8L":
        bits = struct.unpack("<I", data[21:25])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _refuse_animation(image: Image.Image, name: str) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's JPEG with a second, smaller picture inside
        raise DataError(f"{name} is an animation of {frames} frames; expected a single picture")


# --- Pillow's many modes → eight bits, one or three channels ------------------------------------------------------


def from_pillow(image: Image.Image, backdrop: Backdrop = "white") -> DecodedImage:
    if image.mode.startswith("I"):  # 16 bits a pixel, in several spellings
        deep = np.asarray(image).astype(np.int64)
        shallow = np.clip((deep + 128) // 257, 0, 255).astype(np.uint8)  # 65535 / 255 = 257; rounded
        return DecodedImage(shallow[:, :, None], ("16 bits a pixel reduced to 8",))
    if image.has_transparency_data:
        return _flattened(image.convert("RGBA"), backdrop)
    if image.mode in ("1", "L"):
        return DecodedImage(np.array(image.convert("L"))[:, :, None])
    return DecodedImage(np.array(image.convert("RGB")))


def _flattened(image: Image.Image, backdrop: Backdrop) -> DecodedImage:
    pixels = np.array(image)
    alpha = pixels[:, :, 3]
    if alpha.min() == 255:
        return DecodedImage(_without_equal_channels(pixels[:, :, :3]))
    shade = 255
    if backdrop == "contrast":
        weight = alpha.astype(np.float64)
        light = (luma(pixels[:, :, :3]) * weight).sum() > 127.5 * weight.sum()
        shade = 0 if light else 255
    weights = alpha.astype(np.int64)[:, :, None]
    mixed = (pixels[:, :, :3] * weights + shade * (255 - weights) + 127) // 255
    colour = "white" if shade else "black"
    flat = _without_equal_channels(mixed.astype(np.uint8))
    return DecodedImage(flat, (f"transparent parts laid over {colour}",))


def _without_equal_channels(pixels: np.ndarray) -> np.ndarray:
    return pixels[:, :, :1] if (pixels == pixels[:, :, :1]).all() else pixels


def is_gray(image: Tensor) -> bool:
    """Whether a (C, H, W) image shows no colour: lossy formats leave a tint of a few levels, which nobody sees."""
    return image.shape[0] == 1 or bool((image.amax(0) - image.amin(0)).max() <= FAINTEST_TINT)


def luma(pixels: np.ndarray) -> np.ndarray:
    """Gray (H, W) of RGB (H, W, 3), uint8: ITU-R 601 in integers, rounded as Pillow does, so that any language can."""
    red, green, blue = (pixels[:, :, channel].astype(np.int32) for channel in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)


# --- the conversions every image goes through, in training and in prediction alike --------------------------------


def convert(images: Tensor, size: tuple[int, int], channels: int) -> Tensor:
    """uint8 (n, C, H, W) → (n, channels, *size), resized while there are fewer channels to resize."""
    if channels < images.shape[1]:
        return resize(to_channels(images, channels), size)
    return to_channels(resize(images, size), channels)


def to_channels(images: Tensor, channels: int) -> Tensor:
    """uint8 (n, C, H, W) with C of 1 or 3 → (n, channels, H, W): to gray by luma, to colour by repetition."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8)[:, None]


def resize(images: Tensor, size: tuple[int, int], chunk: int = 1024) -> Tensor:
    """uint8 (n, C, H, W) → (n, C, *size): bilinear, widened to a triangle over what it averages when shrinking."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    resized = [
        F.interpolate(part.float(), size=size, mode="bilinear", antialias=True).round_().clamp_(0, 255).to(torch.uint8)
        for part in torch.split(images, chunk)
    ]
    return torch.cat(resized)
