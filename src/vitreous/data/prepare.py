"""From listed images to a data set: size and fit are decided, and the prepared copy is opened, or made."""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import PIL

from vitreous.config import DataConfig
from vitreous.data.fitting import Fit, has_aspect_of
from vitreous.data.items import Item, LazyListing, Listing
from vitreous.data.prepared import (
    FORMAT,
    Content,
    DamagedCopy,
    PreparedCopy,
    copies_folder,
    lock_of,
    make_room,
    new_copy,
    open_copy,
)
from vitreous.data.splits import SPLIT_ORDER, RawDataset, Split, SplitName
from vitreous.data.target import Target
from vitreous.data.workers import decode, measure
from vitreous.downloads.files import atomic_write_bytes, locked
from vitreous.errors import DataError
from vitreous.hardware import gigabytes
from vitreous.reports.formats import by, plural
from vitreous.reports.progress import counting

MAX_DEFAULT_SIDE = 128  # pixels: a photograph of 4,000 would be a hundred thousand tokens
LISTED = 10  # bad files named in the error

AnyListing = Listing | LazyListing


def prepare(
    listing: AnyListing,
    config: DataConfig,
    source: str,
    multiple_of: tuple[int, int] = (1, 1),
    longest_side: int | None = None,
) -> RawDataset:
    """Return the images of a listing, from their prepared copy, which is made first where there is none.

    `source` names the listing in messages. A default image size is at most `longest_side`, and
    a multiple of `multiple_of`.
    """
    identity = _identity(listing)
    notes = [] if isinstance(listing, LazyListing) else list(listing.notes)  # a copy has those of a lazy one
    size, fit = _decide(listing, config, source, multiple_of, longest_side or MAX_DEFAULT_SIDE, identity, notes)
    parts = [FORMAT, PIL.__version__, identity, size, config.channels, fit]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    target = Target(size, config.channels, fit)
    copy = _open_or_make(copies_folder() / key, listing, target, source, notes)
    skipped = copy.content.skipped
    total = len(copy.names) + len(skipped)
    if skipped and not config.skip_corrupt:
        raise _corrupt(skipped, total, source)
    if skipped:
        notes.append(
            f"{plural(len(skipped), 'file')} of {total:,} left out because they cannot be read, such as {skipped[0][0]}"
        )
    return _raw_dataset(copy, (*notes, *copy.content.notes))


