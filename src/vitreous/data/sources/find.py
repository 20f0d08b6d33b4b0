"""Which source a name means, by what is there: `find_source` returns arrays, or images that are listed when needed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from vitreous.data import copies
from vitreous.data.array_names import SPLIT_NAMES, parse_name
from vitreous.data.items import Listing
from vitreous.data.npz import read_npy_files, read_npz
from vitreous.data.sources import manifest, shards, tables
from vitreous.data.sources.columns import split_files
from vitreous.data.splits import RawDataset, SplitName
from vitreous.downloads.cache import cache_dir
from vitreous.errors import DataError

KINDS = (
    "a folder with one sub-folder per class, a manifest (.csv, .tsv, .jsonl) of paths and labels, an .npz or .npy file,"
    " .parquet files, a folder of Hugging Face's datasets, or .tar shards"
)
FILE_SUFFIXES = (".npz", ".npy", *manifest.SUFFIXES, ".parquet", ".tar", *shards.COMPRESSED)


@dataclass(frozen=True)
class ListedSource:
    """Images that are listed and not decoded yet."""

    name: str
    open: Callable[[], AbstractContextManager[Listing]]  # files that the listing made are removed at its end
    #: Their names, sizes and times tell whether the images changed; without any, those of the listed files do.
    key_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


Found = RawDataset | ListedSource


def find_source(name: str) -> Found | None:
    """Return what `name` means; None where it is none of these kinds: a folder of classes, or nothing."""
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
        return _listed(str(path), lambda: manifest.list_manifest(path))
    if suffix == ".parquet":
        return _tables(str(path), [("train", path)])
    return _shards(str(path), [path]) if suffix == ".tar" else None


def _find_in_folder(folder: Path) -> Found | None:
    """Return the source in a folder; class folders win over stray files beside them."""
    name = str(folder)
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    if any((folder / marker).is_file() for marker in tables.ARROW_MARKERS):
        return _tables(name, tables.arrow_files(folder))
    if manifest.has_metadata(folder):
        return _listed(name, lambda: manifest.list_metadata(folder))
    folders = [entry for entry in entries if entry.is_dir()]
    grouping = [entry for entry in folders if entry.name.lower() in (*SPLIT_NAMES, "data")]
    if len(folders) - len(grouping) >= 2:
        return None
    files = [entry for entry in entries if entry.is_file()]
    files += [file for group in grouping for file in sorted(group.iterdir()) if file.is_file()]
    parquet, tar = ([file for file in files if file.suffix.lower() == suffix] for suffix in (".parquet", ".tar"))
    if parquet:
        return _tables(name, split_files(parquet, name))
    if tar:
        return _shards(name, tar)
    if any(file.suffix.lower() == ".npy" and parse_name(file.stem) for file in files if file.parent == folder):
        return read_npy_files(folder)
    return None if folders else _find_manifest(files)


def _find_manifest(files: Sequence[Path]) -> Found | None:
    """Return the one manifest beside images without sub-folders."""
    found = [file for file in files if file.suffix.lower() in (".csv", ".tsv", ".jsonl") and manifest.has_labels(file)]
    if len(found) != 1:
        return None
    note = f"the labels are those of {found[0].name}, in the same folder"
    return _listed(str(found[0]), lambda: manifest.list_manifest(found[0]), note)


def _find_copy(name: str) -> Found:
    folder = copies.find(name)
    found = _find_in_folder(folder)
    if found is None:
        raise DataError(f"the copy {folder} is damaged; pass the same data again")
    return dataclasses.replace(found, notes=(*copies.read_notes(folder), *found.notes))


# --- sources that are listed -------------------------------------------------------------------------------------


def _listed(name: str, list_images: Callable[[], Listing], *notes: str, files: Sequence[Path] = ()) -> ListedSource:
    return ListedSource(name, lambda: contextlib.nullcontext(list_images()), tuple(files), notes)


def _shards(name: str, files: Sequence[Path]) -> ListedSource:
    return _listed(name, lambda: shards.list_shards(name, files), files=files)


def _tables(name: str, files: Sequence[tuple[SplitName, Path]]) -> ListedSource:
    @contextlib.contextmanager
    def listing() -> Iterator[Listing]:
        """Yield a listing of images in a spool file, which is removed at the end."""
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".spool-", dir=cache_dir(), ignore_cleanup_errors=True) as folder:
                yield tables.list_tables(name, files, Path(folder, "images"))
        except OSError as error:
            raise DataError(
                f"cannot unpack {name} to the cache {cache_dir()}: {error.strerror or error}; make room there, or set"
                " VITREOUS_CACHE to another folder"
            ) from None

    return ListedSource(name, listing, tuple(file for _, file in files))
