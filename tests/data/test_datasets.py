"""Data sets: loading, splitting, and the error messages."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import os
import shutil
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitreous.config import DataConfig
from vitreous.data import specs
from vitreous.data.contact_sheet import contact_sheet
from vitreous.data.datasets import DATASETS, Dataset, Split, describe, duplicates_between, fetch, load_dataset, verify
from vitreous.data.npy import NpyError, read_npy
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.splits import keep_per_class, split_indices
from vitreous.downloads import cache
from vitreous.downloads.cache import FileSet, PinnedFile
from vitreous.downloads.origins import ByHand
from vitreous.errors import DataError

RNG = np.random.default_rng(0)


def load(name: object, **options: object) -> Dataset:
    return load_dataset(DataConfig(name=str(name), **options))  # type: ignore[arg-type]


# --- named data sets ---------------------------------------------------------------------------------------------


def test_mnist(mnist: Dataset) -> None:
    assert mnist.train.images.shape[1:] == (1, 28, 28)
    assert len(mnist.train) + len(mnist.val) == 60_000
    assert len(mnist.test) == 10_000
    assert (mnist.image_size, mnist.channels, mnist.num_classes) == ((28, 28), 1, 10)
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert (mnist.mean, mnist.std, mnist.polarity) == ((0.1307,), (0.3081,), "light-on-dark")
    pixels = mnist.train.images.float() / 255
    assert pixels.mean().item() == pytest.approx(0.1307, abs=2e-4)
    assert pixels.std().item() == pytest.approx(0.3081, abs=2e-4)
    assert len(mnist.checksums) == 4


def test_mnist_loads_from_the_cache_in_well_under_a_second(mnist: Dataset) -> None:
    start = time.process_time()  # of this process: others may keep the cores busy
    again = load("mnist")
    assert time.process_time() - start < 0.7
    assert torch.equal(again.val.images, mnist.val.images)


def test_fashion_and_cifar() -> None:
    for name, shape, first in (
        ("fashion-mnist", (1, 28, 28), ["Ankle boot", "Pullover", "Trouser"]),
        ("cifar10", (3, 32, 32), ["cat", "ship", "ship"]),
    ):
        try:
            data = load(name)
        except DataError as error:
            pytest.skip(f"{name} is out of reach: {error}")
        assert data.test.images.shape == (10_000, *shape)
        assert [data.class_names[label] for label in data.test.labels[:3]] == first
        pixels = data.train.images[::7].float() / 255
        torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(data.mean), atol=5e-3, rtol=0)
        torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(data.std), atol=5e-3, rtol=0)


def test_digits_need_no_network_and_look_like_mnist(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    assert torch.equal(load("digits").test.images, digits.test.images)
    assert digits.train.images.shape[1:] == (1, 28, 28)
    assert len(digits.train) + len(digits.val) + len(digits.test) == 1797
    assert (len(digits.train) + len(digits.val), len(digits.test)) == (
        DATASETS["digits"].train_images, DATASETS["digits"].test_images,
    )  # fmt: skip
    assert any("upscaled from 8×8 to 28×28" in note for note in digits.notes)
    assert digits.mean[0] == pytest.approx(0.1307, abs=0.02)
    rows = torch.arange(28.0)
    centres = (digits.train.images[:, 0].float().sum(2) @ rows) / digits.train.images.float().sum((1, 2, 3))
    assert ((centres > 13) & (centres < 15)).all()


def test_digits_keep_their_test_set_whatever_the_split_seed(digits: Dataset) -> None:
    other = load("digits", split_seed=5)
    assert torch.equal(other.test.images, digits.test.images)
    assert not torch.equal(other.val.images, digits.val.images)


def test_descriptions_and_cache_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    assert list(DATASETS) == ["mnist", "fashion-mnist", "cifar10", "digits"]
    assert describe("digits").cached
    assert not describe("mnist").cached
    assert describe("mnist").where == str(tmp_path / "mnist")
    assert set(verify("mnist").values()) == {"missing"}
    assert verify("digits") == {}
    assert fetch("digits") is None
    with pytest.raises(DataError, match="did you mean mnist"):
        fetch("mnits")


def test_mnist_can_be_put_into_an_offline_cache_by_hand(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = Path(describe("mnist").where)
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=f"into {tmp_path / 'mnist'} by hand"):
        load("mnist")
    for file in verify("mnist"):
        (tmp_path / "mnist" / f"{file}.gz").write_bytes(gzip.compress((original / file).read_bytes(), 1))
    assert torch.equal(load("mnist").test.images, mnist.test.images)


def test_images_damaged_in_the_cache_are_never_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A flipped bit changes a pixel and neither the size of the file nor its time."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    shapes = {
        specs.TRAIN_IMAGES: (4, 2, 2),
        specs.TRAIN_LABELS: (4,),
        specs.TEST_IMAGES: (2, 2, 2),
        specs.TEST_LABELS: (2,),
    }
    contents = {
        name: struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(range(math.prod(shape)))
        for name, shape in shapes.items()
    }
    pinned = (PinnedFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items())
    files = FileSet("tiny", tuple(pinned), (ByHand(),))
    files.folder.mkdir()
    for name, data in contents.items():
        (files.folder / f"{name}.gz").write_bytes(gzip.compress(data))

    def first_pixel() -> int:
        monkeypatch.setattr(cache, "_hashed_here", {})  # as in another process
        raw = specs._load_idx(files, ("a", "b"), ((0.1,), (0.3,)), "as-is", "")
        return int(raw.splits["train"].images[0, 0, 0, 0])

    assert first_pixel() == 0
    damaged = files.folder / specs.TRAIN_IMAGES
    before = damaged.stat()
    damaged.write_bytes(contents[specs.TRAIN_IMAGES].replace(bytes(range(16)), bytes([128, *range(1, 16)])))
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first_pixel() == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mnsit", r"no data set 'mnsit' \(did you mean mnist"),
        ("", "no data set is named; expected mnist, fashion-mnist, cifar10, digits, a folder"),
        ("no/such/folder", "no file or folder 'no/such/folder'"),
        ("none.npz", r"no file or folder 'none\.npz'"),
    ],
)
def test_unknown_names(name: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(name)


# --- splitting ---------------------------------------------------------------------------------------------------


def test_validation_is_stratified_disjoint_and_fixed(mnist: Dataset) -> None:
    train, val = (torch.bincount(split.labels) for split in (mnist.train, mnist.val))
    assert ((val / (train + val) - 0.1).abs() < 2e-3).all()
    # pinned: with another split, stored runs would not be comparable with new ones
    assert mnist.val.labels[:12].tolist() == [0, 8, 9, 4, 6, 6, 0, 7, 1, 2, 6, 3]
    assert load("mnist", val_fraction=0).val.images.shape == (0, 1, 28, 28)


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    fraction=st.floats(0, 0.95, allow_subnormal=False),  # a training before it in this process flushes them
    seed=st.integers(-5, 2**40),
)
def test_a_split_is_a_partition_that_leaves_no_class_empty(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    kept, held_out = split_indices(labels, fraction, seed)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert (torch.bincount(labels[kept], minlength=len(counts)) >= 1).all()
    if fraction > 0:
        assert all((labels[held_out] == label).any() for label, count in enumerate(counts) if count > 1)
    again, _ = split_indices(labels, fraction, seed)
    np.testing.assert_array_equal(kept, again)


def test_smaller_training_sets_are_nested(mnist: Dataset) -> None:
    few, more = (set(keep_per_class(mnist.train.labels, count, seed=3).tolist()) for count in (10, 100))
    assert len(few) == 100
    assert few < more
    ten = load("mnist", train_per_class=10)
    assert torch.bincount(ten.train.labels).tolist() == [10] * 10
    assert torch.equal(ten.val.images, mnist.val.images)
    assert torch.equal(ten.test.images, mnist.test.images)
    assert any("only 10 training images per class" in note for note in ten.notes)


def test_size_and_channels_are_converted(digits: Dataset) -> None:
    data = load("digits", image_size=(20, 32), channels=3)
    assert data.train.images.shape == (len(digits.train), 3, 20, 32)
    assert len(data.mean) == len(data.std) == 3
    assert torch.equal(data.train.images[:, 0], data.train.images[:, 2])
    assert "images resized from 28×28 to 20×32" in data.notes
    assert "gray repeated over three channels" in data.notes


# --- a folder of images ------------------------------------------------------------------------------------------


def picture(height: int = 8, width: int = 6, colour: bool = False) -> Image.Image:
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels if colour else pixels[:, :, 0])


def write_folder(root: Path, classes: dict[str, int], suffix: str = ".png", **options: int) -> None:
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(count):
            picture(**options).save(root / name / f"{index}{suffix}")


def test_a_folder_with_one_sub_folder_per_class(tmp_path: Path) -> None:
    write_folder(tmp_path, {"cats": 10, "dogs": 20})
    (tmp_path / "cats" / "notes.txt").write_text("not an image")
    (tmp_path / "cats" / ".DS_Store").write_text("hidden")
    data = load(tmp_path)
    assert data.class_names == ("cats", "dogs")
    assert data.train.images.shape[1:] == (1, 8, 6)
    assert [len(split) for split in (data.train, data.val, data.test)] == [21, 3, 6]
    assert data.polarity == "as-is"
    assert f"1 file in {tmp_path.name}/ left out: no PNG, JPEG, WebP, BMP, GIF or TIFF by its name" in data.notes
    assert any("no test set given: 6 images" in note for note in data.notes)
    for split in (data.train, data.val, data.test):
        for image, label, path in zip(split.images, split.labels, split.paths, strict=True):
            assert path.startswith(data.class_names[label])
            np.testing.assert_array_equal(image[0].numpy(), np.asarray(Image.open(tmp_path / path)))


def test_train_val_and_test_folders_are_honoured(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"a": 5, "b": 6})
    write_folder(tmp_path / "val", {"a": 2, "b": 1})
    write_folder(tmp_path / "test", {"a": 3})
    data = load(tmp_path, val_fraction=0.5)
    assert [len(split) for split in (data.train, data.val, data.test)] == [11, 3, 3]
    assert data.test.labels.tolist() == [0, 0, 0]
    assert data.test.paths[0] == "test/a/0.png"


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".JPG", ".jpeg"])
def test_all_formats_and_detection_of_colour(tmp_path: Path, suffix: str) -> None:
    write_folder(tmp_path, {"a": 3, "b": 3}, suffix)
    assert load(tmp_path).channels == 1
    picture(colour=True).save(tmp_path / "b" / "colourful.png")
    data = load(tmp_path)
    assert data.channels == 3
    assert load(tmp_path, channels=1).channels == 1


def test_gray_images_saved_in_colour_are_gray(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for index in range(3):
            picture().convert("RGB").save(tmp_path / name / f"{index}.png")
    assert load(tmp_path).channels == 1


def test_several_sizes_are_resized_to_the_median(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 3, "b": 3}, height=10, width=20)
    picture(height=40, width=30).save(tmp_path / "a" / "large.png")
    data = load(tmp_path)
    assert data.image_size == (10, 20)
    assert any("images of 2 sizes resized to the median, 10×20" in note for note in data.notes)
    assert load(tmp_path, image_size=(7, 9)).image_size == (7, 9)


def test_the_default_size_is_a_multiple_of_the_patch_and_bounded(tmp_path: Path) -> None:
    write_folder(tmp_path / "mixed", {"a": 3, "b": 3}, height=50, width=75)
    picture(height=40, width=70).save(tmp_path / "mixed" / "a" / "other.png")
    config = DataConfig(name=str(tmp_path / "mixed"))
    assert load_dataset(config, multiple_of=(7, 8)).image_size == (49, 72)
    assert load_dataset(config, multiple_of=(100, 200)).image_size == (100, 200)  # never less than one patch
    large = tmp_path / "large"
    write_folder(large, {"a": 2, "b": 2}, height=200, width=400)
    data = load(large)
    assert data.image_size == (64, 128)
    assert data.fit == "stretch"
    assert any("since 128 is the longest default side" in note for note in data.notes)
    assert load(large, image_size=(300, 300)).image_size == (300, 300)


def test_the_fit_is_decided_by_the_images(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 3, "b": 3}, height=20, width=40)
    assert load(tmp_path).fit == load(tmp_path, image_size=(10, 20)).fit == "stretch"
    cropped = load(tmp_path, image_size=(12, 12))
    assert cropped.fit == "crop"
    assert "images of 20×40 resized to 12×12, cropped in the centre" in cropped.notes
    for fit in ("stretch", "letterbox"):
        data = load(tmp_path, image_size=(12, 12), fit=fit)
        assert (data.fit, Preprocessing.for_dataset(data).fit) == (fit, fit)
    assert load("digits", image_size=(20, 32)).fit == "stretch"  # images in memory: as before
    letterboxed = load("digits", image_size=(20, 32), fit="letterbox").train.images
    assert (letterboxed[..., :6] == 0).all()


def test_all_bad_files_are_listed_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 6, "b": 6})
    (tmp_path / "a" / "empty.png").write_bytes(b"")
    (tmp_path / "b" / "link.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError) as error:
        load(tmp_path)
    assert str(error.value) == (
        f"2 of 14 files of {tmp_path} cannot be read: a/empty.png is empty; b/link.png is a link to a file that does"
        " not exist: repair or remove them, or leave them out with skip_corrupt=True (data.skip_corrupt)"
    )
    data = load(tmp_path, skip_corrupt=True)
    assert data.skipped == ("a/empty.png", "b/link.png")
    assert sum(len(split) for split in (data.train, data.val, data.test)) == 12
    assert "2 files of 14 left out because they cannot be read, such as a/empty.png" in data.notes
    for index in range(30):
        (tmp_path / "a" / f"broken {index}.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"32 of 44 files .*broken 1\.jpg .*; and 22 more: repair or remove them"):
        load(tmp_path)
    assert len(load(tmp_path, skip_corrupt=True).skipped) == 32
    for file in (tmp_path / "b").glob("*.png"):
        file.unlink()
        file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="no training image of class 'b'"):
        load(tmp_path, skip_corrupt=True)


def test_the_mess_of_archives_and_file_managers_is_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 6, "b": 6})
    for name in ("empty", "__MACOSX", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "__MACOSX" / "._0.png").write_bytes(b"x")
    for name in (".DS_Store", "Thumbs.db", "a/Thumbs.db", "a/desktop.ini", "a/notes.txt", "labels.csv"):
        (tmp_path / name).write_text("x")
    data = load(tmp_path)
    assert data.class_names == ("a", "b")
    formats = "PNG, JPEG, WebP, BMP, GIF or TIFF"
    assert data.notes[:3] == (
        f"1 file in {tmp_path.name}/ beside the class folders left out, such as labels.csv",
        f"no {formats} image in 'empty': left out, as no class",
        f"1 file in {tmp_path.name}/ left out: no {formats} by its name",
    )


def test_class_names_in_any_script(tmp_path: Path) -> None:
    names = ("Ελλάδα", "e\u0301cole", "数字", "العربية", "🦊", "한국어")
    write_folder(tmp_path / "données 数", dict.fromkeys(names, 5))
    data = load(tmp_path / "données 数")
    assert set(data.class_names) == set(names)
    assert data.train.paths[0].startswith(data.class_names[0])


def test_a_test_image_that_is_in_the_training_set_is_reported(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"a": 5, "b": 5})
    write_folder(tmp_path / "test", {"a": 2, "b": 2})
    Image.open(tmp_path / "train" / "a" / "3.png").save(tmp_path / "test" / "b" / "same.bmp")
    data = load(tmp_path, val_fraction=0)
    assert any(note.startswith("1 of the 5 test images are duplicates of training images") for note in data.notes)
    ((first, second),) = duplicates_between(data.train, data.test)
    assert (data.train.paths[first], data.test.paths[second]) == ("train/a/3.png", "test/b/same.bmp")


def test_a_split_has_the_checksum_of_its_source_images_at_every_size(digits: Dataset, tmp_path: Path) -> None:
    """Of the 8×8 pixels, too: upscaling could round otherwise on another machine."""
    smaller = load("digits", image_size=(14, 14), channels=3)
    assert smaller.test.images.shape[1:] == (3, 14, 14)
    assert smaller.test.sha256 == digits.test.sha256
    # pinned: stored runs have it in their records
    assert digits.test.sha256 == "a206f5813bdc26b495a0b891be2f828856812e413523c4d635170f4014be977d"
    assert smaller.test.sha256 != smaller.val.sha256
    np.savez(tmp_path / "a.npz", images=digits.test.images[:, 0].numpy(), labels=digits.test.labels.numpy())
    ours, resized = load(tmp_path / "a.npz"), load(tmp_path / "a.npz", image_size=(7, 9))
    assert ours.test.sha256 == resized.test.sha256
    assert np.array_equal(ours.train.digests, resized.train.digests)
    reordered = Split(ours.test.images.flip(0), ours.test.labels)
    relabelled = Split(ours.test.images, ours.test.labels.flip(0))
    assert len({split.sha256 for split in (ours.test, reordered, relabelled)}) == 3


def test_duplicates_are_counted_in_the_source_images(digits: Dataset, tmp_path: Path) -> None:
    """At 2×2 pixels two different images become equal; at their own size one other is a duplicate."""
    write_folder(tmp_path / "train", {"a": 5, "b": 5})
    write_folder(tmp_path / "test", {"a": 2, "b": 2})
    shutil.copy(tmp_path / "train" / "a" / "3.png", tmp_path / "test" / "b" / "same.png")
    even, stripes = np.full((8, 8), 100, np.uint8), np.tile([99, 101], (8, 4)).astype(np.uint8)
    Image.fromarray(even).save(tmp_path / "train" / "a" / "even.png")
    Image.fromarray(stripes).save(tmp_path / "test" / "a" / "stripes.png")
    small = load(tmp_path, image_size=(2, 2))
    pixels = {path: image.tolist() for path, image in zip(small.test.paths, small.test.images, strict=True)}
    assert pixels["test/a/stripes.png"] == [[[100, 100], [100, 100]]]
    assert small.duplicates == load(tmp_path).duplicates == 1
    assert digits.duplicates == 0


def test_duplicates_between_by_content() -> None:
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous()
    a, b = Split(images[:3], torch.zeros(3)), Split(images[[3, 1, 1]], torch.zeros(3))
    assert duplicates_between(a, b) == ((1, 1), (1, 2))


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 2 classes; found none"):
        load(tmp_path)
    write_folder(tmp_path, {"a": 2})
    with pytest.raises(DataError, match="found only 'a'"):
        load(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"found only 'a' \('b' has none\)"):
        load(tmp_path)
    (tmp_path / "b" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match=r"1 of 3 files .* b/broken\.png is not a PNG, .*: repair or remove it"):
        load(tmp_path)


def test_inconsistent_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"a": 2, "b": 2})
    write_folder(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(DataError, match="has the class 'c', of which the training folder has no image"):
        load(tmp_path)
    write_folder(tmp_path, {"zebra": 1})
    with pytest.raises(DataError, match="has train/ and also zebra/"):
        load(tmp_path)


def test_splits_without_classes_and_splits_with_two_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"a": 2, "b": 2})
    write_folder(tmp_path, {"test": 3})  # loose images, as a competition's test set has them
    with pytest.raises(DataError, match="test has no class folders; expected one sub-folder per class"):
        load(tmp_path)
    shutil.rmtree(tmp_path / "test")
    for name in ("val", "validation"):
        write_folder(tmp_path / name, {"a": 1, "b": 1})
    with pytest.raises(DataError, match="has val/ and also validation/, two names for one split"):
        load(tmp_path)


# --- .npz --------------------------------------------------------------------------------------------------------

LABELS = np.arange(20) % 2
PIXELS = RNG.integers(0, 256, (20, 5, 7, 3), dtype=np.uint8)


def write_npz(tmp_path: Path, **arrays: object) -> Path:
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path / "data.npz"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PIXELS[..., 0], PIXELS[:, None, :, :, 0]),
        (PIXELS, PIXELS.transpose(0, 3, 1, 2)),
        (PIXELS.transpose(0, 3, 1, 2), PIXELS.transpose(0, 3, 1, 2)),
        (PIXELS[..., :1].astype(np.float64) / 255, PIXELS[..., :1].transpose(0, 3, 1, 2)),
        (np.asfortranarray(PIXELS), PIXELS.transpose(0, 3, 1, 2)),
    ],
)
def test_npz_layouts(tmp_path: Path, images: np.ndarray, expected: np.ndarray) -> None:
    path = write_npz(tmp_path, images=images, labels=LABELS, test_images=images[:4], test_labels=LABELS[:4])
    data = load(path, val_fraction=0)
    np.testing.assert_array_equal(data.train.images.numpy(), expected)
    np.testing.assert_array_equal(data.test.images.numpy(), expected[:4])
    assert data.class_names == ("0", "1")
    assert any(note.startswith("4 of the 4 test images are duplicates") for note in data.notes)


def test_npz_class_names_words_and_other_numbers(tmp_path: Path) -> None:
    named = load(write_npz(tmp_path, images=PIXELS, labels=LABELS, class_names=np.array(["left", "right"])))
    assert named.class_names == ("left", "right")
    words = load(write_npz(tmp_path, images=PIXELS, labels=np.array(["no", "yes"])[LABELS]))
    assert words.class_names == ("no", "yes")
    assert words.train.labels.tolist() == named.train.labels.tolist()
    other = load(write_npz(tmp_path, images=PIXELS, labels=LABELS * 4 + 1))
    assert other.class_names == ("1", "5")
    assert "labels 1 to 5 renumbered 0 to 1; their names stay" in other.notes


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": PIXELS}, "there is 'images', but no labels of the training set"),
        ({"images": np.uint8(5), "labels": LABELS}, "images is a single number; expected images"),
        ({"images": PIXELS, "labels": LABELS[:5]}, "20 images, but 5 labels"),
        ({"images": PIXELS, "labels": LABELS / 2}, "labels is float64"),
        (
            {"images": PIXELS, "labels": LABELS, "test_images": PIXELS},
            "there is 'test_images', but no labels of the test set",
        ),
        ({"images": PIXELS.astype(np.int16) - 1, "labels": LABELS}, "integers must be from 0 to 255"),
        ({"images": PIXELS * 2.0, "labels": LABELS}, "floats must be from 0 to 1"),
        ({"images": PIXELS * np.nan, "labels": LABELS}, "goes from nan"),
        ({"images": PIXELS[..., :2], "labels": LABELS}, "has the shape"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "is empty"),
        ({"images": PIXELS, "labels": LABELS * 0}, "1 class is too few"),
        ({"images": PIXELS, "labels": LABELS, "class_names": np.array(["a", "b", "c"])}, "training image of class 'c'"),
        ({"images": PIXELS, "labels": LABELS, "class_names": np.array(["a"])}, "expected 0 to 0"),
        ({"images": PIXELS, "labels": LABELS, "class_names": np.array(["a", "a"])}, "repeats a name"),
        ({"images": PIXELS, "labels": LABELS.astype(object)}, "holds pickled Python objects, which are never loaded"),
        ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS, "test_labels": LABELS + 1}, "no training image"),
        ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS[:, 1:], "test_labels": LABELS}, "differ in size"),
    ],
)
def test_npz_files_that_cannot_be_used(tmp_path: Path, arrays: dict[str, object], sentence: str) -> None:
    path = write_npz(tmp_path, **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_an_npz_header_that_declares_too_much(tmp_path: Path) -> None:
    """A shape of 10¹⁸ elements in a file of a hundred bytes must cost nothing."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 1000000, 1000), }".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(10)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", array)
        archive.writestr("labels.npy", array)
    with pytest.raises(DataError, match=r"declares the shape .* of uint8, but 10 bytes follow"):
        load(path)


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "problem"),
    [
        ("<f4", "(4,)", bytes(12), "declares the shape"),
        ("<f4", "(-1, -3)", bytes(12), "declares the shape"),
        ("<f4", "(0, 99999999999999)", b"", "declares the shape"),
        ("<U0", "(5,)", b"", "declares the shape"),
        ("|O", "(1,)", bytes(8), "pickled Python objects"),
        ("no type", "(1,)", bytes(8), "damaged header"),
        ("<f4", "print()", bytes(8), "damaged header"),
    ],
)
def test_hostile_npy_headers(dtype: str, shape: str, data: bytes, problem: str) -> None:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    with pytest.raises(NpyError, match=problem):
        read_npy(io.BytesIO(npy), len(npy))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_npz_files_give_data_or_a_data_error(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=PIXELS[:6], labels=LABELS[:6])
    raw = bytearray(buffer.getvalue())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        for _ in range(3):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.npz"
    path.write_bytes(raw)
    with contextlib.suppress(DataError):
        damaged = load(path)
        assert len(damaged.train) + len(damaged.val) + len(damaged.test) == 6


# --- the contact sheet -------------------------------------------------------------------------------------------


def test_a_contact_sheet(digits: Dataset, tmp_path: Path) -> None:
    contact_sheet(digits, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.size[0] > 1000
        pixels = np.asarray(sheet.convert("RGB"))
    assert 0.2 < (pixels == 255).all(axis=2).mean() < 0.9
    with pytest.raises(DataError, match="cannot write the contact sheet"):
        contact_sheet(digits, tmp_path / "missing" / "sheet.png")


def test_a_contact_sheet_of_odd_data(tmp_path: Path) -> None:
    """Names that look like formulas, classes of one image, wide images in colour."""
    labels = np.r_[np.zeros(18, int), 1, 2]
    names = np.array(["$x^$", "a very long name indeed, of one class", "<b>"])
    wide = RNG.integers(0, 256, (20, 5, 30, 3), dtype=np.uint8)
    contact_sheet(load(write_npz(tmp_path, images=wide, labels=labels, class_names=names)), tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