def _identity(listing: AnyListing) -> str:
    """Return a hash of the names, labels, sizes and times of all files: while it stays, so do the images."""
    if isinstance(listing, LazyListing):
        return listing.identity
    digest = hashlib.sha256(json.dumps(listing.class_names).encode())
    path, stamp = "", tuple[int, ...]()
    for item in listing.items:
        if item.path != path:  # the members of a shard follow each other
            path, stamp = item.path, file_stamp(item.path)
        row = (item.name, item.path, item.label, item.split, item.offset, item.size, *stamp)
        digest.update(repr(row).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def file_stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()  # dangling; decoding says why
    # the change time too: a copy with the old modification time, or other permissions, is another file
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


# --- size and fit ------------------------------------------------------------------------------------------------


def _decide(
    listing: AnyListing,
    config: DataConfig,
    source: str,
    multiple_of: tuple[int, int],
    longest_side: int,
    identity: str,
    notes: list[str],
) -> tuple[tuple[int, int], Fit]:
    """Return the size and fit that the configuration asks for, or that suit the images."""
    if config.image_size is not None and config.fit is not None:
        notes.append(f"images resized to {by(*config.image_size)} (fit: {config.fit})")
        return config.image_size, config.fit
    extents = _extents(listing, source, identity)
    distinct = len(np.unique(extents, axis=0))
    size = config.image_size or _default_size(extents, distinct, multiple_of, longest_side)
    fit: Fit = config.fit or ("stretch" if has_aspect_of(extents, size) else "crop")
    is_as_it_was = distinct == 1 and tuple(extents[0].tolist()) == size
    if not is_as_it_was:
        what = f"images of {distinct} sizes" if distinct > 1 else f"images of {by(*extents[0].tolist())}"
        why = {"stretch": "stretched", "crop": "cropped in the centre", "letterbox": "with black borders"}[fit]
        capped = config.image_size is None and max(np.median(extents, axis=0)) > longest_side
        bound = f", since {longest_side} is the longest default side" if capped else ""
        median = "the median, " if config.image_size is None and not capped and distinct > 1 else ""
        hint = "" if config.image_size else "; choose another with data.image_size, or data.fit"
        notes.append(f"{what} resized to {median}{by(*size)}, {why}{bound}{hint}")
    return size, fit


def _default_size(
    extents: np.ndarray, distinct: int, multiple_of: tuple[int, int], longest_side: int
) -> tuple[int, int]:
    """Return the common size, or the median of each side, at most `longest_side` and rounded to a multiple."""
    height, width = np.median(extents, axis=0).tolist()
    shrink = min(1.0, longest_side / max(height, width))
    if distinct == 1 and shrink == 1:
        return int(height), int(width)
    rows, columns = (
        max(1, round(side * shrink / step)) * step for side, step in zip((height, width), multiple_of, strict=True)
    )
    return rows, columns


def _extents(listing: AnyListing, source: str, identity: str) -> np.ndarray:
    """Return the extents (n, 2) of all images whose header can be read; kept in the cache."""
    file = copies_folder() / f"extents-{identity[:32]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        kept = np.load(file, allow_pickle=False)
        if kept.dtype == np.int32 and kept.ndim == 2 and kept.shape[1] == 2 and len(kept):
            return np.asarray(kept)
    extents, errors = [], []
    with contextlib.closing(measure(listing.items)) as measured:  # type: ignore[type-var]
        for item, one in zip(_shown(listing, source, "looking at"), measured, strict=True):
            if one.extent is None:
                errors.append((item.name, str(one.error)))
            else:
                extents.append(one.extent)
    if not extents:
        raise _corrupt(errors, len(listing.items), source)
    found = np.array(extents, np.int32)
    if not errors:
        buffer = io.BytesIO()
        np.save(buffer, found)
        with contextlib.suppress(OSError):  # an unwritable cache
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(file, buffer.getvalue())
    return found


def _shown(listing: AnyListing, source: str, verb: str) -> Iterator[Item]:
    """Yield the items while a progress bar counts them."""
    with counting(f"{verb} {source}", len(listing.items)) as update:
        for done, item in enumerate(listing.items):
            yield item
            update(done + 1)


# --- the copy ----------------------------------------------------------------------------------------------------


def _open_or_make(folder: Path, listing: AnyListing, target: Target, source: str, notes: list[str]) -> PreparedCopy:
    try:
        if (copy := open_copy(folder)) is not None:
            return copy
    except DamagedCopy:
        notes.append("the prepared copy of these images was damaged and has been made again")

    def wait() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"Another process is reading {source}; waiting for it.\n")

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _require_room(folder.parent, listing, target)
        with locked(lock_of(folder), wait):
            with contextlib.suppress(DamagedCopy):  # again: another process may have made it meanwhile
                if (copy := open_copy(folder)) is not None:
                    return copy
            if _make(folder, listing, target, source):
                make_room(folder)
                if (copy := open_copy(folder)) is not None:
                    return copy
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(folder.parent, listing, target) from None
    except DamagedCopy:
        pass
    return _make_temporary(listing, target, source)


