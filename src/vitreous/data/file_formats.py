"""The image formats that are read, opened by their first bytes, and checks of headers that cost more than they should.

Opening reads no more than the header. Everything here runs before a pixel is decoded, so that a decompression bomb
costs neither time nor memory.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import IO

from PIL import Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import jpeg_factory
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitreous.errors import DataError
from vitreous.reports.formats import by

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS = "PNG, JPEG, WebP, BMP, GIF or TIFF"
MAX_PIXELS = 50_000_000  # a large camera's photograph; decoded it takes 150 MB
MAX_SIDE = 16_384  # pixels; the largest canvas of browsers, too
MAX_TIFF_PARTS = 4 * MAX_SIDE  # strips of one row each, in four planes; Pillow makes a list of them
TIFF_COMPRESSIONS = {"raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "jpeg", "group3", "group4"}
TIFF_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "I;16", "I;16B", "I;16L", "I;16N"}

_STRIP_OFFSETS, _TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS = 273, 322, 323, 324


def check_extent(height: int, width: int, name: str) -> None:
    """Raise a DataError for an image too large to be decoded or resized."""
    if max(height, width) > MAX_SIDE:
        raise DataError(
            f"{name} is {by(height, width)} pixels; the limit is {MAX_SIDE:,} along each side: crop or shrink it"
        )
    if height * width > MAX_PIXELS:
        raise DataError(f"{name} declares {height * width:,} pixels; the limit is {MAX_PIXELS:,}: crop or shrink it")


def read_header(stream: IO[bytes]) -> Image.Image:
    """Open an image by its first bytes; UnidentifiedImageError for another format.

    Image.open would also warn of more than 89 million pixels, which `check_extent` refuses, and a warning cannot be
    suppressed in one thread alone.
    """
    first = stream.read(4)
    for magic, reader in _READERS.items():
        if first.startswith(magic):
            with contextlib.suppress(SyntaxError):  # Pillow's word for a header that it cannot read
                if check := _BEFORE_OPENING.get(reader):
                    check(stream)
                stream.seek(0)
                return reader(stream, "")
    raise UnidentifiedImageError


def displayed_extent(image: Image.Image) -> tuple[int, int]:
    """Return (height, width) after the turn that EXIF asks for, from the header alone."""
    turned = image.format != "TIFF" and orientation(image) in (5, 6, 7, 8)  # Pillow swaps a TIFF's sides itself
    return image.size if turned else (image.height, image.width)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8. A PNG may have it after its pixels; it counts where they are loaded."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # where getexif would load the pixels
    found = image.getexif().get(0x0112, 1) if image.format not in ("BMP", "GIF") else 1
    return found if isinstance(found, int) else 1


def check_tiff(image: Image.Image, name: str) -> None:
    """Refuse what libtiff would take long or much memory for, and pixels that are not of 8 or 16 bits."""
    if not isinstance(image, TiffImageFile):
        return
    if image.info["compression"] not in TIFF_COMPRESSIONS:
        raise DataError(
            f"{name} is a TIFF compressed by {image.info['compression']!r}; save it with LZW or Deflate instead"
        )
    if image.mode not in TIFF_MODES:
        raise DataError(f"{name} is a TIFF of mode {image.mode!r}; expected 8 or 16 bits per channel: convert it")
    tile = [image.tag_v2.get(tag, 1) for tag in (_TILE_LENGTH, _TILE_WIDTH)]
    if not all(isinstance(side, int) for side in tile) or max(tile) > MAX_SIDE or tile[0] * tile[1] > MAX_PIXELS:
        raise DataError(f"{name} is a TIFF in tiles of {by(*tile)} pixels; save it again in smaller ones")


def _check_gif_frame(stream: IO[bytes]) -> None:
    """Check the first frame's extent, which may exceed the screen's: Pillow would enlarge the screen, and warn."""
    stream.seek(6)
    _width, _height, flags, _, _ = struct.unpack("<HHBBB", _exactly(stream, 7))
    if flags & 128:
        stream.seek(3 << (flags & 7) + 1, 1)  # the palette
    while (kind := stream.read(1)) == b"!":  # extensions: a label, then blocks up to an empty one
        stream.seek(1, 1)
        while length := _exactly(stream, 1)[0]:
            stream.seek(length, 1)
    if kind == b",":
        left, top, width, height = struct.unpack("<HHHH", _exactly(stream, 8))
        check_extent(top + height, left + width, "its first frame")


def _check_tiff_tables(stream: IO[bytes]) -> None:
    """Check how many strips or tiles the first page declares, before Pillow lists them."""
    stream.seek(0)
    order = "<" if _exactly(stream, 4)[:2] == b"II" else ">"
    stream.seek(struct.unpack(f"{order}I", _exactly(stream, 4))[0])
    (count,) = struct.unpack(f"{order}H", _exactly(stream, 2))
    for _ in range(count):
        tag, _kind, number, _value = struct.unpack(f"{order}HHII", _exactly(stream, 12))
        if tag in (_STRIP_OFFSETS, _TILE_OFFSETS) and number > MAX_TIFF_PARTS:
            raise DataError(f"it declares {number:,} strips; the limit is {MAX_TIFF_PARTS:,}")


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise SyntaxError("the header is truncated")
    return data


_Reader = Callable[[IO[bytes], str], Image.Image]
_READERS: dict[bytes, _Reader] = {
    b"\x89PNG": PngImageFile,
    b"\xff\xd8\xff": jpeg_factory,
    b"RIFF": WebPImageFile,
    b"BM": BmpImageFile,
    b"GIF8": GifImageFile,
    b"II*\0": TiffImageFile,
    b"MM\0*": TiffImageFile,
}
_BEFORE_OPENING: dict[_Reader, Callable[[IO[bytes]], None]] = {
    GifImageFile: _check_gif_frame,
    TiffImageFile: _check_tiff_tables,
}
