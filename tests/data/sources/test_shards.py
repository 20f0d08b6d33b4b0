"""WebDataset tar shards: listed in place, and hostile ones refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.items import Item
from vitreous.data.sources.shards import expand_braces, is_pattern, list_shards, writing_shard
from vitreous.errors import DataError


def png(shade: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), shade).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            content = b"" if isinstance(data, tarfile.TarInfo) else data
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def content(item: Item) -> bytes:
    assert item.size is not None
    return Path(item.path).read_bytes()[item.offset : item.offset + item.size]


def test_images_are_listed_by_their_place_in_the_tar(tmp_path: Path) -> None:
    long_name = "x" * 150  # has a header of its own
    members = {
        "./a.png": png(1), "./a.cls": b"1\n",
        "b.jpg": png(2), "b.json": b'{"Label": 10, "caption": "no"}', "b.txt": b"a caption",
        f"deep/{long_name}.PNG": png(3), f"deep/{long_name}.txt": b"2",
        "d.input.png": png(4), "d.json": b'{"class": "2"}',
    }  # fmt: skip
    listing = list_shards("s", [write_tar(tmp_path / "s.tar", members)])
    assert listing.class_names == ("1", "2", "10")
    assert [content(item) for item in listing.items] == [png(1), png(2), png(3), png(4)]
    assert [item.label for item in listing.items] == [0, 2, 1, 1]
    assert [item.name for item in listing.items][:2] == ["s.tar/a.png", "s.tar/b.jpg"]


def test_splits_by_name_and_classes_by_a_list(tmp_path: Path) -> None:
    files = []
    for name, label in (("train-000000.tar", b"0"), ("train-000001.tar", b"1"), ("test-000000.tar", b"1")):
        files.append(write_tar(tmp_path / name, {"a.png": png(5), "a.cls": label}))
    (tmp_path / "classnames.txt").write_text("fish\nbird\n", encoding="utf-8")
    listing = list_shards("s", files)
    assert listing.class_names == ("fish", "bird")
    assert [item.split for item in listing.items] == ["train", "train", "test"]
    (tmp_path / "more.tar").write_bytes(files[0].read_bytes())
    with pytest.raises(DataError, match=r"train-000000\.tar names its split and more\.tar does not"):
        list_shards("s", [*files, tmp_path / "more.tar"])


def test_links_and_samples_without_an_image_are_left_out_with_a_note(tmp_path: Path) -> None:
    link = tarfile.TarInfo("secret.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members = {"a.png": png(1), "a.cls": b"x", "b.mp3": b"sound", "b.cls": b"y", "secret.png": link, "README": b"hello"}
    listing = list_shards("s", [write_tar(tmp_path / "s.tar", members)])
    assert [item.name for item in listing.items] == ["s.tar/a.png"]
    assert any(note.startswith("1 sample of s.tar without a PNG") for note in listing.notes)
    assert "2 members of s.tar left out: links, or names without a suffix" in listing.notes


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s-{008..010}.tar", ["s-008.tar", "s-009.tar", "s-010.tar"]),
        ("{train,test}-{0..1}.tar", ["train-0.tar", "test-0.tar", "train-1.tar", "test-1.tar"]),
        ("plain.tar", ["plain.tar"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert sorted(expand_braces(pattern)) == sorted(names)
    assert is_pattern(pattern) == (len(names) > 1)


@pytest.mark.parametrize("pattern", ["s-{9..3}.tar", "s-{0..999999999999}.tar", "{0..999}{0..999}.tar"])
def test_braces_are_bounded(pattern: str) -> None:
    with pytest.raises(DataError, match="100,000 shards"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"a.png": png(1)}, r"s\.tar/a\.png has no label; fill it in"),
        ({"a.png": png(1), "a.json": b"{}"}, r"s\.tar/a\.png has no label"),
        ({"a.png": png(1), "a.json": b"{"}, r"s\.tar: 'a\.json' cannot be read"),
        ({"a.png": png(1), "a.json": b'{"label": [1]}'}, r"the label is \[1\], not text or an integer"),
        ({"a.png": png(1), "a.cls": b"\xff"}, r"s\.tar: 'a\.cls' cannot be read"),
        ({"a.png": png(1), "a.cls": bytes(2**20 + 1)}, r"'a\.cls' has 1,048,577 bytes; expected a label"),
        ({"a.png": png(1), "a.PNG": png(1)}, r"has 'a\.PNG' twice; expected one sample per key"),
        ({"a.left.png": png(1), "a.right.png": png(1), "a.cls": b"1"}, r"the sample 'a' has 2 images"),
        ({}, "lists no images"),
    ],
)
def test_shards_that_cannot_be_used(tmp_path: Path, members: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        list_shards("s", [write_tar(tmp_path / "s.tar", members)])
    assert "\n" not in str(caught.value)


def test_shards_that_are_missing_or_no_tar(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"s-\{0\.\.1\}\.tar: there is no s-0\.tar and s-1\.tar; correct the pattern"):
        list_shards("s-{0..1}.tar", [tmp_path / "s-0.tar", tmp_path / "s-1.tar"])
    (tmp_path / "s.tar").write_bytes(b"not a tar" * 200)
    with pytest.raises(DataError, match=r"s\.tar is not a complete, uncompressed tar file"):
        list_shards("s", [tmp_path / "s.tar"])


def test_a_header_that_declares_gigabytes_costs_nothing(tmp_path: Path) -> None:
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 2**33
    path = tmp_path / "s.tar"
    with path.open("wb") as stream:
        stream.write(member.tobuf(tarfile.GNU_FORMAT))
        stream.truncate(2**33 + 2048)  # sparse: it takes no room
    with pytest.raises(DataError, match="a header of 8,589,934,592 bytes"):
        list_shards("s", [path])


def test_damage_in_the_middle_is_not_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {f"{n}.{suffix}": b"1" for n in range(4) for suffix in ("png", "cls")})
    data = bytearray(path.read_bytes())
    data[4 * 1024 : 4 * 1024 + 100] = b"\x07" * 100
    path.write_bytes(data)
    with pytest.raises(DataError, match="a damaged header at byte 4,096"):
        list_shards("s", [path])
    path.write_bytes(path.read_bytes()[: 3 * 1024 + 600])
    with pytest.raises(DataError, match=r"not a complete, uncompressed tar file|truncated"):
        list_shards("s", [path])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_damaged_shards_are_listed_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    members = {f"{n}.{suffix}": png(n) if suffix == "png" else b"1" for n in range(3) for suffix in ("png", "cls")}
    path = write_tar(tmp_path / "damaged.tar", members)
    raw = bytearray(path.read_bytes())
    for _ in range(3):
        raw[data.draw(st.integers(0, 6 * 1024))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        listing = list_shards("s", [path])
    except DataError:
        return
    assert all(item.offset + (item.size or 0) <= len(raw) for item in listing.items)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        with writing_shard(tmp_path / name) as add:
            for number in range(3):
                add(png(number), f"class {number % 2} ü")
    listing = list_shards("s", [tmp_path / "one.tar"])
    assert [content(item) for item in listing.items] == [png(0), png(1), png(2)]
    assert listing.class_names == ("class 0 ü", "class 1 ü")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert [item.label for item in listing.items] == [0, 1, 0]
