"""`vitreous data prepare`: any source as shards of one stored size, which trainings read without decoding.

The images are stored in a random order (`prepared.py` has the format). A finished shard is listed in the manifest, so
that a run of the same command goes on after it: shards that are listed and have their checksums are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from vitreous.config import DataConfig, build_config
from vitreous.data.datasets import DATASETS, open_source
from vitreous.data.decoding import Decoded
from vitreous.data.fitting import fit_image, to_channels
from vitreous.data.images import is_gray
from vitreous.data.items import Item
from vitreous.data.prepare import (
    FULL,
    AnyListing,
    bytes_of,
    corrupt,
    decide,
    identity_of,
    no_room,
    require_room,
    skipped_note,
    write_decoded,
)
from vitreous.data.prepared import (
    FORMAT,
    Content,
    DamagedCopy,
    Manifest,
    Shard,
    check_hashes,
    check_sizes,
    read_manifest,
)
from vitreous.data.shard_writer import PARTIAL, with_channels, write_manifest, writing_shard
from vitreous.data.splitmix import splitmix64
from vitreous.data.splits import RawDataset, SplitName
from vitreous.data.target import Target
from vitreous.data.workers import decode
from vitreous.downloads.files import locked
from vitreous.errors import DataError, VitreousError
from vitreous.reports.formats import by, plural
from vitreous.reports.progress import counting

LONGEST_SIDE = 256  # pixels, where no size is given
SHARD_BYTES = 2**29  # of pixels in a shard, where no number is given
MOST_SHARDS = 99_999
LOCK = ".lock"
_ORDER_KEY = 0x7072_6570_6172_6564  # any constant; the order of the images in the shards follows from it


class PreparationInterrupted(VitreousError):
    """Ctrl-C: the finished shards are kept."""

    exit_code = 130


@dataclass(frozen=True)
class Result:
    """What was written."""

    manifest: Manifest
    kept: int  # shards that were there already
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Images:
    """The images of a source, by their place in it."""

    count: int
    content: Content
    identity: str
    target: Target
    read: Callable[[NDArray[np.int64]], Iterator[tuple[Item, Decoded]]]  # those at these places, in that order


def prepare_folder(
    source: str,
    folder: Path,
    *,
    size: tuple[int, int] | None = None,
    shards: int | None = None,
    fit: str | None = None,
    skip_corrupt: bool = False,
) -> Result:
    """Write the images of a source to shards in `folder`, or go on where another process stopped."""
    _require_outside(source, folder)
    config = build_config(DataConfig, {"name": source, "image_size": size, "fit": fit, "skip_corrupt": skip_corrupt})
    opened = open_source(source)
    if isinstance(opened, RawDataset):
        return _prepare(_of_arrays(opened, config), folder, shards, skip_corrupt)
    with opened.listed() as listing:
        images = _of_listing(listing, config, opened.notes)
        return _prepare(images, folder, shards, skip_corrupt)


def _require_outside(source: str, folder: Path) -> None:
    path = Path(source).expanduser()
    if source not in DATASETS and path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
        raise DataError(
            f"{folder} is in {source}, whose images would then be listed twice: name a folder outside of it"
        )


# --- the two kinds of sources ------------------------------------------------------------------------------------


def _of_listing(listing: AnyListing, config: DataConfig, more_notes: tuple[str, ...]) -> _Images:
    identity, notes = identity_of(listing), [*more_notes, *listing.notes]
    size, fit = decide(listing, config, config.name, (1, 1), LONGEST_SIDE, identity, notes)
    target = Target(size, config.channels, fit)
    content = Content(tuple(listing.class_names), fit, tuple(dict.fromkeys(notes)), config.name)

    def read(places: NDArray[np.int64]) -> Iterator[tuple[Item, Decoded]]:
        items = listing.items
        with contextlib.closing(decode((items[place] for place in places), target)) as decoded:  # type: ignore[type-var]
            yield from zip((items[place] for place in places), decoded, strict=True)

    return _Images(len(listing.items), content, identity, target, read)


def _of_arrays(raw: RawDataset, config: DataConfig) -> _Images:
    first = next(iter(raw.splits.values()))
    channels, *own_size = first.image_shape
    size = config.image_size or (own_size[0], own_size[1])
    fit = config.fit or raw.fit
    target = Target(size, 3 if channels == 3 else 1, fit)
    content = Content(raw.class_names, fit, raw.notes, config.name, raw.mean_std, raw.polarity)
    lengths = {name: len(split) for name, split in raw.splits.items()}
    identity = json.dumps([raw.checksums, lengths, list(raw.class_names)])
    starts = np.cumsum([0, *lengths.values()])
    names: list[SplitName] = list(raw.splits)
    digests = [split.digests for split in raw.splits.values()]

    def read(places: NDArray[np.int64]) -> Iterator[tuple[Item, Decoded]]:
        for place in places.tolist():
            number = int(np.searchsorted(starts, place, "right")) - 1
            split, index = raw.splits[names[number]], place - int(starts[number])
            called = split.paths[index] if len(split.paths) else f"{names[number]} image {index}"
            item = Item(called, "", int(split.labels[index]), names[number])
            pixels = fit_image(split.image(index).numpy().transpose(1, 2, 0), size, fit)
            image = np.ascontiguousarray(to_channels(pixels, channels).transpose(2, 0, 1))
            yield item, Decoded(image, digest=bytes(digests[number][index]), is_gray=is_gray(pixels))

    return _Images(int(starts[-1]), content, identity, target, read)


# --- writing -----------------------------------------------------------------------------------------------------


def _prepare(images: _Images, folder: Path, shards: int | None, skip_corrupt: bool) -> Result:
    if not images.count:
        raise DataError(f"{images.content.source} has no images")
    count = _number_of_shards(images, shards)
    target = images.target
    parts = [FORMAT, PIL.__version__, images.identity, target.size, target.channels, target.fit, count]
    key = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    started = Manifest(images.content, target.size, (), key, count, is_shuffled=True, is_complete=False)

    def busy() -> None:
        raise DataError(f"{folder} is being written by another process: wait for it, or name another folder")

    before = _require_free(folder, started)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, busy):
            before = _require_free(folder, started)  # again: another process may have finished meanwhile
            return _write_shards(images, folder, started, before, count, skip_corrupt)
    except OSError as error:
        again = "the finished shards are kept; run the same command again to go on"
        if error.errno in FULL:
            raise no_room(folder, images.count, target, f"make room, or name another folder; {again}") from None
        raise DataError(f"cannot write to {folder}: {error.strerror or error}; {again}") from None


def _number_of_shards(images: _Images, asked: int | None) -> int:
    if asked is None:
        return min(images.count, MOST_SHARDS, max(1, -(-bytes_of(images.count, images.target) // SHARD_BYTES)))
    if not 1 <= asked <= min(images.count, MOST_SHARDS):
        raise DataError(f"--shards {asked}: expected 1 to {min(images.count, MOST_SHARDS):,}, at most one per image")
    return asked


def _require_free(folder: Path, started: Manifest) -> tuple[Shard, ...]:
    """Return the shards of an earlier run of the same command; raise if there is anything else in the folder."""
    try:
        entries = [entry for entry in folder.iterdir() if entry.name != LOCK]
    except FileNotFoundError:
        return ()
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; name a folder") from None
    if not entries:
        return ()
    try:
        found = read_manifest(folder)
    except DamagedCopy as error:
        raise DataError(f"{folder}: {error}: remove the folder, or name another one") from None
    if found is None:
        raise DataError(f"{folder} is not empty and holds no prepared images; name a new folder, or empty this one")
    if found.key != started.key:
        found_there, asked = (
            f"{each.content.source} in {by(*each.size)} and {plural(each.num_shards, 'shard')}"
            for each in (found, started)
        )
        changed = f"{found_there}, before the source or the fit changed"
        how = f"{found_there}, not {asked}" if found_there != asked else changed
        raise DataError(f"{folder} holds other prepared images ({how}): name another folder, or remove this one")
    return found.shards


def _write_shards(
    images: _Images, folder: Path, started: Manifest, before: Iterable[Shard], count: int, skip_corrupt: bool
) -> Result:
    for leftover in folder.glob(f"*{PARTIAL}"):  # of a process that was killed
        leftover.unlink(missing_ok=True)
    done = _intact(folder, before)
    kept = len(done)
    order = np.argsort(splitmix64(_ORDER_KEY, np.arange(1, images.count + 1)), kind="stable")
    bounds = np.linspace(0, images.count, count + 1).round().astype(np.int64)
    missing = [number for number in range(count) if number not in done]
    places = [order[bounds[number] : bounds[number + 1]] for number in missing]
    require_room(folder, sum(map(len, places)), images.target)
    if missing:
        write_manifest(folder, _with_shards(started, done))
        try:
            for shard in _written(images, folder, missing, places):
                done[shard.number] = shard
                write_manifest(folder, _with_shards(started, done))
        except KeyboardInterrupt:
            raise PreparationInterrupted(
                f"stopped with {len(done)} of {plural(count, 'shard')} finished: run the same command again to go on"
            ) from None
    manifest = _with_shards(started, done)
    if manifest.total == len(manifest.skipped) or (manifest.skipped and not skip_corrupt):
        raise corrupt(manifest.skipped, manifest.total, images.content.source)
    manifest = dataclasses.replace(_with_equal_channels(folder, manifest, images.target), is_complete=True)
    write_manifest(folder, manifest)
    return Result(manifest, kept, (*manifest.notes, *skipped_note(manifest)))


def _intact(folder: Path, shards: Iterable[Shard]) -> dict[int, Shard]:
    """Return the shards that are as they were written, by number."""
    intact = {}
    for shard in shards:
        with contextlib.suppress(DamagedCopy):
            check_sizes(folder, shard)
            check_hashes(folder, shard)
            if shard.lasts:
                intact[shard.number] = shard
    return intact


def _written(images: _Images, folder: Path, numbers: list[int], places: list[NDArray[np.int64]]) -> Iterator[Shard]:
    """Yield each shard when it is finished; all are decoded in one stream."""
    total, done = sum(map(len, places)), 0
    with (
        counting(f"preparing {images.content.source}", total) as update,
        contextlib.closing(images.read(np.concatenate(places))) as stream,  # type: ignore[type-var]
    ):
        for number, chosen in zip(numbers, places, strict=True):
            with writing_shard(folder, number, images.target.size) as writer:
                for place in chosen.tolist():
                    item, image = next(stream)
                    write_decoded(writer, item, image, place)
                    done += 1
                    update(done)
                shard = writer.finish(images.target.channels)
            yield shard


def _with_shards(manifest: Manifest, shards: dict[int, Shard]) -> Manifest:
    return dataclasses.replace(manifest, shards=tuple(shards[number] for number in sorted(shards)))


def _with_equal_channels(folder: Path, manifest: Manifest, target: Target) -> Manifest:
    """Return shards with the same number of channels: one where all images are gray, unless it is given."""
    wanted = target.channels or (1 if all(shard.is_gray for shard in manifest.shards) else 3)
    shards = tuple(
        shard if shard.channels == wanted else with_channels(folder, shard, manifest.size, wanted)
        for shard in manifest.shards
    )
    return dataclasses.replace(manifest, shards=shards)
