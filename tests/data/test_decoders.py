"""IDX and CIFAR-10: correct bytes give the correct arrays, others a DataError and no other exception."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.decoders import CIFAR_RECORD, decode_cifar10, decode_idx, rebuild_cifar10
from vitreous.errors import DataError

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def filled(shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)


@given(shape=SHAPES)
def test_an_idx_file_is_decoded(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(decode_idx(idx(filled(shape)), "file", len(shape)), filled(shape))


@given(shape=SHAPES, data=st.data())
def test_every_truncation_is_refused(shape: tuple[int, ...], data: st.DataObject) -> None:
    complete = idx(filled(shape))
    with pytest.raises(DataError, match=r"^file"):
        decode_idx(complete[: data.draw(st.integers(0, len(complete) - 1))], "file", len(shape))


@given(shape=SHAPES, data=st.data())
def test_a_flipped_header_is_refused(shape: tuple[int, ...], data: st.DataObject) -> None:
    flipped = bytearray(idx(filled(shape)))
    at = data.draw(st.integers(0, 3 + 4 * len(shape)))
    flipped[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataError, match=r"^file"):  # any other extent changes the number of elements
        decode_idx(bytes(flipped), "file", len(shape))


@given(data=st.binary(max_size=200), dimensions=st.integers(1, 3))
def test_random_bytes(data: bytes, dimensions: int) -> None:
    try:
        array = decode_idx(data, "file", dimensions)
    except DataError:
        return
    assert idx(array) == data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not an IDX file"),
        (b"\x89PNG\r\n\x1a\n".ljust(20), "is not an IDX file of 3 dimensions: it starts with '89504e47'"),
        (struct.pack(">HBBI", 0, 0x0D, 1, 1) + bytes(20), "starts with '00000d01'"),
        (idx(filled((40,))), "is not an IDX file of 3 dimensions"),
        (idx(filled((2, 3, 3))) + b"!", "declares 2×3×3 elements, but 19 follow"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "but 0 follow"),
        (struct.pack(">HBB3I", 0, 8, 3, 0, 28, 28), "declares 0×28×28 elements"),
    ],
)
def test_the_error_names_the_fault(data: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        decode_idx(data, "train-images", 3)


# --- CIFAR-10 ----------------------------------------------------------------------------------------------------


def test_a_cifar_record_is_a_label_and_three_planes() -> None:
    planes = np.stack([np.full((32, 32), value, np.uint8) for value in (10, 20, 30)])
    planes[0, 0, 1] = 99  # red, first row, second column
    images, labels = decode_cifar10(bytes([7]) + planes.tobytes(), "batch")
    assert labels.tolist() == [7]
    np.testing.assert_array_equal(images[0], planes)


@given(count=st.integers(1, 3), change=st.integers(-CIFAR_RECORD + 1, CIFAR_RECORD - 1).filter(bool))
def test_a_batch_of_another_length_is_refused(count: int, change: int) -> None:
    size = count * CIFAR_RECORD + change
    with pytest.raises(DataError, match=r"batch: .* not complete records"):
        decode_cifar10(bytes(size), "batch")


@given(label=st.integers(0, 255))
def test_labels_are_checked(label: int) -> None:
    data = bytes(CIFAR_RECORD) + bytes([label]) + bytes(CIFAR_RECORD - 1)
    if label < 10:
        assert decode_cifar10(data, "batch")[1].tolist() == [0, label]
    else:
        with pytest.raises(DataError, match=f"batch: image 1 has the label {label}"):
            decode_cifar10(data, "batch")


def test_the_png_packaging_is_rebuilt_to_the_official_layout(tmp_path: Path) -> None:
    """The npm package in small: three images per batch."""
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    images = {name: rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8) for name in names}
    labels = {name: rng.integers(0, 10, 3).tolist() for name in names}
    for name in names:
        Image.fromarray(images[name].reshape(3, 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(json.dumps([label for name in names[:5] for label in labels[name]]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels["test_batch"]))
    rebuilt = dict(rebuild_cifar10(tmp_path))
    assert list(rebuilt) == [f"{name}.bin" for name in names]
    for name in names:
        decoded, decoded_labels = decode_cifar10(rebuilt[f"{name}.bin"], name)
        np.testing.assert_array_equal(decoded.transpose(0, 2, 3, 1), images[name])
        assert decoded_labels.tolist() == labels[name]
