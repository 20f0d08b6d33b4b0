"""Copies of Python objects in the cache: a folder in the format of another source, found again by its content's hash.

A run names its data by a string, and later commands read them again; `prepared:1797-images-3fa9c1d2e4b5a607` is such
a name for arrays. A copy that was not read for KEPT_DAYS may be removed when another is made; the run stays, and
passing the same data again restores the copy under the same name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import atomic_write_text, unchanged_sha256
from vitreous.errors import DataError, quoted

PREFIX = "prepared:"
KEPT_DAYS = 30
NOTES = "notes.json"
_NAME = re.compile(r"[0-9]+-images-[0-9a-f]{16}")


def copies_folder() -> Path:
    return cache_dir() / "python"


@contextlib.contextmanager
def writing() -> Iterator[Path]:
    """Yield a new folder of the cache to write a copy to; what `keep` has not renamed is removed at the end."""
    try:
        copies_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=copies_folder(), ignore_cleanup_errors=True) as folder:
            copy = Path(folder, "copy")
            copy.mkdir()
            yield copy
    except OSError as error:
        raise DataError(
            f"cannot write a copy of the data to {copies_folder()}: {error.strerror or error}; make room there, or set"
            " VITREOUS_CACHE to another folder"
        ) from None


def keep(folder: Path, num_images: int, notes: Sequence[str] = ()) -> str:
    """Rename a complete copy to its content's hash, and return its name for `config.data.name`."""
    name = f"{num_images}-images-{_hash(folder)}"
    target = copies_folder() / name
    if target.is_dir() and _hash(target) != name[-16:]:
        shutil.rmtree(target, ignore_errors=True)  # damaged
    with contextlib.suppress(OSError):  # the same data are there already, or another process was faster
        folder.rename(target)
    if not target.is_dir():
        raise OSError(f"{target} cannot be made")
    atomic_write_text(target / NOTES, json.dumps(list(dict.fromkeys(notes)), ensure_ascii=False))
    _remove_unused(target)
    return PREFIX + name


def find(name: str) -> Path:
    """Return the folder of a copy; raise where it is not there any more, or damaged."""
    short = name.removeprefix(PREFIX)
    folder = copies_folder() / short
    if not _NAME.fullmatch(short):
        raise DataError(f"{quoted(name)} is no name of a copy; expected {PREFIX}N-images-HASH, as a run records it")
    if not folder.is_dir():
        raise DataError(
            f"the copy {name} of data from Python is not in the cache {copies_folder()}; pass the same data again"
        )
    if _hash(folder) != short[-16:]:
        raise DataError(f"the copy {folder} is damaged; pass the same data again")
    with contextlib.suppress(OSError):  # a read-only cache
        os.utime(folder)
    return folder


def read_notes(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads((folder / NOTES).read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError):  # killed before it was written: the images are complete
        return ()


def _hash(folder: Path) -> str:
    lines = (f"{file.name} {unchanged_sha256(file)}\n" for file in sorted(folder.iterdir()) if file.name != NOTES)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _remove_unused(kept: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for folder in copies_folder().iterdir():
        with contextlib.suppress(OSError):
            if folder != kept and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