def _make_temporary(listing: AnyListing, target: Target, source: str) -> PreparedCopy:
    """Return a copy for this process alone: the cache cannot be written to, or a file may be readable next time."""
    folder = Path(tempfile.mkdtemp(prefix="vitreous-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        _require_room(folder, listing, target)
        _make(folder / "copy", listing, target, source)
        copy = open_copy(folder / "copy")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(folder, listing, target) from None
        raise DataError(f"cannot write a prepared copy of the images to {folder}: {error.strerror or error}") from None
    assert copy is not None
    return copy


def _make(folder: Path, listing: AnyListing, target: Target, source: str) -> bool:
    """Decode everything into a copy; return whether it may be kept."""
    notes = dict[str, None]()
    skipped: list[tuple[str, str]] = []
    lasts = True
    with new_copy(folder, target.size) as writer, contextlib.closing(decode(listing.items, target)) as images:  # type: ignore[type-var]
        for item, image in zip(_shown(listing, source, "reading"), images, strict=True):
            if image.pixels is None:
                skipped.append((item.name, str(image.error)))
                lasts = lasts and not image.may_be_read_later
                continue
            writer.append(image.pixels, item.name, item.label, item.split, image.digest, image.is_gray)
            notes.update(dict.fromkeys(image.notes))
        if len(skipped) == len(listing.items):
            raise _corrupt(skipped, len(listing.items), source)
        content = Content(
            class_names=tuple(listing.class_names),
            fit=target.fit,
            notes=(*(listing.notes if isinstance(listing, LazyListing) else ()), *notes),
            skipped=tuple(skipped),
            source=source,
        )
        writer.finish(content, target.channels)
    return lasts


def _require_room(folder: Path, listing: AnyListing, target: Target) -> None:
    if shutil.disk_usage(folder).free < _bytes_of(listing, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _bytes_of(listing: AnyListing, target: Target) -> int:
    return len(listing.items) * (target.channels or 3) * target.size[0] * target.size[1]


def _no_room(folder: Path, listing: AnyListing, target: Target) -> DataError:
    needed, free = _bytes_of(listing, target), shutil.disk_usage(folder).free
    return DataError(
        f"the {len(listing.items):,} images in {by(*target.size)} pixels need {gigabytes(needed)} on the disk, and"
        f" {gigabytes(free)} are free in {folder}: lower data.image_size, make room, or set VITREOUS_CACHE to a folder"
        " on another disk"
    )


def _corrupt(skipped: Sequence[tuple[str, str]], total: int, source: str) -> DataError:
    """Return the error that lists bad files: all of them in one sentence, or the first ten."""
    reasons = [why for _, why in skipped[:LISTED]]
    if len(skipped) > LISTED:
        reasons.append(f"and {len(skipped) - LISTED:,} more")
    them = "it" if len(skipped) == 1 else "them"
    return DataError(
        f"{len(skipped):,} of {plural(total, 'file')} of {source} cannot be read: {'; '.join(reasons)}: repair or"
        f" remove {them}, or leave {them} out with --skip-corrupt (data.skip_corrupt)"
    )


def _raw_dataset(copy: PreparedCopy, notes: Sequence[str]) -> RawDataset:
    import torch

    content, digests = copy.content, copy.rows["digest"].tobytes()
    everything = Split(
        torch.from_numpy(copy.pixels),
        torch.from_numpy(copy.rows["label"].copy()),
        copy.names,
        tuple(digests[start : start + 16] for start in range(0, len(digests), 16)),
        store_sums=copy.rows["sums"],
    )
    splits: dict[SplitName, Split] = {}
    for number, name in enumerate(SPLIT_ORDER):
        rows = np.flatnonzero(copy.rows["split"] == number)
        if len(rows):
            splits[name] = everything if len(rows) == len(everything) else everything.take(rows)
    checksum = hashlib.sha256()
    for name, split in splits.items():
        checksum.update(f"{name} {len(split)} {split.sha256}".encode())
    return RawDataset(
        splits,
        content.class_names,
        checksums={CHECKSUM_NAME: checksum.hexdigest()},
        notes=tuple(dict.fromkeys(notes)),
        fit=content.fit,
        skipped=tuple(name for name, _ in content.skipped),
    )


CHECKSUM_NAME = "images and labels"  # in records; "pixels and labels" was of resized pixels, up to version 0.1
