"""One array in a .npy file, which may come from anywhere: nothing is unpickled, and the header is checked first."""

from __future__ import annotations

import math
import tokenize
from typing import IO

import numpy as np

MAX_DIMENSIONS, MAX_EXTENT = 8, 2**40  # of any array; an empty one may declare a large extent


class NpyError(ValueError):
    """Why an array is refused: the end of a sentence that begins with its name."""


def read_npy(stream: IO[bytes], num_bytes: int) -> np.ndarray:
    """Read an untrusted .npy file of `num_bytes`; nothing is unpickled, and the header is checked before the data.

    Raise NpyError where the header or the data are wrong. Errors of the stream itself (zipfile, zlib) pass through.
    """
    shape, fortran_order, dtype = read_header(stream, num_bytes)
    available = num_bytes - stream.tell()
    data = bytearray(available)  # filled in place, so that memory has the array once
    done = 0
    while done < available and (count := stream.readinto(memoryview(data)[done:])):  # type: ignore[attr-defined]
        done += count
    if done != available:
        raise NpyError("is truncated")
    return np.ndarray(shape, dtype, buffer=data, order="F" if fortran_order else "C")


def read_header(stream: IO[bytes], num_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, whether it is in Fortran's order, type) of a .npy file, checked against its length."""
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    except KeyError:
        raise NpyError(f"has the unknown .npy version {version}") from None
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())  # NumPy's messages have several lines
        raise NpyError(f"has a damaged header ({reason:.200})") from None
    if dtype.hasobject:
        raise NpyError("holds pickled Python objects, which are never loaded; save it with dtype=str or a number type")
    available = num_bytes - stream.tell()
    fits = len(shape) <= MAX_DIMENSIONS and all(0 <= extent <= MAX_EXTENT for extent in shape)
    if not fits or dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != available:
        raise NpyError(f"declares the shape {shape!s:.120} of {dtype}, but {available:,} bytes follow")
    return shape, fortran_order, dtype


_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
