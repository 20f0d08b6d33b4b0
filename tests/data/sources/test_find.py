"""From a name to a data set: every kind of source, through the prepared copy."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitreous.config import DataConfig
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.sources import shards, tables
from vitreous.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2
NAMES = ("cat", "dog")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(name: object) -> Dataset:
    return load_dataset(DataConfig(name=str(name), val_fraction=0))


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS[number]).save(stream, "PNG")
    return stream.getvalue()


def check(data: Dataset, num_test: int | None = 4) -> None:
    """Check that each image has its label; with `num_test`, that the last ones are the test set."""
    found = {
        image.permute(1, 2, 0).numpy().tobytes(): data.class_names[label]
        for split in (data.train, data.val, data.test)
        for image, label in zip(split.images, split.labels, strict=True)
    }
    assert found == {PIXELS[n].tobytes(): NAMES[LABELS[n]] for n in range(20)}
    assert data.class_names == NAMES
    if num_test is not None:
        assert {image.permute(1, 2, 0).numpy().tobytes() for image in data.test.images} == {
            PIXELS[n].tobytes() for n in range(20 - num_test, 20)
        }


def split_of(number: int) -> str:
    return "test" if number >= 16 else "train"


def write_files(folder: Path) -> list[str]:
    (folder / "images").mkdir(parents=True)
    for number in range(20):
        (folder / "images" / f"{number}.png").write_bytes(png(number))
    return [f"images/{number}.png,{NAMES[LABELS[number]]},{split_of(number)}" for number in range(20)]


def write_tar(path: Path, numbers: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            for suffix, data in (("png", png(number)), ("cls", NAMES[LABELS[number]].encode())):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def table(numbers: range) -> pa.Table:
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    made = pa.table(
        {
            "image": [{"bytes": png(number), "path": None} for number in numbers],
            "label": [int(LABELS[number]) for number in numbers],
        }
    )
    return made.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})


def test_manifests_and_folders_with_one(tmp_path: Path) -> None:
    rows = write_files(tmp_path / "photos")
    (tmp_path / "photos" / "list.csv").write_text("path,label,split\n" + "\n".join(rows), encoding="utf-8")
    check(load(tmp_path / "photos" / "list.csv"))
    data = load(tmp_path / "photos")
    check(data)
    assert "the labels are those of list.csv, in the same folder" in data.notes
    (tmp_path / "photos" / "list.csv").rename(tmp_path / "photos" / "metadata.csv")
    check(load(tmp_path / "photos"))


def test_missing_files_of_a_manifest_are_listed_at_once(tmp_path: Path) -> None:
    rows = write_files(tmp_path)
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows), encoding="utf-8")
    for number in (3, 5):
        (tmp_path / "images" / f"{number}.png").unlink()
    with pytest.raises(DataError, match=r"2 of 20 files of .*images/3\.png.*images/5\.png"):
        load(tmp_path / "list.csv")


@pytest.mark.parametrize("name", ["shards", "shards/{train,test}-{000..000}.tar"])
def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_tar(tmp_path / "shards" / "train-000.tar", range(16))
    write_tar(tmp_path / "shards" / "test-000.tar", range(16, 20))
    check(load(tmp_path / name))
    monkeypatch.setattr(shards, "list_shards", None)  # a second start does not scan the shards
    check(load(tmp_path / name))


def test_one_shard_and_folders_of_splits(tmp_path: Path) -> None:
    write_tar(tmp_path / "all.tar", range(20))
    check(load(tmp_path / "all.tar"), num_test=None)
    write_tar(tmp_path / "set" / "train" / "0.tar", range(16))
    write_tar(tmp_path / "set" / "test" / "0.tar", range(16, 20))
    check(load(tmp_path / "set"))


@pytest.mark.parametrize("layout", ["{}-00000-of-00001.parquet", "data/{}-0.parquet", "{}/0.parquet"])
def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, layout: str) -> None:
    for split, numbers in (("train", range(16)), ("test", range(16, 20))):
        (tmp_path / "set" / layout.format(split)).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(numbers), tmp_path / "set" / layout.format(split))
    check(load(tmp_path / "set"))
    assert not list(cache.glob(".spool-*")), "the unpacked images are removed"
    monkeypatch.setattr(tables, "list_tables", None)  # a second start does not unpack again
    check(load(tmp_path / "set"))


def test_a_changed_parquet_file_is_read_again(tmp_path: Path) -> None:
    pq.write_table(table(range(20)), tmp_path / "a.parquet")
    check(load(tmp_path / "a.parquet"), num_test=None)
    pq.write_table(table(range(10)), tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet")
    assert len(data.train) + len(data.test) == 10


def test_folders_of_hugging_face_datasets(tmp_path: Path) -> None:
    for split, numbers in (("train", range(16)), ("test", range(16, 20))):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        made = table(numbers)
        with pa.OSFile(str(folder / "data-0.arrow"), "wb") as stream, pa.ipc.new_stream(stream, made.schema) as writer:
            writer.write_table(made)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}', encoding="utf-8")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    check(load(tmp_path / "saved"))
    data = load(tmp_path / "saved" / "train")
    assert len(data.train) + len(data.test) == 16


def test_class_folders_win_over_stray_files(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / "photos" / NAMES[LABELS[number]] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    write_tar(tmp_path / "photos" / "backup.tar", range(3))
    (tmp_path / "photos" / "metadata.csv").write_text("file_name,caption\na.png,a cat\n", encoding="utf-8")
    check(load(tmp_path / "photos"), num_test=None)


def test_spools_of_killed_processes_are_removed(tmp_path: Path, cache: Path) -> None:
    pq.write_table(table(range(20)), tmp_path / "a.parquet")
    for name, age in ((".spool-old", 2 * 24 * 3600), (".spool-new", 60)):
        (cache / name).mkdir(parents=True)
        (cache / name / "images").write_bytes(b"1")
        then = (cache / name).stat().st_mtime - age
        os.utime(cache / name, (then, then))
    load(tmp_path / "a.parquet")
    assert [path.name for path in cache.glob(".spool-*")] == [".spool-new"]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.TGZ", "a.tar.zst"])
def test_compressed_shards_are_refused_with_the_way(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match=f"{name} is compressed, so its images cannot be read in place; decompress it"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "none.csv",
            r"there is no file or folder 'none\.csv'; expected mnist, .*, a folder with .*, or a \.csv, \.tsv",
        ),
        ("none.parquet", r"there is no file or folder 'none\.parquet'"),
        ("none-{0..1}.tar", r"there is no none-0\.tar and none-1\.tar"),
        ("prepared:20-images-0123456789abcdef", r"is not in the cache .*; pass the same data again"),
        ("", "no data set is named; expected mnist"),
    ],
)
def test_names_of_nothing(name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=sentence) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"photos\.zip' is no file that data are read from; unpack it first: expected"):
        load(tmp_path / "photos.zip")
    (tmp_path / "a.png").write_bytes(png(0))
    with pytest.raises(DataError, match=r"a\.png' is no file that data are read from; expected mnist"):
        load(tmp_path / "a.png")
