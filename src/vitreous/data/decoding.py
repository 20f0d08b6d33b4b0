"""One listed image decoded and converted: what the decoding processes do, and what they send back. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.data.images import UnreadableError, decode_image, image_extent, is_gray, read_image_file
from vitreous.data.items import Item
from vitreous.data.target import Target
from vitreous.errors import DataError


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image in the size and channels of a target, or the sentence that says why there is none."""

    pixels: np.ndarray | None = None  # uint8 (C, H, W)
    error: str | None = None
    may_be_read_later: bool = False  # the file could not be read, whatever is in it
    digest: bytes = b""  # of the source: two files with the same digest show the same picture
    is_gray: bool = False
    notes: tuple[str, ...] = ()  # on the file
    changes: tuple[str, ...] = ()  # what the conversion did


@dataclass(frozen=True, slots=True)
class Measured:
    """The extent of an image, from its header, or the sentence that says why there is none."""

    extent: tuple[int, int] | None = None
    error: str | None = None


def decode_item(item: Item, target: Target) -> Decoded:
    try:
        data = read_image_file(item.path, item.name, item.offset, item.size)
        decoded = decode_image(data, name=item.name, backdrop=target.backdrop, target=target.decoded_size)
        prepared = target.prepare(decoded, item.name)
    except DataError as error:
        return Decoded(error=str(error), may_be_read_later=isinstance(error, UnreadableError))
    except MemoryError:
        return Decoded(error=f"{item.name} needs more memory than there is: shrink it", may_be_read_later=True)
    gray = is_gray(prepared.pixels.transpose(1, 2, 0))
    return Decoded(prepared.pixels, None, False, decoded.digest, gray, decoded.notes, prepared.notes)


def measure_item(item: Item) -> Measured:
    try:
        return Measured(image_extent(item.path, item.name, item.offset, item.size))
    except DataError as error:
        return Measured(error=str(error))


def pack(results: Sequence[Decoded | Measured]) -> tuple[list[list[object]], list[bytes]]:
    """Return results as JSON values, and the pixels beside them."""
    rows: list[list[object]] = []
    pixels: list[bytes] = []
    for one in results:
        if isinstance(one, Measured):
            rows.append([one.extent, one.error])
            continue
        shape = None if one.pixels is None else one.pixels.shape
        rows.append([shape, one.error, one.may_be_read_later, one.digest.hex(), one.is_gray, one.notes, one.changes])
        if one.pixels is not None:
            pixels.append(one.pixels.tobytes())
    return rows, pixels


def unpack_decoded(rows: Sequence[Sequence[Any]], pixels: bytearray) -> list[Decoded]:
    results, start, everything = [], 0, np.frombuffer(pixels, np.uint8)
    for shape, error, later, digest, gray, notes, changes in rows:
        if shape is None:
            results.append(Decoded(error=error, may_be_read_later=later))
            continue
        end = start + math.prod(shape)
        image = everything[start:end].reshape(shape)
        start = end
        results.append(Decoded(image, None, False, bytes.fromhex(digest), gray, tuple(notes), tuple(changes)))
    return results


def unpack_measured(rows: Sequence[Sequence[Any]]) -> list[Measured]:
    return [Measured(None if extent is None else tuple(extent), error) for extent, error in rows]
