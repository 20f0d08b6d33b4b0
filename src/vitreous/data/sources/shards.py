"""WebDataset shards: tar files whose members `KEY.jpg` and `KEY.cls` (or .json, .txt) are an image and its label.

Nothing is extracted: an image is listed by its place in the tar file, and no name in a tar file is used as a path.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from vitreous.data.file_formats import FORMATS
from vitreous.data.file_formats import SUFFIXES as IMAGE_SUFFIXES
from vitreous.data.items import Listing
from vitreous.data.sources.columns import Row, find_column, read_class_names, split_files, to_listing
from vitreous.data.splits import SplitName
from vitreous.downloads.files import open_plain
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import join, plural
from vitreous.reports.progress import counting

LABEL_SUFFIXES = ("cls", "json", "txt")  # the first that has a label is used
MAX_LABEL_BYTES = 2**20
MAX_SHARDS = 100_000
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")

Sample = dict[str, tuple[int, int]]  # suffix → offset and size


def is_pattern(name: str) -> bool:
    return name.lower().endswith(".tar") and bool(_RANGE.search(name) or _CHOICE.search(name))


def expand_braces(pattern: str) -> list[str]:
    """Return the names of a pattern: shards-{000..009}.tar and {train,test}.tar as shells and WebDataset write them."""
    match = _RANGE.search(pattern) or _CHOICE.search(pattern)
    if match is None:
        return [pattern]
    if match.re is _CHOICE:
        parts = match[1].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        if not 0 <= last - first < MAX_SHARDS:
            raise DataError(
                f"{quoted(pattern)} counts from {match[1]} to {match[2]}; expected up to {MAX_SHARDS:,} shards"
            )
        parts = [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    names = []
    for part in parts:
        names += expand_braces(pattern[: match.start()] + part + pattern[match.end() :])
        if len(names) > MAX_SHARDS:
            raise DataError(f"{quoted(pattern)} names more than {MAX_SHARDS:,} shards")
    return names


def list_shards(source: str, files: Sequence[Path]) -> Listing:
    """List the images of tar shards; a shard whose name contains train, val or test is of that split."""
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{source}: there is no {join(missing, most=5)}; correct the pattern, or add the shards")
    notes: list[str] = []
    rows = list[Row]()
    with counting(f"listing {source}", None) as update:
        for split, file in split_files(files, source):
            for row in _read_shard(file, split, notes):
                rows.append(row)
                update(len(rows))
    return to_listing(source, rows, notes, read_class_names(files[0].parent))


def _read_shard(path: Path, split: SplitName, notes: list[str]) -> Iterator[Row]:
    try:
        with open_plain(path) as stream:
            samples = _group_members(path, stream, notes)
            without = 0
            for key, sample in samples.items():
                images = [suffix for suffix in sample if f".{suffix.rsplit('.', 1)[-1]}" in IMAGE_SUFFIXES]
                if len(images) > 1:
                    raise DataError(
                        f"{path.name}: the sample {quoted(key)} has {len(images)} images, {join(images)}; expected one"
                    )
                if not images:
                    without += 1
                    continue
                offset, size = sample[images[0]]
                name = f"{path.name}/{key}.{images[0]}"
                yield Row(name, name, str(path), _label(path, stream, key, sample), split, offset, size)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if without:
        notes.append(f"{plural(without, 'sample')} of {path.name} without a {FORMATS} image left out")


def _group_members(path: Path, stream: IO[bytes], notes: list[str]) -> dict[str, Sample]:
    """Return the places of all members by key and suffix; a key is a name up to the first dot of its last part."""
    samples: dict[str, Sample] = {}
    others = 0
    bounded = _BoundedStream(stream)
    try:
        with tarfile.open(fileobj=bounded, mode="r:") as archive:  # type: ignore[call-overload]
            for member in archive:
                archive.members.clear()  # tarfile would keep every header in memory
                folder, _, file = member.name.rpartition("/")
                stem, _, suffix = file.partition(".")
                if not member.isreg() or not stem or not suffix or member.issparse():
                    others += not member.isdir()
                    continue
                key = f"{folder}/{stem}".lstrip("/").removeprefix("./")
                key = key.encode("utf-8", "backslashreplace").decode("utf-8")
                sample = samples.setdefault(key, {})
                if suffix.lower() in sample:
                    raise DataError(f"{path.name} has {quoted(f'{key}.{suffix}')} twice; expected one sample per key")
                if member.offset_data + member.size > bounded.length:
                    raise DataError(
                        f"{path.name} is truncated: {quoted(member.name)} ends after the file; copy it again"
                    )
                sample[suffix.lower()] = member.offset_data, member.size
            bounded.seek(archive.offset)
            if any(bounded.read(tarfile.BLOCKSIZE)):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError(f"a damaged header at byte {archive.offset:,}")
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{path.name} is not a complete, uncompressed tar file ({error}); copy it again") from None
    if others:
        notes.append(f"{plural(others, 'member')} of {path.name} left out: links, or names without a suffix")
    return samples


class _BoundedStream:
    """A stream that refuses to read more at once than a header needs: a tar file may declare one of any size."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self.length = stream.seek(0, io.SEEK_END)
        stream.seek(0)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_LABEL_BYTES:
            raise ValueError(f"a header of {size:,} bytes")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _label(path: Path, stream: IO[bytes], key: str, sample: Sample) -> str:
    """Return the label of a sample as text; "" where it has none."""
    for suffix in LABEL_SUFFIXES:
        if suffix not in sample:
            continue
        offset, size = sample[suffix]
        if size > MAX_LABEL_BYTES:
            raise DataError(f"{path.name}: {quoted(f'{key}.{suffix}')} has {size:,} bytes; expected a label")
        stream.seek(offset)
        try:
            text = stream.read(size).decode("utf-8").strip()
            label = _label_of_json(text) if suffix == "json" else text
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path.name}: {quoted(f'{key}.{suffix}')} cannot be read ({error}); correct it") from None
        if label:
            return label
    return ""


def _label_of_json(text: str) -> str:
    record = json.loads(text)
    column = find_column(record, "label") if isinstance(record, dict) else None
    value = record[column] if column else ""
    if not isinstance(value, str | int):
        raise ValueError(f"the label is {quoted(value)}, not text or an integer")
    value = str(value)
    value.encode("utf-8")
    return value.strip()


@contextlib.contextmanager
def writing_shard(path: Path) -> Iterator[Callable[[bytes, str], None]]:
    """Yield a function that adds an image file (PNG) and its label to a shard; equal images give equal bytes."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        numbers = itertools.count()

        def add(png: bytes, label: str) -> None:
            key = f"{next(numbers):08}"
            for suffix, data in (("png", png), ("cls", label.encode("utf-8"))):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            archive.members.clear()  # type: ignore[attr-defined]

        yield add
