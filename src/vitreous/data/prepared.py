"""Prepared images: decoded once, in files that are mapped into memory instead of being read.

A folder of `vitreous data prepare`, and a prepared copy in the cache, is:

prepared.json       the format's number, the shape (C, H, W) of an image, class names, notes, the shards with the
                    SHA-256 of their files, and a checksum of all this
00000-pixels.npy    the images of a shard, uint8 (n, C, H, W)
00000-rows.npy      of each image: label, split (0 train, 1 val, 2 test), digest of the source image, sums and sums of
                    squares of its pixels per channel, its place in the source, and where its name ends
00000-names.txt     the names of the image files, UTF-8, each followed by a line break

A copy in the cache is one shard, in the order of the source. The shards of `data prepare` hold the images in a random
order (`is_shuffled`), so that any block of them is a fair sample; a split has the order of the source all the same.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.data.block_order import BLOCK_BYTES
from vitreous.data.fitting import Fit
from vitreous.data.mapped import MappedArray, MappedNames, MappedRows
from vitreous.data.splits import DIGEST, SPLIT_ORDER, MeanStd, Polarity, RawDataset, Split, SplitName
from vitreous.downloads.files import read_plain, sha256_of
from vitreous.errors import DataError
from vitreous.reports.formats import plural

FORMAT = 3
MANIFEST = "prepared.json"
ALWAYS_HASHED = 2**29  # bytes of pixels; of more, only the sizes of the files are checked (and in the cache, the times)
CHECKSUM_NAME = "images and labels"  # in records; "pixels and labels" was of resized pixels, up to version 0.1

_LARGEST_MANIFEST = 2**31  # bytes

Part = Literal["pixels", "rows", "names"]
_SUFFIXES: dict[Part, str] = {"pixels": "pixels.npy", "rows": "rows.npy", "names": "names.txt"}


class DamagedCopy(Exception):
    """Files that are not as they were written; the message says which, and how."""


class OtherFormat(DamagedCopy):
    """A manifest of another version."""


@dataclass(frozen=True)
class Content:
    """What is known of prepared images as a whole."""

    class_names: tuple[str, ...]
    fit: Fit = "stretch"
    notes: tuple[str, ...] = ()
    source: str = ""  # for people
    mean_std: MeanStd | None = None  # published; None: measured
    polarity: Polarity = "as-is"


@dataclass(frozen=True)
class Shard:
    """A finished shard; `number` is in the names of its files."""

    number: int
    images: int
    channels: int
    is_gray: bool  # all images are
    sha256: Mapping[Part, str]
    bytes: Mapping[Part, int]
    time: int  # when the pixels were written, in nanoseconds
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()  # (name, why it cannot be read)
    lasts: bool = True  # False: a file may be readable next time

    def file(self, folder: Path, part: Part) -> Path:
        return shard_file(folder, self.number, part)


def shard_file(folder: Path, number: int, part: Part) -> Path:
    return folder / f"{number:05}-{_SUFFIXES[part]}"


@dataclass(frozen=True)
class Manifest:
    """The content of prepared.json."""

    content: Content
    size: tuple[int, int]
    shards: tuple[Shard, ...]
    key: str = ""  # of the source and what its images are converted to
    num_shards: int = 1  # once it is complete
    is_shuffled: bool = False
    is_complete: bool = True

    @property
    def channels(self) -> int:
        return self.shards[0].channels

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        return tuple(each for shard in self.shards for each in shard.skipped)

    @property
    def total(self) -> int:
        """The images of the source, also those that were left out."""
        return sum(shard.images + len(shard.skipped) for shard in self.shards)

    @property
    def notes(self) -> tuple[str, ...]:
        """Those on the source, then those on its files."""
        return tuple(dict.fromkeys([*self.content.notes, *(note for shard in self.shards for note in shard.notes)]))

    def to_bytes(self) -> bytes:
        record = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return json.dumps({"checksum": _checksum(record), **record}, indent=1).encode("ascii")


def row_type(channels: int) -> np.dtype[np.void]:
    """Return the type of what is known of one image; `sums` are those of `splits.image_sums`."""
    return np.dtype(
        [("label", "<i8"), ("split", "u1"), ("digest", DIGEST), ("sums", "<i8", (channels, 2)), ("place", "<i8"),
         ("name_end", "<i8")]
    )  # fmt: skip


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode("ascii")).hexdigest()


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of prepared images, None where there is none; DamagedCopy where it cannot be used."""
    try:
        record = json.loads(read_plain(folder / MANIFEST, _LARGEST_MANIFEST))
        number, checksum = record["format"], record.pop("checksum")
        if number != FORMAT:
            raise OtherFormat(f"{MANIFEST} has format {number}, and this version reads {FORMAT}")
        if checksum != _checksum(record):
            raise DamagedCopy(f"{MANIFEST} does not have its checksum")
        return _parse(record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedCopy(f"{MANIFEST} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedCopy(f"{MANIFEST} is not a manifest of prepared images") from None


def _parse(record: dict[str, Any]) -> Manifest:
    del record["format"]
    content = record.pop("content")
    mean_std = content.pop("mean_std")
    shards = tuple(
        Shard(**{**each, "notes": tuple(each["notes"]), "skipped": tuple(map(tuple, each["skipped"]))})
        for each in record.pop("shards")
    )
    for name in ("class_names", "notes"):
        content[name] = tuple(content[name])
    known = Content(**content, mean_std=mean_std and (tuple(mean_std[0]), tuple(mean_std[1])))
    height, width = record.pop("size")
    return Manifest(known, (height, width), shards, **record)


def check_sizes(folder: Path, shard: Shard) -> None:
    """Raise DamagedCopy if a file of a shard is missing, or has another size than it was written with."""
    for part, size in shard.bytes.items():
        file = shard.file(folder, part)
        try:
            found = file.stat().st_size
        except OSError as error:
            raise DamagedCopy(f"{file.name} is missing ({error.strerror})") from None
        if found != size:
            how = "truncated" if found < size else "damaged"
            raise DamagedCopy(f"{file.name} is {how}: it has {found:,} bytes instead of {size:,}")


def check_hashes(folder: Path, shard: Shard, parts: tuple[Part, ...] = ("pixels", "rows", "names")) -> None:
    """Raise DamagedCopy if a file of a shard does not have its SHA-256."""
    for part in parts:
        file = shard.file(folder, part)
        try:
            found = sha256_of(file)
        except OSError as error:
            raise DamagedCopy(f"{file.name} cannot be read ({error.strerror or error})") from None
        if found != shard.sha256[part]:
            raise DamagedCopy(f"{file.name} is damaged: it does not have its SHA-256")


def has_prepared(folder: Path) -> bool:
    """Return whether a folder holds prepared images, or what is left of them."""
    return (folder / MANIFEST).is_file() or shard_file(folder, 0, "pixels").is_file()


def read_folder(folder: Path) -> Manifest:
    """Return the manifest of a folder that `data prepare` has finished; a DataError in any other case."""
    try:
        manifest = read_manifest(folder)
    except OtherFormat as error:
        raise DataError(f"{folder}: {error}: install the vitreous that wrote it, or prepare the images again") from None
    except DamagedCopy as error:
        raise DataError(f"{folder}: {error}: restore it, or prepare the images again") from None
    if manifest is None:
        raise DataError(f"{folder} has shards of prepared images and no {MANIFEST}: restore it, or prepare them again")
    if not manifest.is_complete:
        raise DataError(
            f"{folder} is unfinished, with {len(manifest.shards)} of {plural(manifest.num_shards, 'shard')}: finish it"
            f" with `vitreous data prepare {shlex.quote(manifest.content.source)} -o {shlex.quote(str(folder))}`"
        )
    return manifest


def open_folder(folder: Path) -> RawDataset:
    """Return the images of a folder that `data prepare` wrote."""
    manifest = read_folder(folder)
    try:
        return open_prepared(folder, manifest, trusts_time=False)
    except DamagedCopy as error:
        raise DataError(
            f"{folder}: {error}: restore it, or make it again with `vitreous data prepare"
            f" {shlex.quote(manifest.content.source)} -o {shlex.quote(str(folder))}`, which keeps the other shards"
        ) from None


def verify_folder(folder: Path) -> dict[str, Literal["ok", "missing", "corrupt"]]:
    """Hash every file of prepared images again."""
    statuses: dict[str, Literal["ok", "missing", "corrupt"]] = {MANIFEST: "ok"}
    for shard in read_folder(folder).shards:
        for part in shard.sha256:
            file = shard.file(folder, part)
            try:
                check_hashes(folder, shard, (part,))
                statuses[file.name] = "ok"
            except DamagedCopy:
                statuses[file.name] = "corrupt" if file.exists() else "missing"
    return statuses


def open_prepared(folder: Path, manifest: Manifest, trusts_time: bool) -> RawDataset:
    """Return the images in a folder; DamagedCopy where they are not as they were written.

    More than `ALWAYS_HASHED` bytes of pixels are trusted if the files have their sizes. With `trusts_time` they must
    have the times, too, at which they were written: a folder of the cache stays where it is, others are copied.
    """
    if not manifest.shards:
        raise DamagedCopy(f"{MANIFEST} lists no shards")
    is_large = sum(shard.bytes["pixels"] for shard in manifest.shards) > ALWAYS_HASHED
    for shard in manifest.shards:
        check_sizes(folder, shard)
        same_time = not trusts_time or shard.time == shard.file(folder, "pixels").stat().st_mtime_ns
        check_hashes(folder, shard, ("rows", "names") if is_large and same_time else ("pixels", "rows", "names"))
    try:
        tables = [MappedArray(shard.file(folder, "rows")) for shard in manifest.shards]
        pixels = [MappedArray(shard.file(folder, "pixels")) for shard in manifest.shards]
        for shard, table, images in zip(manifest.shards, tables, pixels, strict=True):
            shape = (shard.images, manifest.channels, *manifest.size)
            expected = ((shard.images,), row_type(manifest.channels), shape, np.dtype(np.uint8))
            if (table.array.shape, table.array.dtype, images.array.shape, images.array.dtype) != expected:
                raise DamagedCopy(f"{shard.file(folder, 'pixels').name} does not have the shape that {MANIFEST} states")
        return _raw_dataset(folder, manifest, tables, pixels)
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCopy(f"its files cannot be read ({error})") from None


def _raw_dataset(folder: Path, manifest: Manifest, tables: list[MappedArray], pixels: list[MappedArray]) -> RawDataset:
    import torch

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([table.array[name] for table in tables])

    content, place = manifest.content, column("place")
    ends = [table.array["name_end"].copy() for table in tables]
    image_bytes = manifest.channels * manifest.size[0] * manifest.size[1]
    everything = Split(
        MappedRows(pixels, [file.array for file in pixels]),
        torch.from_numpy(column("label").astype(np.int64)),
        store_names=MappedNames([shard.file(folder, "names") for shard in manifest.shards], ends),
        store_digests=column("digest"),
        store_sums=MappedRows(tables, [table.array["sums"] for table in tables]),
        block=max(1, BLOCK_BYTES // image_bytes) if manifest.is_shuffled else None,
    )
    split_of = column("split")
    for table in tables:
        table.give_back()
    splits: dict[SplitName, Split] = {}
    for number, name in enumerate(SPLIT_ORDER):
        rows = np.flatnonzero(split_of == number)
        if manifest.is_shuffled:
            rows = rows[np.argsort(place[rows], kind="stable")]
        if len(rows):
            whole = len(rows) == len(everything) and not manifest.is_shuffled
            splits[name] = everything if whole else everything.take(rows)
    checksum = hashlib.sha256()
    for name, split in splits.items():
        checksum.update(f"{name} {len(split)} {split.sha256}".encode())
    return RawDataset(
        splits,
        content.class_names,
        mean_std=content.mean_std,
        polarity=content.polarity,
        checksums={CHECKSUM_NAME: checksum.hexdigest()},
        notes=manifest.notes,
        fit=content.fit,
        skipped=tuple(name for name, _ in manifest.skipped),
    )
