"""Python objects as data: each kind gives the images and labels that it holds, and every refusal shows the way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from vitreous.config import DataConfig
from vitreous.data import copies, datasets
from vitreous.data.arrays import as_source
from vitreous.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 9, 8), dtype=np.uint8)
COLOURS = RNG.integers(0, 256, (20, 9, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(data: object, **options: Any) -> datasets.Dataset:
    name = as_source(data)
    assert name.startswith("prepared:")
    return datasets.load_dataset(DataConfig(name=name, val_fraction=0, **options))


def images_of(data: datasets.Dataset) -> dict[bytes, str]:
    """Return every image, in channels-last order, with its class."""
    return {
        image.permute(1, 2, 0).numpy().tobytes(): data.class_names[label]
        for split in (data.train, data.val, data.test)
        for image, label in zip(split.images, split.labels, strict=True)
    }


def expected(images: np.ndarray, labels: Any = LABELS) -> dict[bytes, str]:
    return {image.tobytes(): str(label) for image, label in zip(images, labels, strict=True)}


class Pairs(Dataset):  # type: ignore[type-arg]
    def __init__(self, images: Any, labels: Any = LABELS, **attributes: Any):
        self.images, self.labels = images, labels
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class Rows(Pairs):
    """A stand-in with what `datasets.Dataset` has: features, and items that are dicts."""

    def __init__(self, images: Any, labels: Any = LABELS, names: Any = None):
        image = type("Image", (), {})()
        super().__init__(images, labels, features={"id": None, "image": image, "label": SimpleNamespace(names=names)})

    def __getitem__(self, index: int) -> Any:
        return {"id": index, "image": self.images[index], "label": self.labels[index]}


def pillow(images: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(image) for image in images]


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS, LABELS),
        [PIXELS, LABELS.tolist()],
        (PIXELS / 255, LABELS[:, None]),
        (PIXELS.astype(np.int64), LABELS.astype(float)),
        (torch.from_numpy(PIXELS)[:, None], torch.from_numpy(LABELS)),
        (
            torch.from_numpy(PIXELS / 255).float().requires_grad_(),
            torch.nn.functional.one_hot(torch.from_numpy(LABELS)),
        ),
        (list(PIXELS), list(LABELS)),
        (list(torch.from_numpy(PIXELS)), pd.Series(LABELS, index=range(100, 120))),
        (pillow(PIXELS), pd.Series(LABELS).astype("category")),
        {"images": PIXELS, "labels": LABELS, "names of the photographers": ["a", "b"]},
        {"x_train": PIXELS[:15], "y_train": LABELS[:15], "x_test": PIXELS[15:], "y_test": LABELS[15:]},
        ((PIXELS[:15], LABELS[:15]), (PIXELS[15:], LABELS[15:])),
        ((PIXELS[:10], LABELS[:10]), (PIXELS[10:15], LABELS[10:15]), (PIXELS[15:], LABELS[15:])),
        {"train": (PIXELS[:15], LABELS[:15]), "test": (PIXELS[15:], LABELS[15:])},
        Pairs(PIXELS),
        Pairs(pillow(PIXELS), [torch.tensor(label) for label in LABELS]),
        TensorDataset(torch.from_numpy(PIXELS / 255).float()[:, None], torch.from_numpy(LABELS)),
        (Subset(Pairs(PIXELS), range(15)), Subset(Pairs(PIXELS), [15, 16, 17, 18, 19])),
        tuple(random_split(Pairs(PIXELS), [12, 8])),
        Pairs(PIXELS, features=PIXELS),
        Rows(pillow(PIXELS)),
        {"train": Rows(pillow(PIXELS[:15])), "validation": Rows(pillow(PIXELS[15:]), LABELS[15:])},
        ([*pillow(PIXELS[:19]), PIXELS[19]], LABELS),
    ],
)
def test_the_same_images_and_labels_in_many_forms(data: object) -> None:
    assert images_of(load(data)) == expected(PIXELS)


@pytest.mark.parametrize(
    "data",
    [
        (COLOURS, LABELS), (COLOURS.transpose(0, 3, 1, 2), LABELS), (pillow(COLOURS), LABELS),
        Pairs(COLOURS), Pairs(torch.from_numpy(COLOURS).permute(0, 3, 1, 2) / 255),
    ],
)  # fmt: skip
def test_colours_in_many_forms(data: object) -> None:
    assert images_of(load(data)) == expected(COLOURS)


def test_names_of_classes() -> None:
    words = np.array(["yes", "no"])[LABELS]
    for labels in (words, words.tolist(), pd.Series(words), words.astype(object), words.astype("S")):
        data = load((PIXELS, labels))
        assert data.class_names == ("no", "yes")
        assert images_of(data) == expected(PIXELS, words)
    for other in (Pairs(PIXELS, classes=["zebra", "ant"]), Rows(pillow(PIXELS), names=["zebra", "ant"])):
        data = load(other)
        assert data.class_names == ("zebra", "ant"), "in the order of their numbers"
        assert images_of(data) == expected(PIXELS, np.array(["zebra", "ant"])[LABELS])


def test_scikit_learn_s_digits() -> None:
    bunch = load_digits()
    data = load(bunch)
    assert data.class_names == tuple("0123456789")
    assert images_of(data) == expected(np.rint(bunch.images * 255 / 16).astype(np.uint8), bunch.target)
    assert "images goes from 0 to 16 in whole numbers: read as levels from 0 to 16" in data.notes
    flat = load((bunch.data, bunch.target))
    assert images_of(flat) == images_of(data)
    assert "each row of X, 64 values, read as 8×8 pixels, line by line" in flat.notes
    frame = load((pd.DataFrame(bunch.data), pd.Series(bunch.target)))
    assert images_of(frame) == images_of(data)


def photographs(folder: Path) -> list[Path]:
    """Write colour photographs of several sizes in two class folders."""
    paths = []
    for number in range(12):
        path = folder / ("beach" if number % 2 else "alps") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8 + number, 12, 3), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


def test_image_folders_lists_of_files_and_data_frames(tmp_path: Path) -> None:
    paths = photographs(tmp_path / "photos")
    names = [path.parent.name for path in paths]
    reference = datasets.load_dataset(DataConfig(name=str(tmp_path / "photos"), image_size=(8, 8), val_fraction=0))
    folder = torchvision.datasets.ImageFolder(tmp_path / "photos", torchvision.transforms.ToTensor())
    frame = pd.DataFrame({"Image": list(map(str, paths)), "Category": names, "height": 3})
    for data in (folder, (list(map(str, paths)), names), (paths, names), frame, Subset(folder, range(12))):
        loaded = load(data, image_size=(8, 8))
        assert images_of(loaded) == images_of(reference)
        assert loaded.class_names == ("alps", "beach")
    assert "the files are read as they are, without the data set's transform" in load(folder).notes
    split = load(frame.assign(split=["train"] * 8 + ["test"] * 4), image_size=(8, 8))
    assert (len(split.train), len(split.test)) == (8, 4)


def test_images_of_several_sizes_are_resized_like_those_of_a_folder(tmp_path: Path) -> None:
    paths = photographs(tmp_path / "photos")
    reference = datasets.load_dataset(DataConfig(name=str(tmp_path / "photos"), image_size=(8, 8), val_fraction=0))
    labels = [path.parent.name for path in paths]
    pictures = [Image.open(path) for path in paths]
    for data in ((pictures, labels), Pairs(pictures, labels), ([np.asarray(picture) for picture in pictures], labels)):
        assert images_of(load(data, image_size=(8, 8))) == images_of(reference)


def test_the_name_depends_on_the_content_alone(cache: Path) -> None:
    name = as_source((PIXELS, LABELS))
    assert name.startswith("prepared:20-images-")
    assert as_source({"images": PIXELS / 255, "labels": LABELS.tolist()}) == name
    assert as_source((PIXELS, 1 - LABELS)) != name
    assert as_source((PIXELS[:, ::-1], LABELS)) != name
    assert as_source("photos/") == "photos/"
    assert as_source(Path("photos")) == "photos"
    assert sorted(path.name[:10] for path in (cache / "python").iterdir()) == ["20-images-"] * 3


def test_a_copy_that_is_gone_or_damaged_is_restored_by_the_same_data(cache: Path) -> None:
    name = as_source((PIXELS, LABELS))
    file = cache / "python" / name.removeprefix("prepared:") / "train_images.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match="is damaged; pass the same data again"):
        datasets.load_dataset(DataConfig(name=name))
    assert images_of(load((PIXELS, LABELS))) == expected(PIXELS)
    for path in file.parent.iterdir():
        path.unlink()
    file.parent.rmdir()
    with pytest.raises(DataError, match=f"the copy {name} of data from Python is not in the cache .*; pass the same"):
        datasets.load_dataset(DataConfig(name=name))
    with pytest.raises(DataError, match=r"'prepared:\.\./x' is no name of a copy"):
        datasets.load_dataset(DataConfig(name="prepared:../x"))


def test_copies_that_nobody_reads_are_removed_after_a_while(cache: Path) -> None:
    names = [as_source((PIXELS, LABELS)), as_source((PIXELS, 1 - LABELS))]
    long_ago = time.time() - (copies.KEPT_DAYS + 1) * 24 * 3600
    for name in names:
        os.utime(cache / "python" / name.removeprefix("prepared:"), (long_ago, long_ago))
    datasets.load_dataset(DataConfig(name=names[1]))
    as_source((COLOURS, LABELS))
    left = {path.name for path in (cache / "python").iterdir()}
    assert names[0].removeprefix("prepared:") not in left
    assert names[1].removeprefix("prepared:") in left


NORMALISED = (PIXELS / 255 - 0.5) / 0.5


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, r"data is a NoneType; expected \(X, y\), \(\(X, y\), \(X_test, y_test\)\)"),
        (PIXELS, r"data is a ndarray; expected \(X, y\)"),
        ((PIXELS,), r"data is a tuple of 1; expected \(X, y\)"),
        ({}, "there are no training images, only nothing; expected images and labels"),
        ({"en": Pairs(PIXELS), "de": Pairs(PIXELS)}, "there are no training images, only 'de' and 'en'"),
        ({"a": PIXELS}, "there are no training images, only 'a'; expected images and labels, X and y"),
        ({"test": (PIXELS, LABELS)}, "data has no training set, only test"),
        ((PIXELS, LABELS[:3]), "X has 20 images and y 3 labels; expected one each"),
        (((PIXELS, LABELS), (PIXELS, LABELS[:3])), "X_test has 20 images and y_test 3 labels"),
        ((PIXELS[:0], LABELS[:0]), "X is empty; expected images"),
        ((PIXELS, 3), "y is 3; expected one entry per image"),
        ((NORMALISED, LABELS), r"X goes from -1 to 1; floats must be from 0 to 1, or to 255 \(undo a normalisation"),
        ((PIXELS / 100, LABELS), "X goes from 0 to 2.55; floats must be from 0 to 1, or to 255$"),
        ((PIXELS.astype(int) * 257, LABELS), r"integers must be from 0 to 255 \(16 bits per pixel: divide by 257\)"),
        ((PIXELS.reshape(20, 72), LABELS), r"X has the shape \(20, 72\), rows that are no square image; .* X\.reshape"),
        ((np.zeros((20, 4, 4, 4), np.uint8), LABELS), r"without transparency, it is X\[\.\.\., :3\]"),
        ((np.full((20, 4, 4), "a"), LABELS), "X is <U1; expected uint8, or floats from 0 to 1"),
        ((PIXELS, LABELS + 0.5), "y is float64 of shape .20,.; expected one integer or string per image"),
        ((PIXELS, [None, *LABELS[1:]]), "y has 1 missing value; fill in all labels, or leave those images out"),
        ((PIXELS, pd.Series([pd.NA, *LABELS[1:]], dtype="Int64")), "y has 1 missing value"),
        ((PIXELS, ["a", 1] * 10), "y has 1 among its labels; expected one integer or string per image"),
        ((PIXELS, np.ones((20, 3))), "y gives image 0 3 classes; expected exactly one class per image"),
        ((PIXELS, np.full((20, 3), 0.3)), r"y has the shape \(20, 3\); expected one integer or string"),
        (((PIXELS, LABELS), (PIXELS, LABELS + 1)), "y_test contains 2, which no training image has"),
        (((PIXELS, LABELS), (PIXELS[:, 1:], LABELS)), r"X and X_test differ in size or channels"),
        (((PIXELS, LABELS), Pairs(PIXELS)), "the splits train and test are of different kinds"),
        (DataLoader(Pairs(PIXELS)), r"data is a DataLoader, which .*; pass its data set, loader\.dataset"),
        (Pairs(NORMALISED), "image 0 goes from .* .undo a normalisation"),
        (Pairs(PIXELS.astype(float)), "image 0 goes from .* pass uint8, or floats from 0 to 1"),
        (Pairs(["a.png"] * 20), "image 0 is 'a.png'; expected a Pillow image, an array or a tensor"),
        (Pairs(PIXELS, [[1, 2]] * 20), "the label of image 0 "),
        (TensorDataset(torch.from_numpy(PIXELS)), r"item 0 of the data set is a tuple; expected \(image, label\)"),
        (pd.DataFrame({"path": ["a"], "size": [3]}), "the data frame has the columns 'path' and 'size'; expected"),
        (SimpleNamespace(features={"text": None}), "expected 'image' and 'label'"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used(data: object, sentence: str, cache: Path) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        as_source(data)
    assert "\n" not in str(caught.value)
    assert not list((cache / "python").glob("*")), "nothing is left in the cache"


def test_items_that_cannot_be_read_and_a_cache_that_cannot_be_written(cache: Path) -> None:
    class Broken(Pairs):
        def __getitem__(self, index: int) -> Any:
            raise FileNotFoundError(2, "No such file", "3.png")

    with pytest.raises(DataError, match=r"image 0 cannot be read from the data set: .*3\.png.*; repair it"):
        as_source(Broken(PIXELS))
    (cache / "python").rmdir()
    (cache / "python").write_text("in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot write a copy of the data to .*: File exists; make room there, or set"):
        as_source((PIXELS, LABELS))
