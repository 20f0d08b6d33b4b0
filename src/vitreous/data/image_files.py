"""The image files that a user names for prediction: files, folders, patterns, lists with a path per row, or `-`.

They are listed while they are predicted, never all at once: there may be millions. What a list has beside the paths is
passed through.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.data.file_formats import FORMATS, SUFFIXES
from vitreous.data.folders import files_below, readable
from vitreous.data.sources.columns import require_column
from vitreous.data.sources.manifest import SUFFIXES as TABLES
from vitreous.data.sources.manifest import locate, read_records
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import plural

LISTS = (".txt", ".lst")  # one path per line
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image that a user named."""

    name: str  # as the user wrote it, or found below a folder; valid UTF-8
    path: str
    given: Mapping[str, str] = field(default_factory=dict)  # the other columns of its row in a list


@dataclass(frozen=True)
class ImageFiles:
    """All images that a user named, in a stable order; they can be listed any number of times."""

    parts: Sequence[Callable[[], Iterator[ImageFile]]]
    tables: tuple[Path, ...] = ()  # the lists among them
    columns: tuple[str, ...] = ()  # of the lists, without their paths
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[ImageFile]:
        for part in self.parts:
            yield from part()

    def count(self) -> int:
        return sum(1 for _ in self)


def find_images(arguments: Sequence[str | Path]) -> ImageFiles:
    """Return the images that these names stand for; a missing file is one of them, and fails when it is read."""
    parts: list[Callable[[], Iterator[ImageFile]]] = []
    tables: list[Path] = []
    columns: dict[str, None] = {}
    notes: list[str] = []
    for argument in _expanded(list(map(str, arguments))):
        suffix = os.path.splitext(argument)[1].lower()
        if argument == STANDARD_INPUT:
            parts.append(_listed(sys.stdin.read().splitlines(), ""))
        elif os.path.isdir(argument):
            parts.append(_Folder(argument, notes))
        elif suffix in LISTS:
            tables.append(Path(argument))
            parts.append(_listed(_read_lines(argument), os.path.dirname(argument)))
        elif suffix in TABLES:
            tables.append(Path(argument))
            table = _Table(Path(argument), notes)
            columns.update(dict.fromkeys(table.columns))
            parts.append(table)
        else:
            parts.append(_One(argument))
    return ImageFiles(parts, tuple(tables), tuple(columns), tuple(dict.fromkeys(notes)))


def _expanded(arguments: list[str]) -> Iterator[str]:
    """Replace patterns by what they match: a shell expands them only where they are not quoted, and not too many."""
    for argument in arguments:
        if not glob.has_magic(argument) or os.path.lexists(argument):
            yield argument
            continue
        # ** matches a folder and also what is in it
        found = sorted(
            path
            for path in glob.iglob(argument, recursive=True)
            if path.lower().endswith(SUFFIXES) or ("**" not in argument and os.path.isdir(path))
        )
        if not found:
            raise DataError(f"no image matches {quoted(argument)}; check the pattern, as in 'photos/**/*.png'")
        yield from found


@dataclass(frozen=True)
class _One:
    path: str

    def __call__(self) -> Iterator[ImageFile]:
        yield ImageFile(readable(self.path), self.path)


class _Folder:
    """The images below a folder, recursively, in the order of their names."""

    def __init__(self, folder: str, notes: list[str]):
        self.folder = folder
        others = images = 0
        for path in files_below(folder):
            is_image = path.lower().endswith(SUFFIXES)
            images, others = images + is_image, others + (not is_image)
        if not images:
            raise DataError(f"the folder {quoted(folder)} has no {FORMATS} image; name another one, or files")
        if others:
            notes.append(f"{plural(others, 'file')} in {readable(folder)} left out: no {FORMATS} by name")

    def __call__(self) -> Iterator[ImageFile]:
        for path in files_below(self.folder):
            if path.lower().endswith(SUFFIXES):
                yield ImageFile(readable(path), path)


class _Table:
    """The rows of a CSV, TSV, JSON or JSONL file."""

    def __init__(self, file: Path, notes: list[str]):
        self.file = file
        first = next(read_records(file, notes), None)
        if first is None:
            raise DataError(f"{file.name} has no rows; expected one per image, with its path")
        self.path_column = require_column(list(first[1]), "path", file.name)
        self.columns = tuple(name for name in first[1] if name != self.path_column)

    def __call__(self) -> Iterator[ImageFile]:
        for where, record in read_records(self.file, []):
            name, path = locate(self.file.parent, record[self.path_column].strip(), f"{self.file.name}: {where}")
            yield ImageFile(readable(name), path, {column: record[column] for column in self.columns})


def _listed(lines: Sequence[str], folder: str) -> Callable[[], Iterator[ImageFile]]:
    names = [line.strip() for line in lines if line.strip()]

    def images() -> Iterator[ImageFile]:
        for name in names:
            yield ImageFile(readable(name), os.path.join(folder, os.path.expanduser(name)))

    return images


def _read_lines(path: str) -> list[str]:
    from vitreous.downloads.files import read_plain

    try:
        return os.fsdecode(read_plain(Path(path), 2**29)).splitlines()
    except OSError as error:
        raise DataError(f"cannot read {quoted(path)}: {error.strerror or error}") from None
