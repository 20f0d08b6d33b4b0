"""Parquet files and Arrow folders, written as the Hugging Face hub and `datasets.save_to_disk` write them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitreous.data.items import Item, Listing
from vitreous.data.sources.columns import split_files
from vitreous.data.sources.tables import arrow_files, list_tables
from vitreous.errors import DataError, MissingExtraError

NAMES = ["cat", "dog", "owl"]


def png(shade: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), shade).save(stream, "PNG")
    return stream.getvalue()


def hugging_face(image: str = "image", label: str = "label", names: list[str] | None = NAMES) -> dict[bytes, bytes]:
    features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def table(
    images: list[Any], labels: list[Any], metadata: dict[bytes, bytes] | None = None, **more: list[Any]
) -> pa.Table:
    made = pa.table({"image": images, "label": labels, **more})
    return made.replace_schema_metadata(metadata) if metadata else made


def structs(*shades: int) -> list[dict[str, object]]:
    return [{"bytes": png(shade), "path": f"{shade}.png"} for shade in shades]


def read(tmp_path: Path, *files: Path) -> Listing:
    return list_tables("source", split_files(files, "source"), tmp_path / "spool")


def content(item: Item) -> bytes:
    assert item.size is not None
    return Path(item.path).read_bytes()[item.offset : item.offset + item.size]


def test_files_as_the_hub_has_them(tmp_path: Path) -> None:
    pq.write_table(table(structs(1, 2, 3), [2, 0, 2], hugging_face()), tmp_path / "train-00000-of-00001.parquet")
    pq.write_table(table(structs(4), [1], hugging_face()), tmp_path / "validation-00000-of-00001.parquet")
    pq.write_table(table(structs(5), [0], hugging_face()), tmp_path / "test-00000-of-00001.parquet")
    listing = read(tmp_path, *sorted(tmp_path.glob("*.parquet")))
    assert listing.class_names == ("cat", "dog", "owl")
    assert [(content(item), item.label, item.split) for item in listing.items] == [
        (png(5), 0, "test"), (png(1), 2, "train"), (png(2), 0, "train"), (png(3), 2, "train"), (png(4), 1, "val"),
    ]  # fmt: skip
    assert listing.items[1].name == "train-00000-of-00001.parquet, row 0"


def test_many_row_groups_give_every_image_once(tmp_path: Path) -> None:
    shades = list(range(200))
    pq.write_table(table(structs(*shades), [n % 2 for n in shades]), tmp_path / "a.parquet", row_group_size=30)
    listing = read(tmp_path, tmp_path / "a.parquet")
    assert [content(item) for item in listing.items] == [png(shade) for shade in shades]
    assert (tmp_path / "spool").stat().st_size == sum(len(png(shade)) for shade in shades)


@pytest.mark.parametrize(
    ("made", "class_names"),
    [
        (pa.table({"img": [png(1), png(2)], "fine_label": [10, 9]}), ("9", "10")),
        (pa.table({"Picture": pa.array([png(1), png(2)], pa.large_binary()), "Class": ["b", "a"]}), ("a", "b")),
        (pa.table({"image": structs(1, 2), "label": pa.array(["b", "a"]).dictionary_encode()}), ("a", "b")),
        (pa.table({"image": structs(1, 2), "y": [1.0, 0.0]}), ("0", "1")),
        (
            pa.table({"digit": structs(1, 2), "kind": [1, 0]}).replace_schema_metadata(
                hugging_face("digit", "kind", ["a", "b"])
            ),
            ("a", "b"),
        ),
    ],
)
def test_other_columns(tmp_path: Path, made: pa.Table, class_names: tuple[str, ...]) -> None:
    pq.write_table(made, tmp_path / "a.parquet")
    listing = read(tmp_path, tmp_path / "a.parquet")
    assert [content(item) for item in listing.items] == [png(1), png(2)]
    assert listing.class_names == class_names
    assert [item.label for item in listing.items] == [1, 0]


def test_a_column_of_splits(tmp_path: Path) -> None:
    made = pa.table({"image": structs(1, 2), "label": ["x", "x"], "split": ["train", "validation"]})
    pq.write_table(made, tmp_path / "a.parquet")
    assert [item.split for item in read(tmp_path, tmp_path / "a.parquet").items] == ["train", "val"]


def test_a_split_without_labels_is_left_out(tmp_path: Path) -> None:
    pq.write_table(table(structs(1, 2), [0, 1], hugging_face()), tmp_path / "train.parquet")
    pq.write_table(table(structs(3), [-1], hugging_face()), tmp_path / "test.parquet")
    listing = read(tmp_path, *sorted(tmp_path.glob("*.parquet")))
    assert {item.split for item in listing.items} == {"train"}
    assert listing.notes == ("the test split has no labels and is left out",)


def save_to_disk(folder: Path, made: pa.Table, **state: object) -> None:
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as stream,
        pa.ipc.new_stream(stream, made.schema) as w,
    ):
        w.write_table(made, max_chunksize=2)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], **state}), encoding="utf-8"
    )
    (folder / "dataset_info.json").write_text("{}", encoding="utf-8")


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "one", table(structs(1, 2, 3), [0, 1, 2], hugging_face()))
    (tmp_path / "one" / "cache-123.arrow").write_bytes(b"left over by datasets.map")
    listing = list_tables("one", arrow_files(tmp_path / "one"), tmp_path / "spool")
    assert [content(item) for item in listing.items] == [png(1), png(2), png(3)]
    assert listing.class_names == ("cat", "dog", "owl")
    both = tmp_path / "both"
    for split, shades in (("train", (1, 2)), ("test", (3,))):
        save_to_disk(both / split, table(structs(*shades), [0] * len(shades), hugging_face()))
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    listing = list_tables("both", arrow_files(both), tmp_path / "spool")
    assert [item.split for item in listing.items] == ["train", "train", "test"]


def test_folders_of_save_to_disk_that_cannot_be_used(tmp_path: Path) -> None:
    made = table(structs(1), [0], hugging_face())
    save_to_disk(tmp_path / "a", made, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(
        DataError, match=r"stores a selection of rows; save it again after dataset\.flatten_indices\(\)"
    ):
        arrow_files(tmp_path / "a")
    save_to_disk(tmp_path / "b", made, _data_files=[])
    with pytest.raises(DataError, match="names no data files"):
        arrow_files(tmp_path / "b")
    save_to_disk(tmp_path / "c", made, _data_files=[{"filename": "../b/data-00000-of-00001.arrow"}])
    assert arrow_files(tmp_path / "c")[0][1].parent == tmp_path / "c", "never another folder"
    (tmp_path / "c" / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        arrow_files(tmp_path / "c")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["en"]}', encoding="utf-8")
    with pytest.raises(DataError, match="has the split 'en'; expected train, validation and test"):
        arrow_files(tmp_path)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            pa.table({"image": structs(1), "size": [3]}),
            r"a\.parquet has no label column: its columns are 'image' and 'size'",
        ),
        (pa.table({"path": ["a.png"], "label": [3]}), r"row 0 has the path 'a\.png' instead of an image; embed"),
        (
            pa.table({"image": [{"bytes": None, "path": "a.png"}], "label": [3]}),
            r"row 0 has the path 'a\.png' instead of an image; embed the images, or list the files in a CSV file",
        ),
        (pa.table({"text": ["x"], "label": [3]}), r"a\.parquet has no image column"),
        (
            pa.table({"left": structs(1), "right": structs(1), "label": [3]}),
            "the image columns 'left' and 'right'; name",
        ),
        (pa.table({"image": [png(1), None], "label": [3, 4]}), "row 1 has no image"),
        (
            pa.table({"image": structs(1), "label": [[1, 2]]}),
            r"row 0 has \[1, 2\] as its label; expected text or an integer",
        ),
        (pa.table({"image": structs(1, 2), "label": [1, None]}), "row 1 has no label"),
        (table(structs(1, 2), [0, 5], hugging_face()), "has the label '5'; beside its class names, expected 0 to 2"),
        (
            pa.table({"image": structs(1), "label": [1], "split": ["dev?"]}),
            "row 0 has the split 'dev.'; expected train",
        ),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, made: pa.Table, sentence: str) -> None:
    pq.write_table(made, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=sentence) as caught:
        read(tmp_path, tmp_path / "a.parquet")
    assert "\n" not in str(caught.value)


def test_files_that_are_damaged_or_disagree(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read .* is the file complete"):
        read(tmp_path, tmp_path / "a.parquet")
    pq.write_table(table(structs(*range(100)), [0, 1] * 50), tmp_path / "b.parquet", compression="none")
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    data[10:400] = b"\xff" * 390
    (tmp_path / "b.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"b\.parquet cannot be read"):
        read(tmp_path, tmp_path / "b.parquet")
    pq.write_table(table(structs(1), [0], hugging_face()), tmp_path / "train.parquet")
    pq.write_table(table(structs(1), [0], hugging_face(names=["other"])), tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet and train\.parquet name different classes"):
        read(tmp_path, tmp_path / "test.parquet", tmp_path / "train.parquet")


def test_without_pyarrow_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'pyarrow'.*pip install .*\[parquet\]"):
        read(tmp_path, tmp_path / "a.parquet")


def test_a_column_that_unpacks_to_many_times_its_size_is_refused(tmp_path: Path) -> None:
    pq.write_table(table([bytes(2**27), *map(png, range(3))], [0, 1, 0, 1]), tmp_path / "data.parquet")
    assert (tmp_path / "data.parquet").stat().st_size < 10**7
    with pytest.raises(DataError, match=r"'image' unpacks from \d+ to 134 MB, which images do not"):
        read(tmp_path, tmp_path / "data.parquet")
