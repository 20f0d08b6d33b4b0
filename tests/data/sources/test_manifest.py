"""Manifests: every way to write one, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from vitreous.data.items import Listing
from vitreous.data.sources.manifest import has_metadata, list_manifest, list_metadata
from vitreous.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "c, d.png", "träume/ü.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4), len(name)).save(tmp_path / name)
    return tmp_path


def write(folder: Path, name: str, text: str | bytes) -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return folder / name


def rows_of(listing: Listing) -> list[tuple[str, str, str]]:
    return [(item.name, listing.class_names[item.label], item.split) for item in listing.items]


PLAIN = [("a.png", "cat", "train"), ("b.png", "dog", "train"), ("c, d.png", "cat", "test")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", 'path,label,split\na.png,cat,train\nb.png,dog,train\n"c, d.png",cat,test\n'),
        ("m.csv", '\ufeffFile Name;Class;Set\r\n\r\na.png;cat;training\r\nb.png; dog ;TRAIN\r\nc, d.png;cat;test\r\n'),
        ("m.csv", 'extra|img|target|subset\n1|a.png|cat|train\n2|b.png|dog|train\n3|c, d.png|cat|Testing'),
        ("m.tsv", "filepath\tcategory\tpartition\na.png\tcat\ttrain\nb.png\tdog\ttrain\nc, d.png\tcat\ttest\n"),
        (
            "m.jsonl",
            '{"path": "a.png", "label": "cat", "split": "train"}\n\n'
            '{"split": "train", "path": "b.png", "label": "dog"}\n'
            '{"path": "c, d.png", "label": "cat", "split": "test", "size": {"w": 3}}\n',
        ),
        (
            "m.json",
            json.dumps(
                [{"path": path, "label": label, "split": split, "box": [0, 1]} for path, label, split in PLAIN]
            ),
        ),
    ],
)  # fmt: skip
def test_ways_to_write_a_manifest(folder: Path, name: str, text: str) -> None:
    listing = list_manifest(write(folder, name, text))
    assert rows_of(listing) == PLAIN
    assert [Path(item.path).read_bytes() for item in listing.items] == [(folder / row[0]).read_bytes() for row in PLAIN]
    assert listing.notes == ()


def test_paths_are_relative_to_the_manifest_absolute_or_written_on_windows(folder: Path) -> None:
    (folder / "lists").mkdir()
    text = f"path,label\n../a.png,x\n{folder / 'b.png'},y\n..\\träume\\ü.png,x\n"
    listing = list_manifest(write(folder / "lists", "m.csv", text))
    assert all(Path(item.path).is_file() for item in listing.items)
    assert [item.name for item in listing.items] == ["../a.png", str(folder / "b.png"), "../träume/ü.png"]


def test_integer_labels_keep_their_order_and_may_have_names(folder: Path) -> None:
    path = write(folder, "m.csv", "path,label\na.png,10\nb.png,2\ntr\u00e4ume/ü.png,-1\n")
    assert list_manifest(path).class_names == ("-1", "2", "10")
    path = write(folder, "m.csv", "path,label\na.png,10\nb.png,02\n")
    assert list_manifest(path).class_names == ("02", "10"), "numbers with leading zeros are names"
    path = write(folder, "m.csv", "path,label\na.png,2\nb.png,0\n")
    write(folder, "classes.txt", "zero\none\ntwo\n")
    listing = list_manifest(path)
    assert listing.class_names == ("zero", "one", "two")
    assert [item.label for item in listing.items] == [2, 0]
    write(folder, "classes.txt", "zero\none\n")
    with pytest.raises(DataError, match="has the label '2'; beside its class names, expected 0 to 1"):
        list_manifest(path)


def test_a_manifest_without_a_header_repeated_rows_and_numbered_folds_are_noted(folder: Path) -> None:
    listing = list_manifest(write(folder, "m.csv", "a.png,cat\nb.png,dog\na.png,cat\n"))
    assert rows_of(listing) == [("a.png", "cat", "train"), ("b.png", "dog", "train")]
    assert listing.notes == (
        "m.csv has no header: its columns read as path and label",
        "1 row of m.csv left out: repeated",
    )
    listing = list_manifest(write(folder, "m.csv", "path,label,fold\na.png,cat,1\nb.png,dog,2\n"))
    assert {item.split for item in listing.items} == {"train"}
    assert listing.notes == ("the column 'fold' has numbers and not train, val or test: it is left out",)


def test_hugging_face_metadata(folder: Path) -> None:
    write(folder, "metadata.csv", "file_name,label\na.png,cat\nträume/ü.png,dog\n")
    assert has_metadata(folder)
    assert rows_of(list_metadata(folder)) == [("a.png", "cat", "train"), ("träume/ü.png", "dog", "train")]
    write(folder, "metadata.csv", "file_name,caption\na.png,a cat\n")
    assert not has_metadata(folder), "captions are no labels"
    for split in ("train", "test"):
        (folder / split).mkdir()
        Image.new("L", (2, 2)).save(folder / split / "x.png")
        write(folder / split, "metadata.jsonl", '{"file_name": "x.png", "label": 3}\n')
    assert rows_of(list_metadata(folder)) == [("test/x.png", "3", "test"), ("train/x.png", "3", "train")]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("m.csv", "", r"m\.csv is empty; expected a row per image"),
        ("m.csv", "path,label\n", r"m\.csv lists no images"),
        ("m.csv", "file,size\na.png,3\n", r"m\.csv has no label column: its columns are 'file' and 'size'; name the one"
            r" with the class of each image 'label'"),
        ("m.csv", "size,label\n3,cat\n", r"m\.csv has no image column: .* with the path of each image 'path'"),
        ("m.csv", "label\ncat\n", r"m\.csv has no image column: it has only 'label'"),
        ("m.csv", "path,label,path\na.png,cat,b.png\n", "two columns of one name"),
        ("m.csv", "path,label\na.png,cat,extra\n", "line 2 has 3 fields and the header 2; quote fields"),
        ("m.csv", 'path,label\n"a.png,cat\n', r"line 2 is not as CSV is written"),
        ("m.csv", "path,label\na.png,\nb.png,cat\n", r"m\.csv: line 2 has no label; fill it in, or leave"),
        ("m.csv", "path,label\na.png,\nb.png, \n", r"m\.csv: line 2 and line 3 have no label"),
        ("m.csv", "path,label\n,cat\n", "line 2 has no path"),
        ("m.csv", "path,label,split\na.png,cat,holdout\n", "line 2 has the split 'holdout'; expected train, val"),
        ("m.csv", "path,label,split\na.png,cat,\n", "line 2 has no split; expected train, val or test"),
        ("m.csv", "path,label,split\na.png,cat,test\n", r"m\.csv has no training images, only test"),
        ("m.csv", "path,label\na.png,cat\na.png,dog\n", r"gives 'a\.png' the label 'dog', and .* it 'cat'"),
        ("m.csv", "path,label\nhttps://example.org/a.png,cat\n", "has the web address .* download the images"),
        ("m.csv", "path,label\nx/a.png,cat\nx/b.png,dog\n", r"none of its paths exists, such as 'x/a\.png',"
            r" looked for in the folder of the manifest, '.*'; write paths relative"),
        ("m.csv", "path,label\na.png,cat\nx/b.png,dog\nx/c.png,dog\n", r"most of its paths do not .* 'x/b\.png'"),
        ("m.csv", "path,label\na.png,caf\u00e9\n".encode("latin-1"), "is not UTF-8 from line 2 on .another encoding"),
        ("m.csv", "path,label\na.png,cat\n".encode("utf-16"), "is not UTF-8 from line 1 on .UTF-16"),
        ("m.jsonl", '{"path": "a.png"', "line 1 is not JSON"),
        ("m.jsonl", "[1, 2]\n", "line 1 is no object"),
        ("m.jsonl", '{"path": "a.png", "label": 1.5}\n', "line 1 has 1.5 as its label; expected text or an integer"),
        ("m.jsonl", '{"path": "a.png", "label": "x"}\n{"path": "b.png"}\n', "line 2 has no label"),
        ("m.jsonl", '{"path": "a.png", "label": "x"}\n{"path": "b.png", "label": "y", "split": "test"}\n',
            "line 1 has no split"),
        ("m.jsonl", '{"path": "a.png", "label": "\\ud800"}\n', "text that is not Unicode"),
        ("m.jsonl", '{"path": "a\\u0000.png", "label": "x"}\n', "null character"),
        ("m.json", '{"a.png": "cat"}', r"m\.json is no list of objects; expected \[\{\"path\""),
        ("m.json", "[1", r"m\.json is not JSON"),
    ],
)  # fmt: skip
def test_manifests_that_cannot_be_used(folder: Path, name: str, text: str | bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        list_manifest(write(folder, name, text))
    assert "\n" not in str(caught.value)


def test_a_header_of_a_million_columns_is_one_sentence(folder: Path) -> None:
    path = write(folder, "wide.csv", "path,label," + ",".join(map(str, range(10**6))) + "\na.png,x\n")
    with pytest.raises(DataError, match=r"wide.csv: line 2 has 2 fields and the header 1000002"):
        list_manifest(path)


def test_labels_that_are_no_classes(folder: Path) -> None:
    for number in range(20):
        Image.new("L", (2, 2)).save(folder / f"{number}.png")
    text = "path,label\n" + "".join(f"{number}.png,photo {number}\n" for number in range(20))
    with pytest.raises(DataError, match="20 different labels for 20 images, such as 'photo 0': expected a few classes"):
        list_manifest(write(folder, "m.csv", text))


def test_a_few_missing_files_are_left_to_the_reader_of_images(folder: Path) -> None:
    listing = list_manifest(write(folder, "m.csv", "path,label\na.png,cat\nb.png,dog\nmissing.png,cat\n"))
    assert [item.name for item in listing.items] == ["a.png", "b.png", "missing.png"]


def test_a_manifest_that_cannot_be_opened(folder: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.csv: No such file"):
        list_manifest(folder / "none.csv")
