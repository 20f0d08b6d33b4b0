"""Write prepared images: a shard at a time, one image after the other. A file gets its name when it is complete."""

from __future__ import annotations

import array
import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.data.fitting import to_channels
from vitreous.data.mapped import MappedArray
from vitreous.data.prepared import MANIFEST, Manifest, Part, Shard, row_type, shard_file
from vitreous.data.splits import DIGEST, DIGEST_BYTES, SPLIT_ORDER, SplitName, image_sums
from vitreous.downloads.files import atomic_write_bytes

PARTIAL = ".part"

_HEADER_BYTES = 128
_BLOCK_BYTES = 2**18  # written at a time


class ShardWriter:
    """Write images one after the other into a shard: gray until the first colour image comes, then colour."""

    def __init__(self, folder: Path, number: int, size: tuple[int, int]):
        self._folder, self._number, self._size = folder, number, size
        self._path = shard_file(folder, number, "pixels")
        self._channels, self._all_gray = 1, True
        self._labels, self._places, self._name_ends = (array.array("q") for _ in range(3))
        self._splits, self._digests, self._names = bytearray(), bytearray(), bytearray()
        self._notes: dict[str, None] = {}
        self._skipped: list[tuple[str, str]] = []
        self._lasts = True
        self._start(self._partial)

    @property
    def _partial(self) -> Path:
        return self._path.with_name(self._path.name + PARTIAL)

    def append(
        self,
        image: np.ndarray,
        name: str,
        label: int,
        split: SplitName,
        digest: bytes,
        place: int,
        is_gray: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Add a uint8 (C, H, W) image; `is_gray` where its channels are equal but for a tint."""
        if image.shape[0] > self._channels:
            self._rewrite(3)
        elif image.shape[0] < self._channels:
            image = np.repeat(image, 3, axis=0)
        self._write(image)
        self._labels.append(label)
        self._places.append(place)
        self._splits.append(SPLIT_ORDER.index(split))
        self._digests += digest.ljust(DIGEST_BYTES, b"\0")
        self._names += name.encode("utf-8", "backslashreplace")
        self._name_ends.append(len(self._names))
        self._names += b"\n"
        self._all_gray = self._all_gray and is_gray
        self._notes.update(dict.fromkeys(notes))

    def skip(self, name: str, why: str, may_be_read_later: bool) -> None:
        """Leave out an image that cannot be read."""
        self._skipped.append((name, why))
        self._lasts = self._lasts and not may_be_read_later

    def finish(self, channels: int | None = None) -> Shard:
        """Complete the files; a shard of gray images gets one channel, unless their number is given."""
        wanted = channels or (1 if self._all_gray else self._channels)
        if wanted != self._channels:
            self._rewrite(wanted)
        self._write_block()
        count = len(self._labels)
        header = _npy_header((count, self._channels, *self._size))
        self._stream.seek(0)
        self._stream.write(header)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.seek(0)
        sha256: dict[Part, str] = {"pixels": hashlib.file_digest(self._stream, "sha256").hexdigest()}
        self.close()
        rows = np.empty(count, row_type(self._channels))
        rows["label"], rows["place"], rows["name_end"] = self._labels, self._places, self._name_ends
        rows["split"], rows["digest"] = np.frombuffer(self._splits, np.uint8), np.frombuffer(self._digests, DIGEST)
        rows["sums"] = np.concatenate(self._sums) if self._sums else 0
        buffer = io.BytesIO()
        np.save(buffer, rows)
        small: dict[Part, bytes] = {"rows": buffer.getvalue(), "names": bytes(self._names)}
        os.replace(self._partial, self._path)
        for part, data in small.items():
            atomic_write_bytes(shard_file(self._folder, self._number, part), data)
            sha256[part] = hashlib.sha256(data).hexdigest()
        status = self._path.stat()
        sizes: dict[Part, int] = {"pixels": status.st_size, **{part: len(data) for part, data in small.items()}}
        return Shard(
            self._number, count, self._channels, self._all_gray, sha256, sizes, status.st_mtime_ns,
            tuple(self._notes), tuple(self._skipped), self._lasts,
        )  # fmt: skip

    def close(self) -> None:
        self._stream.close()

    def _start(self, path: Path) -> None:
        """Begin a file of images with the present number of channels."""
        self._stream: BufferedRandom = path.open("w+b")
        self._stream.write(bytes(_HEADER_BYTES))
        self._block: list[np.ndarray] = []
        self._sums: list[NDArray[np.int64]] = []  # of the blocks

    def _write(self, image: np.ndarray) -> None:
        self._block.append(image)
        if len(self._block) * image.size >= _BLOCK_BYTES:
            self._write_block()

    def _write_block(self) -> None:
        if not self._block:
            return
        images, self._block = np.ascontiguousarray(np.stack(self._block)), []
        self._sums.append(image_sums(images))
        self._stream.write(images.data)

    def _rewrite(self, channels: int) -> None:
        """Convert all images so far to this number of channels."""
        self._write_block()
        old, old_channels = self._stream, self._channels
        self._channels = channels
        other = self._path.with_name(self._path.name + ".other" + PARTIAL)
        self._start(other)
        try:
            old.seek(_HEADER_BYTES)
            image_bytes = old_channels * self._size[0] * self._size[1]
            while data := old.read(max(1, _BLOCK_BYTES // image_bytes) * image_bytes):
                images = np.frombuffer(data, np.uint8).reshape(-1, old_channels, *self._size)
                for image in images:
                    self._write(to_channels(image.transpose(1, 2, 0), channels).transpose(2, 0, 1))
        finally:
            old.close()
        os.replace(other, self._partial)


@contextlib.contextmanager
def writing_shard(folder: Path, number: int, size: tuple[int, int]) -> Iterator[ShardWriter]:
    """Yield the writer of a shard; what it has not finished stays under another name, and is overwritten next time."""
    writer = ShardWriter(folder, number, size)
    try:
        yield writer
    finally:
        writer.close()


def with_channels(folder: Path, shard: Shard, size: tuple[int, int], channels: int) -> Shard:
    """Return a shard written again with another number of channels."""
    rows = MappedArray(shard.file(folder, "rows")).array
    pixels = MappedArray(shard.file(folder, "pixels")).array
    text = shard.file(folder, "names").read_bytes()
    with writing_shard(folder, shard.number, size) as writer:
        begin = 0
        for image, row in zip(pixels, rows, strict=True):
            name = text[begin : int(row["name_end"])].decode("utf-8")
            begin = int(row["name_end"]) + 1
            converted = to_channels(image.transpose(1, 2, 0), channels).transpose(2, 0, 1)
            split = SPLIT_ORDER[int(row["split"])]
            writer.append(
                converted, name, int(row["label"]), split, bytes(row["digest"]), int(row["place"]), shard.is_gray,
                shard.notes,
            )  # fmt: skip
        for name, why in shard.skipped:
            writer.skip(name, why, not shard.lasts)
        return writer.finish(channels)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    atomic_write_bytes(folder / MANIFEST, manifest.to_bytes())


def _npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    return (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER_BYTES - 10) + text.ljust(_HEADER_BYTES - 11).encode() + b"\n"
    )
