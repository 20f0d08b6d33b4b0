"""Prepared copies: made once, mapped afterwards, keyed by the files, made again when damaged, bounded in size."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.config import DataConfig
from vitreous.data import prepare, prepared, prepared_cache, workers
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.mapped import MappedRows
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.splits import Split
from vitreous.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_PREPARED", str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def write_photos(root: Path, count: int = 12, colour: bool = True, suffix: str = ".png") -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for index in range(count):
            height, width = RNG.integers(20, 40, 2)
            pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels if colour else pixels[..., 0]).save(root / name / f"{index}{suffix}")
    return root


def load(root: Path, **options: object) -> Dataset:
    return load_dataset(DataConfig(name=str(root), **options))  # type: ignore[arg-type]


def everything(dataset: Dataset) -> list[np.ndarray]:
    return [split.images.numpy().copy() for split in (dataset.train, dataset.val, dataset.test)]


def assert_equal(first: Dataset, second: Dataset) -> None:
    for one, other in zip(everything(first), everything(second), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("train", "val", "test"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one.paths, one.labels.tolist()) == (other.paths, other.labels.tolist())
        assert np.array_equal(one.digests, other.digests)
    assert (first.class_names, first.checksums, first.fit) == (second.class_names, second.checksums, second.fit)


# --- the second start --------------------------------------------------------------------------------------------


def test_the_second_start_decodes_nothing(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(photos)
    for name in ("decode", "measure"):
        monkeypatch.setattr(prepare, name, None)
    second = load(photos)
    assert_equal(first, second)
    assert second.notes == first.notes
    os.chdir(photos.parent)
    assert_equal(first, load(Path("photos")))  # however it is written


def test_the_pixels_are_those_of_prediction(photos: Path) -> None:
    for suffix in (".jpg", ".gif", ".tif"):
        Image.fromarray(RNG.integers(0, 256, (300, 200, 3), dtype=np.uint8)).save(photos / "cat" / f"large{suffix}")
    for options in ({}, {"image_size": 16}, {"fit": "letterbox", "image_size": (9, 14)}, {"channels": 1}):
        dataset = load(photos, **options)
        preprocessing = Preprocessing.for_dataset(dataset)
        assert preprocessing.fit == dataset.fit
        for split in (dataset.train, dataset.val, dataset.test):
            for image, path in zip(split.images, split.paths, strict=True):
                np.testing.assert_array_equal(image, preprocessing.prepare(photos / path).pixels)


def test_a_run_finds_the_copy_that_training_made(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size and the fit that were decided, without a look at the images."""
    dataset = load(photos)
    for name in ("decode", "measure"):
        monkeypatch.setattr(prepare, name, None)
    assert_equal(dataset, load(photos, image_size=dataset.image_size, fit=dataset.fit))


def test_splits_are_rows_of_one_mapped_file(photos: Path) -> None:
    dataset = load(photos)
    assert isinstance(dataset.train.store, MappedRows)
    assert dataset.train.store is dataset.test.store
    indices = torch.tensor([3, 0, 5])
    assert torch.equal(dataset.train.batch(indices), dataset.train.images[indices])
    assert torch.equal(torch.cat(list(dataset.train.batches(4))), dataset.train.images)
    assert torch.equal(dataset.train.image(2), dataset.train.images[2])
    assert torch.equal(dataset.train.batch(indices.numpy()), dataset.train.images[indices])
    with pytest.raises(IndexError):
        dataset.train.store.read(np.array([len(dataset.train.store)]))


