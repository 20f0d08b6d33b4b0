"""`vitreous data prepare`: any source as shards, the same data set as its source; resumed, damaged, refused."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processes import Processes

from vitreous.config import DataConfig
from vitreous.data import mapped, prepare_folder, prepared, workers
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.mapped import MappedRows
from vitreous.data.prepare_folder import PreparationInterrupted
from vitreous.data.prepared import MANIFEST, shard_file, verify_folder
from vitreous.data.splits import View
from vitreous.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_PREPARED", str(tmp_path / "copies"))


def write_photos(root: Path, count: int = 15, splits: tuple[str, ...] = ("train", "test")) -> Path:
    for split, name in itertools.product(splits, ("cat", "dog")):
        (root / split / name).mkdir(parents=True)
        for index in range(count):
            height, width = RNG.integers(20, 40, 2)
            pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / name / f"{index}.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def prepare(source: object, folder: Path, **options: object) -> prepare_folder.Result:
    return prepare_folder.prepare_folder(str(source), folder, **options)  # type: ignore[arg-type]


def load(source: object, **options: object) -> Dataset:
    return load_dataset(DataConfig(name=str(source), **options))  # type: ignore[arg-type]


def by_name(dataset: Dataset) -> dict[str, tuple[int, bytes]]:
    train = dataset.train
    return {
        name: (int(label), image.numpy().tobytes())
        for name, label, image in zip(train.paths, train.labels, train.images, strict=True)
    }


def assert_same(ours: Dataset, theirs: Dataset) -> None:
    """Equal but for the order of the training images, which is that of the shards."""
    for one, other in ((ours.val, theirs.val), (ours.test, theirs.test)):
        assert (one.sha256, one.labels.tolist()) == (other.sha256, other.labels.tolist())
        assert torch.equal(one.images, other.images)
    assert sorted(ours.train.digests.tolist()) == sorted(theirs.train.digests.tolist())
    for name in ("class_names", "mean", "std", "polarity", "fit", "duplicates"):
        assert getattr(ours, name) == getattr(theirs, name), name


# --- the same data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 7])
def test_a_folder_is_the_data_set_of_its_source(photos: Path, tmp_path: Path, shards: int) -> None:
    """Same size, same images, names, labels, splits and checksum: models of both can be compared."""
    options = {"image_size": 24, "fit": "crop"}
    theirs = load(photos, **options)
    result = prepare(photos, tmp_path / "shards", size=(24, 24), fit="crop", shards=shards)
    ours = load(tmp_path / "shards")
    assert_same(ours, theirs)
    assert ours.checksums == theirs.checksums
    assert by_name(ours) == by_name(theirs)
    assert len(result.manifest.shards) == shards
    assert list(ours.test.paths) == list(theirs.test.paths)
    assert load(tmp_path / "shards", split_seed=1).val.sha256 == load(photos, **options, split_seed=1).val.sha256


@pytest.mark.parametrize("kind", ["digits", "npz", "npy", "shards again"])
def test_arrays_and_known_data_sets(tmp_path: Path, kind: str) -> None:
    source: object = kind
    if kind == "npz":
        source = tmp_path / "colour.npz"
        labels = np.array(["a", "b"])[np.arange(60) % 2]
        np.savez(source, images=RNG.integers(0, 256, (60, 9, 8, 3), dtype=np.uint8), labels=labels)
    elif kind == "npy":
        source = tmp_path / "X.npy"
        np.save(source, RNG.integers(0, 256, (60, 9, 8), dtype=np.uint8))
        np.save(tmp_path / "y.npy", np.arange(60) % 3)
    elif kind == "shards again":
        source = tmp_path / "first"
        prepare(write_photos(tmp_path / "photos"), tmp_path / "first", size=(12, 12), shards=3)
    prepare(source, tmp_path / "shards", shards=2)
    assert_same(load(tmp_path / "shards"), load(source))


def test_the_training_images_are_in_the_order_of_the_shards(photos: Path, tmp_path: Path) -> None:
    prepare(photos, tmp_path / "shards", size=(24, 24), shards=4)
    train = load(tmp_path / "shards").train
    assert isinstance(train.store, MappedRows)
    assert train.rows is not None
    assert train.rows.tolist() == sorted(train.rows.tolist())
    assert train.block == 2**22 // (3 * 24 * 24)
    assert 0 < train.labels[: len(train) // 2].float().mean() < 1, "shuffled, not by class"
    assert load(photos).train.block is None


def test_gray_and_colour_in_different_shards(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", count=8)
    for file in photos.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    prepare(photos, tmp_path / "gray", size=(8, 8), shards=5)
    assert load(tmp_path / "gray").channels == 1
    Image.new("RGB", (30, 30), (200, 10, 10)).save(photos / "train" / "cat" / "0.png")
    result = prepare(photos, tmp_path / "mixed", size=(8, 8), shards=5)
    assert {shard.channels for shard in result.manifest.shards} == {3}
    ours, theirs = load(tmp_path / "mixed"), load(photos, image_size=8)
    assert_same(ours, theirs)
    assert set(verify_folder(tmp_path / "mixed").values()) == {"ok"}


# --- another size than the stored one ----------------------------------------------------------------------------


def test_images_are_resized_when_they_are_read(photos: Path, tmp_path: Path) -> None:
    prepare(photos, tmp_path / "shards", size=(32, 32), shards=3)
    stored, smaller = load(tmp_path / "shards"), load(tmp_path / "shards", image_size=(14, 10), channels=1)
    assert smaller.train.view == View((14, 10), 1, "stretch")
    assert smaller.train.image_shape == (1, 14, 10)
    assert smaller.train.image(3).shape == (1, 14, 10)
    assert smaller.train.stored_batch(torch.tensor([1, 2])).shape == (2, 1, 32, 32)
    assert stored.train.stored_batch(slice(0, 2)).shape == (2, 3, 32, 32)
    expected = Image.fromarray(stored.test.image(5).permute(1, 2, 0).numpy())
    for size in ((10, 32), (10, 14)):
        expected = expected.resize(size, Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(smaller.test.image(5)[0], np.asarray(expected.convert("L")))
    assert smaller.test.sha256 == stored.test.sha256
    gray = smaller.train.images.numpy() / 255
    assert smaller.mean == pytest.approx([gray.mean()], abs=1e-4)
    assert smaller.std == pytest.approx([gray.std()], abs=1e-4)
    assert load(tmp_path / "shards", image_size=14).std == stored.std, "of the stored size"


# --- interrupted -------------------------------------------------------------------------------------------------


def test_interrupted_it_goes_on(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(items, target):  # type: ignore[no-untyped-def]
        for index, image in enumerate(workers.decode(items, target)):
            if index == 25:
                raise KeyboardInterrupt
            yield image

    folder = tmp_path / "shards"
    with monkeypatch.context() as patched:
        patched.setattr(prepare_folder, "decode", interrupted)
        with pytest.raises(PreparationInterrupted, match="stopped with 2 of 6 shards finished: run the same command"):
            prepare(photos, folder, size=(16, 16), shards=6)
    with pytest.raises(
        DataError, match=r"unfinished, with 2 of 6 shards: finish it with `vitreous data prepare .*/photos"
    ):
        load(folder)
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.glob("0000[01]-*")}
    assert len(stamps) == 6
    assert prepare(photos, folder, size=(16, 16), shards=6).kept == 2
    assert {name: (folder / name).stat().st_mtime_ns for name in stamps} == stamps
    assert not list(folder.glob("*.part"))
    prepare(photos, tmp_path / "whole", size=(16, 16), shards=6)
    for file in (tmp_path / "whole").glob("0*"):
        assert (folder / file.name).read_bytes() == file.read_bytes()


def test_stopped_or_killed_it_goes_on(tmp_path: Path, processes: Processes) -> None:
    photos, folder = write_photos(tmp_path / "photos", count=60), tmp_path / "shards"
    command = ("data", "prepare", str(photos), "-o", str(folder), "--size", "64", "--shards", "30")
    for number, finished in ((signal.SIGINT, 1), (signal.SIGKILL, 6)):
        process = processes.vitreous(*command)
        deadline = time.monotonic() + 60
        while len(list(folder.glob("*-names.txt"))) < finished and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(number)
        _, errors = process.communicate()
        if number == signal.SIGINT:
            assert process.wait() == 130
            assert re.search(r"stopped with \d+ of 30 shards finished: run the same command again to go on", errors)
            assert "Traceback" not in errors
    result = prepare(photos, folder, size=(64, 64), shards=30)
    assert result.kept >= 5
    assert set(verify_folder(folder).values()) == {"ok"}
    assert_same(load(folder), load(photos, image_size=64, fit=result.manifest.content.fit))


def test_a_damaged_shard_is_made_again_and_the_others_kept(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    prepare(photos, folder, size=(16, 16), shards=5)
    before = {file.name: file.read_bytes() for file in folder.glob("0*")}
    flip_a_bit(shard_file(folder, 2, "pixels"))
    shard_file(folder, 3, "names").unlink()
    assert prepare(photos, folder, size=(16, 16), shards=5).kept == 3
    assert {file.name: file.read_bytes() for file in folder.glob("0*")} == before


# --- damage and mistakes -----------------------------------------------------------------------------------------


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-50] ^= 1
    file.write_bytes(data)


def edit_manifest(folder: Path, **changes: object) -> None:
    record = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(record | changes))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda folder: os.truncate(shard_file(folder, 1, "pixels"), 3000),
        r"00001-pixels.npy is truncated: it has 3,000 bytes instead of .*, which keeps the other shards",
    ),
    "checksum": (
        lambda folder: flip_a_bit(shard_file(folder, 1, "pixels")),
        r"00001-pixels.npy is damaged: it does not have its SHA-256: restore it, or make it again with `vitreous data",
    ),
    "labels": (lambda folder: flip_a_bit(shard_file(folder, 0, "rows")), "00000-rows.npy is damaged"),
    "no shard": (lambda folder: shard_file(folder, 2, "pixels").unlink(), "00002-pixels.npy is missing"),
    "no manifest": (
        lambda folder: (folder / MANIFEST).unlink(),
        r"has shards of prepared images and no prepared\.json",
    ),
    "edited": (lambda folder: edit_manifest(folder, size=[8, 8]), "prepared.json does not have its checksum"),
    "version": (
        lambda folder: edit_manifest(folder, format=99),
        "prepared.json has format 99, and this version reads 3: install the vitreous that wrote it, or prepare",
    ),
    "no JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "prepared.json is not a manifest of prepared"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence(photos: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "shards"
    prepare(photos, folder, size=(16, 16), shards=3)
    act, sentence = DAMAGE[name]
    act(folder)
    with pytest.raises(DataError, match=sentence) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_more_than_512_mb_are_checked_by_size_and_verified_on_demand(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"
    prepare(photos, folder, size=(16, 16), shards=3)
    monkeypatch.setattr(prepared, "ALWAYS_HASHED", 100)
    flip_a_bit(shard_file(folder, 1, "pixels"))
    load(folder)
    statuses = verify_folder(folder)
    assert statuses.pop("00001-pixels.npy") == "corrupt"
    assert set(statuses.values()) == {"ok"}
    flip_a_bit(shard_file(folder, 1, "rows"))
    with pytest.raises(DataError, match=r"00001-rows\.npy is damaged"):
        load(folder)


def test_mistakes_are_one_sentence_and_nothing_is_lost(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    prepare(photos, folder, size=(16, 16), shards=3)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(DataError, match=r"photos in 16×16 and 3 shards, not .*photos in 20×20 and 3 shards"):
        prepare(photos, folder, size=(20, 20), shards=3)
    Image.new("RGB", (9, 9)).save(photos / "train" / "cat" / "new.png")
    with pytest.raises(DataError, match="before the source or the fit changed"):
        prepare(photos, folder, size=(16, 16), shards=3)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    with pytest.raises(DataError, match=r"inside is in .*photos, whose images would then be listed twice"):
        prepare(tmp_path / "photos", tmp_path / "photos" / "inside")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("important")
    with pytest.raises(DataError, match="mine is not empty and holds no prepared images; name a new folder"):
        prepare(photos, tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with pytest.raises(DataError, match="is a file; name a folder"):
        prepare(photos, tmp_path / "mine" / "thesis.txt")
    for shards in (0, 10**6):
        with pytest.raises(DataError, match=rf"--shards {shards}: expected 1 to 61"):
            prepare(photos, tmp_path / "new", shards=shards)
    assert not (tmp_path / "new").exists()


def test_a_full_disk_keeps_the_finished_shards(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write = tmp_path / "shards", prepare_folder.write_decoded
    calls = itertools.count()

    def full(*arguments: object) -> None:
        if next(calls) == 45:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(prepare_folder, "write_decoded", full)
        with pytest.raises(
            DataError, match=r"60 images in 16×16 pixels need .* are free in .*; the finished shards are"
        ):
            prepare(photos, folder, size=(16, 16), shards=6)
    assert prepare(photos, folder, size=(16, 16), shards=6).kept == 4
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 50))  # type: ignore[attr-defined]
        with pytest.raises(DataError, match="make room, or name another folder"):
            prepare(photos, tmp_path / "other", size=(16, 16))


def test_files_that_cannot_be_read(photos: Path, tmp_path: Path) -> None:
    (photos / "train" / "cat" / "3.png").write_bytes(b"no image")
    folder = tmp_path / "shards"
    with pytest.raises(
        DataError, match=r"1 of 60 files of .*photos cannot be read: .*cat/3.png.*leave it out with skip_corrupt=True"
    ):
        prepare(photos, folder, size=(16, 16), shards=3)
    result = prepare(photos, folder, size=(16, 16), shards=3, skip_corrupt=True)
    assert result.kept == 3, "nothing is decoded again"
    dataset = load(folder)
    assert len(dataset.train) + len(dataset.val) + len(dataset.test) == 59
    assert dataset.skipped == ("train/cat/3.png",)
    assert_same(dataset, load(photos, image_size=16, fit=dataset.fit, skip_corrupt=True))


# --- memory ------------------------------------------------------------------------------------------------------


def test_pages_that_were_read_are_given_back(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(photos, tmp_path / "shards", size=(64, 64), shards=2)
    monkeypatch.setattr(mapped, "KEPT_BYTES", 2**17)
    given = []
    monkeypatch.setattr(mapped.MappedArray, "give_back", lambda file: given.append(file))
    dataset = load(tmp_path / "shards")
    given.clear()
    expected = dataset.train.images
    assert len(given) >= 2
    assert torch.equal(torch.cat(list(dataset.train.batches(7))), expected)
