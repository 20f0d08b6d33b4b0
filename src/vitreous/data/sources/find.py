"""Which source a name means, by what is there: `find_source` returns arrays, or images that are listed when needed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from vitreous.data import copies
from vitreous.data.array_names import SPLIT_NAMES, parse_name
from vitreous.data.folders import list_folder
from vitreous.data.items import LazyListing, Listing
from vitreous.data.npz import read_npy_files, read_npz
from vitreous.data.prepare import file_stamp
from vitreous.data.prepared import has_prepared, open_folder
from vitreous.data.sources import manifest, shards, tables
from vitreous.data.sources.columns import CLASS_NAME_FILES, split_files
from vitreous.data.splits import RawDataset, SplitName
from vitreous.downloads.cache import cache_dir
from vitreous.errors import DataError

KINDS = (
    "a folder with one sub-folder per class, or a .csv, .tsv, .jsonl, .npz, .npy, .parquet or .tar file"
    " (docs/sources.md)"
)
LONGEST_SPOOL = 24 * 3600  # seconds; an older one is of a process that was killed
FILE_SUFFIXES = (".npz", ".npy", *manifest.SUFFIXES, ".parquet", ".tar", *shards.COMPRESSED)


@dataclass(frozen=True)
class ListedSource:
    """Images that are listed and not decoded yet."""

    listed: Callable[[], AbstractContextManager[Listing | LazyListing]]  # what it unpacked is removed at the end
    notes: tuple[str, ...] = ()


Found = RawDataset | ListedSource


def find_source(name: str) -> Found | None:
    """Return what `name` means; None where there is nothing of these kinds."""
    if name.startswith(copies.PREFIX):
        return _find_copy(name)
    if shards.is_pattern(name):
        return _shards(name, [Path(os.path.expanduser(file)) for file in shards.expand_braces(name)])
    path = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such user
    if os.path.isdir(path):  # Path.is_dir raises where the name is too long
        return _find_in_folder(path)
    return _find_file(path) if os.path.exists(path) else None


def _find_file(path: Path) -> Found | None:
    suffix = path.suffix.lower()
    if path.name.lower().endswith(shards.COMPRESSED):
        raise DataError(f"{path} is compressed, so its images cannot be read in place; decompress it to a .tar first")
    if suffix == ".npz":
        return read_npz(path)
    if suffix == ".npy":
        return read_npy_files(path)
    if suffix in manifest.SUFFIXES:
        return _listed(lambda: manifest.list_manifest(path))
    if suffix == ".parquet":
        return _tables(str(path), [("train", path)])
    return _shards(str(path), [path]) if suffix == ".tar" else None


def _find_in_folder(folder: Path) -> Found:
    """Return the source in a folder; class folders win over stray files beside them."""
    name = str(folder)
    if has_prepared(folder):
        return open_folder(folder)
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    if any((folder / marker).is_file() for marker in tables.ARROW_MARKERS):
        return _tables(name, tables.arrow_files(folder))
    if manifest.has_metadata(folder):
        return _listed(lambda: manifest.list_metadata(folder))
    folders = [entry for entry in entries if entry.is_dir()]
    grouping = [entry for entry in folders if entry.name.lower() in (*SPLIT_NAMES, "data")]
    if len(folders) - len(grouping) >= 2:
        return _classes(folder)
    grouped = [entry for group in grouping for entry in sorted(group.iterdir())]
    files = [entry for entry in (*entries, *grouped) if entry.is_file()]
    parquet, tar = ([file for file in files if file.suffix.lower() == suffix] for suffix in (".parquet", ".tar"))
    if parquet:
        return _tables(name, split_files(parquet, name))
    if tar:
        return _shards(name, tar)
    if any(file.suffix.lower() == ".npy" and parse_name(file.stem) for file in files if file.parent == folder):
        return read_npy_files(folder)
    has_classes = any(entry.is_dir() for entry in grouped)  # train/cat/
    return (None if has_classes else _find_manifest(folder, files)) or _classes(folder)


def _classes(folder: Path) -> ListedSource:
    return _listed(lambda: list_folder(folder))


def _find_manifest(folder: Path, files: Sequence[Path]) -> Found | None:
    """Return the one manifest in a folder without class folders."""
    files = [file for file in files if file.parent == folder]
    found = [file for file in files if file.suffix.lower() in (".csv", ".tsv", ".jsonl") and manifest.has_labels(file)]
    if len(found) != 1:
        return None
    note = f"the labels are those of {found[0].name}, in the same folder"
    return _listed(lambda: manifest.list_manifest(found[0]), note)


def _find_copy(name: str) -> Found:
    folder = copies.find(name)
    found = _find_in_folder(folder)
    return dataclasses.replace(found, notes=(*copies.read_notes(folder), *found.notes))


# --- sources that are listed -------------------------------------------------------------------------------------


def _listed(list_images: Callable[[], Listing], *notes: str) -> ListedSource:
    return ListedSource(lambda: contextlib.nullcontext(list_images()), notes)


def _shards(name: str, files: Sequence[Path]) -> ListedSource:
    classes = [files[0].parent / name for name in CLASS_NAME_FILES]
    identity = _identity([*files, *classes], [])
    return ListedSource(lambda: contextlib.nullcontext(LazyListing(identity, lambda: shards.list_shards(name, files))))


def _tables(name: str, files: Sequence[tuple[SplitName, Path]]) -> ListedSource:
    identity = _identity([file for _, file in files], [split for split, _ in files])

    @contextlib.contextmanager
    def listed() -> Iterator[LazyListing]:
        with contextlib.ExitStack() as until_prepared:
            yield LazyListing(identity, lambda: _unpack(name, files, until_prepared))

    return ListedSource(listed)


def _identity(files: Sequence[Path], more: Sequence[str]) -> str:
    """Return a hash of the names, sizes and times of files: as long as it stays, so do the images in them."""
    rows = [(str(file.absolute()), *file_stamp(str(file))) for file in files]
    return hashlib.sha256(json.dumps([rows, more]).encode("utf-8", "surrogatepass")).hexdigest()


def _unpack(name: str, files: Sequence[tuple[SplitName, Path]], until: contextlib.ExitStack) -> Listing:
    """Return a listing of images in a spool file, which is removed when `until` ends."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        for leftover in cache_dir().glob(".spool-*"):  # of a process that was killed
            with contextlib.suppress(OSError):
                if leftover.stat().st_mtime < time.time() - LONGEST_SPOOL:
                    shutil.rmtree(leftover, ignore_errors=True)
        spool = tempfile.TemporaryDirectory(prefix=".spool-", dir=cache_dir(), ignore_cleanup_errors=True)
        return tables.list_tables(name, files, Path(until.enter_context(spool), "images"))
    except OSError as error:
        raise DataError(
            f"cannot unpack {name} to the cache {cache_dir()}: {error.strerror or error}; make room there, or set"
            " VITREOUS_CACHE to another folder"
        ) from None