def test_mean_and_std_are_those_of_the_training_images(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the sums in the copy: a start reads no pixels, so their pages stay out of memory."""
    Image.fromarray(np.full((30, 30), 9, np.uint8)).save(photos / "cat" / "0.png")  # gray, then colour
    load(photos, image_size=8)
    with monkeypatch.context() as patched:
        patched.setattr(Split, "batch", None)
        dataset = load(photos, image_size=8, train_per_class=5)
    pixels = dataset.train.images.numpy().transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert len(dataset.train) == 10
    assert dataset.mean == pytest.approx(pixels.mean(axis=1), abs=5.1e-5)
    assert dataset.std == pytest.approx(pixels.std(axis=1), abs=5.1e-5)


def test_sums_of_large_images_do_not_overflow() -> None:
    white = torch.full((1, 1, 2100, 2100), 255, dtype=torch.uint8)  # their squares exceed 2³⁷
    assert Split(white, torch.zeros(1, dtype=torch.int64)).sums.tolist() == [[255 * 2100**2, 255**2 * 2100**2]]


def test_gray_and_colour(tmp_path: Path) -> None:
    """Whichever comes first, and gray stored in colour: as one channel where all are gray."""
    gray = write_photos(tmp_path / "gray", 3, colour=False)
    Image.open(gray / "cat" / "1.png").convert("RGB").save(gray / "cat" / "1.png")
    assert load(gray, image_size=8).channels == 1
    Image.fromarray(np.full((9, 9, 3), (200, 10, 10), np.uint8)).save(gray / "dog" / "zzz.png")
    mixed = load(gray, image_size=8, fit="stretch")
    assert mixed.channels == 3
    for image, path in zip(mixed.train.images, mixed.train.paths, strict=True):
        if "zzz" not in path:
            expected = Preprocessing.for_dataset(load(gray, image_size=8, fit="stretch", channels=1))
            assert torch.equal(image[0], image[2])
            np.testing.assert_array_equal(image[:1], expected.prepare(gray / path).pixels)


# --- what makes another copy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["content", "time", "name", "new", "gone", "class", "size", "fit", "channels"])
def test_a_change_is_noticed(photos: Path, copies: Path, change: str) -> None:
    before = load(photos, image_size=10, fit="stretch")
    (made,) = prepared_cache.list_copies()
    file, options = photos / "cat" / "3.png", {"image_size": 10, "fit": "stretch"}
    stamp = file.stat()
    if change == "content":  # of the same size and time
        Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(file)
        with file.open("ab") as stream:
            stream.write(bytes(max(0, stamp.st_size - file.stat().st_size)))
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(0, 0))
    elif change == "name":
        file.rename(file.with_name("other.png"))
    elif change == "new":
        shutil.copy(file, file.with_name("other.png"))
    elif change == "gone":
        file.unlink()
    elif change == "class":
        (photos / "cat").rename(photos / "lion")
    else:
        options |= {"size": {"image_size": 12}, "fit": {"fit": "crop"}, "channels": {"channels": 1}}[change]  # type: ignore[operator, arg-type]
    after = load(photos, **options)
    assert len(prepared_cache.list_copies()) == 2
    assert made.folder.exists()
    if change == "content":
        assert before.checksums != after.checksums
    if change in ("size", "fit", "channels", "time"):
        assert before.checksums == after.checksums, "of the source images, whatever they are converted to"


# --- damage, interruption, several processes ---------------------------------------------------------------------


DAMAGED = ("no pixels", "no rows", "no names", "pixel", "truncated", "record", "empty record", "a name", "a label")
GONE = ("no record",)


@pytest.mark.parametrize("damage", [*DAMAGED, *GONE])
def test_a_damaged_copy_is_made_again(photos: Path, damage: str) -> None:
    before = load(photos)
    # a mapped file that is damaged in place changes under its readers
    expected, names_before = everything(before), tuple(before.train.paths)
    (copy,) = prepared_cache.list_copies()
    pixels, record = prepared.shard_file(copy.folder, 0, "pixels"), copy.folder / prepared.MANIFEST
    if damage == "pixel":
        data = bytearray(pixels.read_bytes())
        data[-100] ^= 1
        stamp = pixels.stat()
        pixels.write_bytes(data)
        os.utime(pixels, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    elif damage == "truncated":
        pixels.write_bytes(pixels.read_bytes()[:-1])
    elif damage == "record":
        record.write_text(record.read_text().replace('"dog"', '"dot"'))
    elif damage == "empty record":
        record.write_text("")
    elif damage == "a name":
        names = prepared.shard_file(copy.folder, 0, "names")
        names.write_text(names.read_text().replace("cat/3.png", "cat/4.png"))
    elif damage == "a label":
        rows = prepared.shard_file(copy.folder, 0, "rows")
        rows.write_bytes(rows.read_bytes()[:-1] + b"\1")
    else:
        part = damage.removeprefix("no ")
        (record if part == "record" else prepared.shard_file(copy.folder, 0, part)).unlink()
    again = load(photos)
    for one, other in zip(expected, everything(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (again.train.paths, again.test.sha256) == (names_before, before.test.sha256)
    noted = "the prepared copy of these images was damaged and has been made again"
    assert (noted in again.notes) == (damage in DAMAGED)
    assert load(photos).notes == before.notes


def test_a_large_copy_is_trusted_while_its_size_and_time_stay(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "ALWAYS_HASHED", 100)
    expected = everything(load(photos))
    (copy,) = prepared_cache.list_copies()
    pixels = prepared.shard_file(copy.folder, 0, "pixels")
    data = bytearray(pixels.read_bytes())
    data[-100] ^= 1
    pixels.write_bytes(data)
    os.utime(pixels, ns=(0, prepared.read_manifest(copy.folder).shards[0].time))
    assert sum((a != b).sum() for a, b in zip(expected, everything(load(photos)), strict=True)) == 1
    os.utime(pixels)
    for one, other in zip(expected, everything(load(photos)), strict=True):
        np.testing.assert_array_equal(one, other)


SCRIPT = """
import sys
from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset
dataset = load_dataset(DataConfig(name=sys.argv[1], image_size=int(sys.argv[2]), fit="crop"))
print(len(dataset.train), dataset.test.sha256)
"""


def test_killed_at_any_moment_nothing_wrong_is_left(tmp_path: Path, copies: Path) -> None:
    photos = write_photos(tmp_path / "many", 300)
    expected = load(photos, image_size=64, fit="crop")
    shutil.rmtree(copies)
    for delay in (0.0, 0.15, 0.5, 1.0):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(photos), "64"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not copies.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert_equal(expected, load(photos, image_size=64, fit="crop"))
    prepared_cache.make_room(copies / "none")
    assert not list(copies.glob("*.part")), "leftovers of killed processes are removed"


def test_interrupted_it_leaves_nothing(photos: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(items, target):  # type: ignore[no-untyped-def]
        for index, image in enumerate(workers.decode(items, target)):
            if index == 5:
                raise KeyboardInterrupt
            yield image

    monkeypatch.setattr(prepare, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(photos)
    assert not [entry for entry in copies.iterdir() if entry.is_dir()]


def test_two_processes_at_once(tmp_path: Path, copies: Path) -> None:
    photos = write_photos(tmp_path / "many", 100)
    command = [sys.executable, "-c", SCRIPT, str(photos), "32"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate(timeout=120)[0] for process in both)
    assert first == second != ""
    assert len(prepared_cache.list_copies()) == 1


@pytest.mark.parametrize("obstacle", ["a file", "no permission"])
def test_an_unwritable_cache(photos: Path, copies: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(photos)
    shutil.rmtree(copies)
    if obstacle == "a file":
        copies.write_text("not a folder")
    else:

        def refuse(path: Path, *_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        make = Path.mkdir
        monkeypatch.setattr(Path, "mkdir", lambda path, *a, **k: (refuse if path == copies else make)(path, *a, **k))
    assert_equal(expected, load(photos))


def test_a_full_disk_is_one_sentence(photos: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 5000))  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"24 images in 50×50 pixels need .* on the disk, and .* are free in .*copies"):
        load(photos, image_size=50)


# --- the bound ---------------------------------------------------------------------------------------------------


def width_of(copy: Path) -> int:
    return int(np.load(prepared.shard_file(copy, 0, "pixels"), mmap_mode="r").shape[-1])


def test_the_least_recently_used_copies_make_room(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, size in enumerate((20, 21, 22)):
        load(photos, image_size=size)
        newest = max(prepared_cache.list_copies(), key=lambda copy: copy.used)
        os.utime(newest.folder, (1000 + age, 1000 + age))
    load(photos, image_size=20)  # used again
    one = max(copy.bytes for copy in prepared_cache.list_copies())
    monkeypatch.setenv(prepared_cache.LIMIT_VARIABLE, str(3.2 * one / 1e9))
    load(photos, image_size=23)
    shapes = [width_of(copy.folder) for copy in prepared_cache.list_copies()]
    assert sorted(shapes) == [20, 22, 23]
    monkeypatch.setenv(prepared_cache.LIMIT_VARIABLE, "0")
    load(photos, image_size=24)
    (left,) = prepared_cache.list_copies()
    assert width_of(left.folder) == 24
    assert prepared_cache.remove_all() == (1, left.bytes)
    assert prepared_cache.list_copies() == []


def test_a_limit_that_is_no_number(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(prepared_cache.LIMIT_VARIABLE, "lots")
    with pytest.raises(DataError, match="VITREOUS_PREPARED_GB is 'lots'; expected a number of gigabytes"):
        load(photos)
