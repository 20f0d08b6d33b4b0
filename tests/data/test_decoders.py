"""IDX and CIFAR-10: right bytes give the right arrays, wrong ones a sentence, and never any other exception."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.data import decoders
from vitreous.data.decoders import CIFAR_RECORD, decode_cifar10, decode_idx, rebuild_cifar10
from vitreous.errors import DataError

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def filled(shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)


@given(shape=SHAPES, zipped=st.booleans())
def test_an_idx_file_comes_back_as_it_was(shape: tuple[int, ...], zipped: bool) -> None:
    array = filled(shape)
    data = gzip.compress(idx(array), 1) if zipped else idx(array)
    np.testing.assert_array_equal(decode_idx(data, "file", len(shape)), array)


@given(shape=SHAPES, zipped=st.booleans(), data=st.data())
def test_every_truncation_is_refused(shape: tuple[int, ...], zipped: bool, data: st.DataObject) -> None:
    whole = gzip.compress(idx(filled(shape)), 1) if zipped else idx(filled(shape))
    keep = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match=r"^file"):
        decode_idx(whole[:keep], "file", len(shape))


@given(shape=SHAPES, data=st.data())
def test_a_flipped_header_is_refused_or_means_the_same_size(shape: tuple[int, ...], data: st.DataObject) -> None:
    whole = bytearray(idx(filled(shape)))
    at = data.draw(st.integers(0, 3 + 4 * len(shape)))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataError, match=r"^file"):  # any other extent changes the number of elements
        decode_idx(bytes(whole), "file", len(shape))


@given(data=st.binary(max_size=200), dimensions=st.integers(1, 3))
def test_any_bytes_at_all(data: bytes, dimensions: int) -> None:
    try:
        array = decode_idx(data, "file", dimensions)
    except DataError:
        return
    assert idx(array) == data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "0 bytes are too few"),
        (b"\x89PNG\r\n\x1a\n", "is not an IDX file: it starts with 89504e47"),
        (struct.pack(">HBBI", 0, 0x0D, 1, 1) + b"....", "element type is 0x0d"),
        (idx(filled((4,))), r"dimensions 1 \(labels\); expected 3 \(images\)"),
        (idx(filled((2, 3, 3))) + b"!", "is too long: 35 bytes, but 2×3×3 elements need 34"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "is truncated"),
        (struct.pack(">HBB3I", 0, 8, 3, 0, 28, 28), "has no elements"),
    ],
)
def test_the_sentence_names_the_fault(data: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        decode_idx(data, "train-images", 3)


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MAX_IDX_BYTES", 1000)
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        decode_idx(gzip.compress(bytes(100_000)), "file", 3)


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
    with pytest.raises(DataError, match=r"batch: .* not a whole number"):
        decode_cifar10(bytes(size), "batch")


@given(label=st.integers(0, 255))
def test_labels_are_checked(label: int) -> None:
    data = bytes(CIFAR_RECORD) + bytes([label]) + bytes(CIFAR_RECORD - 1)
    if label < 10:
        assert decode_cifar10(data, "batch")[1].tolist() == [0, label]
    else:
        with pytest.raises(DataError, match=f"batch: image 1 has the label {label}"):
            decode_cifar10(data, "batch")


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The npm packaging in small: three images a batch."""
    monkeypatch.setattr(decoders, "CIFAR_BATCH", 3)
    rng = np.random.default_rng(0)
    batches = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        images = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
        Image.fromarray(images.reshape(3, 1024, 3)).save(tmp_path / f"{name}.png")
        batches[name] = (images, rng.integers(0, 10, 3, dtype=np.uint8))
    train = [int(label) for name, (_, labels) in batches.items() if name != "test_batch" for label in labels]
    (tmp_path / "train_lables.json").write_text(json.dumps(train))
    (tmp_path / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))
    return tmp_path, batches


def test_the_png_packaging_is_rebuilt_to_the_official_layout(
    packed: tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]],
) -> None:
    folder, batches = packed
    rebuilt = dict(rebuild_cifar10(folder))
    assert set(rebuilt) == {f"{name}.bin" for name in batches}
    for name, (images, labels) in batches.items():
        decoded, decoded_labels = decode_cifar10(rebuilt[f"{name}.bin"], name)
        np.testing.assert_array_equal(decoded.transpose(0, 2, 3, 1), images)
        np.testing.assert_array_equal(decoded_labels, labels)


@pytest.mark.parametrize("labels", ["[1, 2]", "[1, 2, 10]", "[1, 2, -1]", '["a", "b", "c"]', "[[1], [2, 3]]", "{", "7"])
def test_wrong_labels_in_the_packaging(
    packed: tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]], labels: str
) -> None:
    folder, _ = packed
    (folder / "test_lables.json").write_text(labels)
    with pytest.raises(DataError, match=r"test_lables\.json"):
        dict(rebuild_cifar10(folder))
