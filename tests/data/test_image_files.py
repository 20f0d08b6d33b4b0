"""The images that a user names: folders, patterns, lists and standard input, in a stable order."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from vitreous.data.image_files import find_images
from vitreous.errors import DataError


@pytest.fixture
def photos(tmp_path: Path, monkeypatch) -> Path:
    """A current folder with images in photos/, which need not be readable to be listed."""
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.png", "b/10.JPG", "a/1.webp", "top.png", "b/.hidden.png", "__MACOSX/x.png", "b/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def names(*arguments: str) -> list[str]:
    return [file.name for file in find_images(arguments)]


def test_a_folder_is_walked_in_the_order_of_names(photos: Path) -> None:
    found = find_images(["photos"])
    assert [file.name for file in found] == ["photos/top.png", "photos/a/1.webp", "photos/b/10.JPG", "photos/b/2.png"]
    assert [file.name for file in found] == names("photos"), "and again"
    assert found.count() == 4
    assert "1 file in photos left out" in found.notes[0]


def test_patterns_and_files_keep_the_order_of_the_arguments(photos: Path) -> None:
    assert names("photos/top.png", "photos/b/*.*") == ["photos/top.png", "photos/b/10.JPG", "photos/b/2.png"]
    assert names("photos/**/*.png") == ["photos/__MACOSX/x.png", "photos/b/2.png", "photos/top.png"]
    assert names("missing.png", "photos/top.png") == ["missing.png", "photos/top.png"]
    (photos / "[1].png").write_bytes(b"x")
    assert names("[1].png") == ["[1].png"], "a file of that name is no pattern"
    with pytest.raises(DataError, match="no image matches 'nothing"):
        find_images(["nothing*.png"])


def test_a_table_passes_its_other_columns_through(photos: Path) -> None:
    (photos / "list.csv").write_text('id,file,label\n7,photos/b/2.png,"cat, grey"\n8,gone.png,dog\n')
    found = find_images(["list.csv"])
    assert found.columns == ("id", "label")
    first, second = found
    assert (first.name, dict(first.given)) == ("photos/b/2.png", {"id": "7", "label": "cat, grey"})
    assert os.path.samefile(first.path, photos / "photos/b/2.png")
    assert second.name == "gone.png"
    (photos / "photos" / "list.jsonl").write_text('{"path": "top.png", "n": 3}\n')
    (relative,) = find_images(["photos/list.jsonl"])
    assert Path(relative.path) == Path("photos/top.png"), "paths are relative to the list"
    assert dict(relative.given) == {"n": "3"}


def test_lists_of_paths(photos: Path, monkeypatch) -> None:
    (photos / "photos" / "some.txt").write_text("top.png\n\n b/2.png \n")
    assert [file.path for file in find_images(["photos/some.txt"])] == ["photos/top.png", "photos/b/2.png"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("photos/top.png\nphotos/b/2.png\n"))
    found = find_images(["-"])
    assert [file.path for file in found] == [file.path for file in found] == ["photos/top.png", "photos/b/2.png"]


def test_what_cannot_be_a_list_of_images(photos: Path) -> None:
    (photos / "no-paths.csv").write_text("id,label\n1,cat\n")
    (photos / "header.csv").write_text("path,label\n")
    (photos / "empty").mkdir()
    for argument, sentence in {
        "no-paths.csv": "no-paths.csv has no image column",
        "header.csv": "header.csv has no rows",
        "empty": "the folder 'empty' has no PNG",
        "gone.csv": "cannot read gone.csv",
        "gone.txt": "cannot read 'gone.txt'",
    }.items():
        with pytest.raises(DataError, match=sentence):
            find_images([argument])


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Path(path).write_bytes(b"x")
    (file,) = find_images([tmp_path])
    assert file.path == path
    assert file.name.endswith("caf\\udce9.png")
    file.name.encode("utf-8")
