"""From listed images to a data set: size and fit are decided, and the prepared copy is opened, or made."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
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
from vitreous.data.decoding import Decoded
from vitreous.data.fitting import Fit, has_aspect_of
from vitreous.data.items import Item, LazyListing, Listing
from vitreous.data.prepared import FORMAT, Content, DamagedCopy, Manifest
from vitreous.data.prepared_cache import copies_folder, lock_of, make_room, new_copy, open_copy
from vitreous.data.shard_writer import ShardWriter, write_manifest, writing_shard
from vitreous.data.splits import RawDataset
from vitreous.data.target import Target
from vitreous.data.workers import decode, measure
from vitreous.downloads.files import atomic_write_bytes, locked
from vitreous.errors import DataError
from vitreous.hardware import gigabytes
from vitreous.reports.formats import by, plural
from vitreous.reports.progress import counting

MAX_DEFAULT_SIDE = 128  # pixels: a photograph of 4,000 would be a hundred thousand tokens
LISTED = 10  # bad files named in the error

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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
    identity = identity_of(listing)
    notes = [] if isinstance(listing, LazyListing) else list(listing.notes)  # a copy has those of a lazy one
    size, fit = decide(listing, config, source, multiple_of, longest_side or MAX_DEFAULT_SIDE, identity, notes)
    parts = [FORMAT, PIL.__version__, identity, size, config.channels, fit]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    target = Target(size, config.channels, fit)
    manifest, raw = _open_or_make(copies_folder() / key, listing, target, source, notes)
    if manifest.skipped and not config.skip_corrupt:
        raise corrupt(manifest.skipped, manifest.total, source)
    notes += skipped_note(manifest)
    return dataclasses.replace(raw, notes=tuple(dict.fromkeys([*notes, *raw.notes])))


def skipped_note(manifest: Manifest) -> list[str]:
    """Return a note on the files that were left out, if there are any."""
    if not (skipped := manifest.skipped):
        return []
    files = f"{plural(len(skipped), 'file')} of {manifest.total:,}"
    return [f"{files} left out because they cannot be read, such as {skipped[0][0]}"]


def identity_of(listing: AnyListing) -> str:
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


def decide(
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
        raise corrupt(errors, len(listing.items), source)
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


Opened = tuple[Manifest, RawDataset]


def _open_or_make(folder: Path, listing: AnyListing, target: Target, source: str, notes: list[str]) -> Opened:
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
        require_room(folder.parent, len(listing.items), target)
        with locked(lock_of(folder), wait):
            with contextlib.suppress(DamagedCopy):  # again: another process may have made it meanwhile
                if (copy := open_copy(folder)) is not None:
                    return copy
            if _make(folder, listing, target, source):
                make_room(folder)
                if (copy := open_copy(folder)) is not None:
                    return copy
    except OSError as error:
        if error.errno in FULL:
            raise no_room(folder.parent, len(listing.items), target) from None
    except DamagedCopy:
        pass
    return _make_temporary(listing, target, source)


def _make_temporary(listing: AnyListing, target: Target, source: str) -> Opened:
    """Return a copy for this process alone: the cache cannot be written to, or a file may be readable next time."""
    folder = Path(tempfile.mkdtemp(prefix="vitreous-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        require_room(folder, len(listing.items), target)
        _make(folder / "copy", listing, target, source)
        copy = open_copy(folder / "copy")
    except OSError as error:
        if error.errno in FULL:
            raise no_room(folder, len(listing.items), target) from None
        raise DataError(f"cannot write a prepared copy of the images to {folder}: {error.strerror or error}") from None
    assert copy is not None
    return copy


def _make(folder: Path, listing: AnyListing, target: Target, source: str) -> bool:
    """Decode everything into a copy; return whether it may be kept."""
    with new_copy(folder) as temporary, contextlib.closing(decode(listing.items, target)) as images:  # type: ignore[type-var]
        with writing_shard(temporary, 0, target.size) as writer:
            for place, (item, image) in enumerate(zip(_shown(listing, source, "reading"), images, strict=True)):
                write_decoded(writer, item, image, place)
            shard = writer.finish(target.channels)
        if not shard.images:
            raise corrupt(shard.skipped, len(listing.items), source)
        content = Content(
            class_names=tuple(listing.class_names),
            fit=target.fit,
            notes=tuple(listing.notes) if isinstance(listing, LazyListing) else (),
            source=source,
        )
        write_manifest(temporary, Manifest(content, target.size, (shard,)))
    return shard.lasts


def write_decoded(writer: ShardWriter, item: Item, image: Decoded, place: int) -> None:
    """Add an image to a shard, or the reason why it cannot be read."""
    if image.pixels is None:
        writer.skip(item.name, str(image.error), image.may_be_read_later)
    else:
        writer.append(image.pixels, item.name, item.label, item.split, image.digest, place, image.is_gray, image.notes)


def require_room(folder: Path, num_images: int, target: Target) -> None:
    """Raise an OSError if so many images do not fit onto the disk."""
    if shutil.disk_usage(folder).free < bytes_of(num_images, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def bytes_of(num_images: int, target: Target) -> int:
    return num_images * (target.channels or 3) * target.size[0] * target.size[1]


def no_room(
    folder: Path,
    num_images: int,
    target: Target,
    advice: str = "lower data.image_size, make room, or set VITREOUS_CACHE to a folder on another disk",
) -> DataError:
    needed, free = bytes_of(num_images, target), shutil.disk_usage(folder).free
    return DataError(
        f"the {num_images:,} images in {by(*target.size)} pixels need {gigabytes(needed)} on the disk, and"
        f" {gigabytes(free)} are free in {folder}: {advice}"
    )


def corrupt(skipped: Sequence[tuple[str, str]], total: int, source: str) -> DataError:
    """Return the error that lists bad files: all of them in one sentence, or the first ten."""
    reasons = [why for _, why in skipped[:LISTED]]
    if len(skipped) > LISTED:
        reasons.append(f"and {len(skipped) - LISTED:,} more")
    them = "it" if len(skipped) == 1 else "them"
    return DataError(
        f"{len(skipped):,} of {plural(total, 'file')} of {source} cannot be read: {'; '.join(reasons)}: repair or"
        f" remove {them}, or leave {them} out with --skip-corrupt (data.skip_corrupt)"
    )
