""".npz and .npy files: the names that people give to arrays, and what their values mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.config import DataConfig
from vitreous.data import npz
from vitreous.data.array_names import assign_roles, parse_name
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 5, 7, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2


def load(path: Path) -> Dataset:
    return load_dataset(DataConfig(name=str(path), val_fraction=0))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("images", ("", "images", None)), ("X", ("", "images", None)), ("y", ("", "labels", None)),
        ("x_train", ("", "images", "train")), ("yTest", ("", "labels", "test")),
        ("train_images", ("", "images", "train")),
        ("validation_labels", ("", "labels", "val")), ("mnist-test-labels", ("mnist", "labels", "test")),
        ("target_names", ("", "class_names", None)), ("my_data", ("my", "images", None)),
        ("index", None), ("matrix", None), ("train_x_test", None), ("DESCR", None),
    ],
)  # fmt: skip
def test_names(name: str, parts: tuple[str, str, str | None] | None) -> None:
    found = parse_name(name)
    assert (found and found[:3]) == parts


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["images", "data", "target", "target_names", "DESCR"], ["images", "target", "target_names"]),
        (["x_train", "y_train", "x_test", "y_test"], ["x_train", "y_train", "x_test", "y_test"]),
        (["a_images", "a_labels", "class_names"], ["a_images", "a_labels", "class_names"]),
        (["X", "y", "other_labels"], ["X", "y"]),
        (["arr_0", "arr_1"], ["arr_0", "arr_1"]),
    ],
)
def test_roles(names: list[str], expected: list[str]) -> None:
    assert sorted(assign_roles(names).values()) == sorted(expected)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["foo"], "there are no training images, only 'foo'; expected images and labels, X and y, or x_train"),
        ([], "there are no training images, only nothing"),
        (
            ["arr_0", "arr_1", "arr_2", "arr_3"],
            "there are no training images, only 'arr_0', 'arr_1', 'arr_2' and 'arr_3'",
        ),
        (["X"], "there is 'X', but no labels of the training set"),
        (["x_test", "y_test"], "there are no training images"),
        (["X", "y", "X_test"], "there is 'X_test', but no labels of the test set"),
        (["X", "y", "y_val"], "there is 'y_val', but no images of the val set"),
        (["X", "x_train", "y"], "there are 'X' and 'x_train', and both may be the training set; keep one"),
        (["a_x", "a_y", "b_x", "b_y"], "there are arrays of 'a' and 'b'; keep one of them, or name one of its files"),
    ],
)
def test_roles_that_are_unclear(names: list[str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        assign_roles(names)


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X", "y", "X_test", "y_test"),
        ("data", "target", "test_data", "test_target"),
    ],
)
def test_the_names_of_keras_medmnist_and_scikit_learn(tmp_path: Path, names: tuple[str, str, str, str]) -> None:
    values = (PIXELS[:16], LABELS[:16, None], PIXELS[16:], LABELS[16:, None])
    data = load(save(tmp_path, **dict(zip(names, values, strict=True))))
    np.testing.assert_array_equal(data.train.images.numpy(), PIXELS[:16].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test.images.numpy(), PIXELS[16:].transpose(0, 3, 1, 2))
    assert data.test.labels.tolist() == [0, 1, 0, 1]


def test_medmnist_has_a_validation_set(tmp_path: Path) -> None:
    parts = {"train": slice(12), "val": slice(12, 16), "test": slice(16, 20)}
    arrays = {f"{split}_images": PIXELS[rows] for split, rows in parts.items()}
    labels = {f"{split}_labels": LABELS[rows, None].astype(np.uint8) for split, rows in parts.items()}
    data = load_dataset(DataConfig(name=str(save(tmp_path, **arrays, **labels)), val_fraction=0.5))
    assert [len(split) for split in (data.train, data.val, data.test)] == [12, 4, 4]


def test_positional_arrays_one_hot_labels_and_levels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", PIXELS, LABELS)
    reference = load(tmp_path / "a.npz")
    one_hot = load(save(tmp_path, X=PIXELS, y=np.eye(3, dtype=np.float32)[LABELS], class_names=np.array(["a", "b"])))
    assert "one-hot y read as class indices" in one_hot.notes
    assert one_hot.class_names == ("a", "b")
    for images, note in (
        (PIXELS.astype(np.int32), None),
        (PIXELS.astype(np.float64) / 255, None),
        (PIXELS.astype(np.float16), "X goes from 0 to 255: read as levels from 0 to 255"),
    ):
        data = load(save(tmp_path, X=images, y=LABELS))
        assert torch.equal(data.train.images, reference.train.images)
        assert note is None or note in data.notes
    black_and_white = load(save(tmp_path, X=PIXELS > 127, y=LABELS))
    assert set(black_and_white.train.images.unique().tolist()) == {0, 255}


def test_flat_rows_are_squares_line_by_line(tmp_path: Path) -> None:
    square = RNG.integers(0, 256, (20, 8, 8), dtype=np.uint8)
    data = load(save(tmp_path, X=square.reshape(20, 64), y=LABELS))
    assert torch.equal(data.train.images, load(save(tmp_path, X=square, y=LABELS)).train.images)
    assert "each row of X, 64 values, read as 8×8 pixels, line by line" in data.notes
    for shape in ((20, 49), (20, 65), (20, 3072)):
        with pytest.raises(DataError, match=r"rows that are no square image; .* X\.reshape\(-1, height, width, 3\)"):
            load(save(tmp_path, X=np.zeros(shape, np.uint8), y=LABELS))


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        ("X", "y", "X.npy"), ("X", "y", "y.npy"), ("images", "labels", ""),
        ("toy_images", "toy_labels", "toy_images.npy"),
        ("x_train", "y_train", "x_train.npy"), ("train_data", "train_target", ""),
    ],
)  # fmt: skip
def test_pairs_of_npy_files(tmp_path: Path, images: str, labels: str, named: str) -> None:
    np.save(tmp_path / f"{images}.npy", PIXELS)
    np.save(tmp_path / f"{labels}.npy", LABELS)
    if named:
        np.save(tmp_path / "another_images.npy", PIXELS[:3])  # of another prefix
    data = load(tmp_path / named)
    np.testing.assert_array_equal(
        np.sort(torch.cat([data.train.images, data.test.images]).numpy(), axis=0),
        np.sort(PIXELS.transpose(0, 3, 1, 2), axis=0),
    )
    assert data.checksums.keys() == {f"{images}.npy", f"{labels}.npy"}


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_npy_files_are_mapped_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    for name, array in (("X", PIXELS), ("y", LABELS), ("X_test", PIXELS[:4]), ("y_test", LABELS[:4])):
        np.save(tmp_path / f"{name}.npy", np.asarray(array, order=order))
    read = load(tmp_path)
    monkeypatch.setattr(npz, "MAPPED_BYTES", 1)
    monkeypatch.setattr(npz, "read_npy", None)
    mapped = load(tmp_path / "X.npy")
    assert torch.equal(mapped.train.images, read.train.images)
    assert torch.equal(mapped.test.labels, read.test.labels)
    assert mapped.train.sha256 == read.train.sha256
    memory = npz._open_npy(tmp_path / "X.npy")
    assert isinstance(memory, np.memmap)
    memory[:] = 0  # copy-on-write: the file stays
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), PIXELS)


@pytest.mark.parametrize("mapped", [False, True])
def test_npy_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    if mapped:
        monkeypatch.setattr(npz, "MAPPED_BYTES", 1)
    np.save(tmp_path / "X.npy", PIXELS)
    with pytest.raises(DataError, match=r"X\.npy: there is 'X', but no labels of the training set"):
        load(tmp_path / "X.npy")
    np.save(tmp_path / "y.npy", LABELS)
    (tmp_path / "X.npy").write_bytes((tmp_path / "X.npy").read_bytes()[:-5])
    with pytest.raises(DataError, match=r"X\.npy declares the shape .* bytes follow"):
        load(tmp_path / "X.npy")
    np.save(tmp_path / "X.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"X\.npy holds pickled Python objects, which are never loaded"):
        load(tmp_path)
    np.save(tmp_path / "photos.npy", PIXELS)
    with pytest.raises(DataError, match=r"photos\.npy: there are no training images, only 'photos'; expected"):
        load(tmp_path / "photos.npy")
