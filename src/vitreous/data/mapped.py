"""Arrays in files that are mapped into memory: rows of several files as those of one array, and their names.

The pages of a mapped file that were read stay with the process until memory is short. They are given back after
`KEPT_BYTES`, so that the memory of a process does not grow with the data; the system still caches the file.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from vitreous.data.npy import read_header
from vitreous.downloads.files import open_plain

KEPT_BYTES = 2**25  # of pages
_AROUND_BYTES = 2**16  # Linux maps this much around a byte that is read

Rows = NDArray[np.int64]


class MappedArray:
    """A .npy file. Writing to `array` changes the memory of this process alone, and only until pages are given back."""

    def __init__(self, path: Path):
        with open_plain(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            shape, _, dtype = read_header(stream, size)
            offset = stream.tell()
            # copy-on-write: torch warns of memory that it must not write to
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        self.array: NDArray[Any] = np.ndarray(shape, dtype, self._map, offset)

    def give_back(self) -> None:
        """Let the system take the pages back that were read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class MappedRows:
    """The rows of several arrays (n, …), one after the other, as those of one array."""

    def __init__(self, files: Sequence[MappedArray], parts: Sequence[NDArray[Any]]):
        self._files, self._parts = files, parts
        self._starts = np.cumsum([0, *map(len, parts)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype
        self._row_bytes = sum(file.array.nbytes for file in files) / max(1, len(self))
        self._read_bytes = 0.0

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, rows: Rows | slice) -> NDArray[Any]:
        """Return a copy of these rows."""
        chosen = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows, np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} of {len(self)}")
        if len(self._parts) == 1:
            found = self._parts[0][chosen]
        else:
            found = np.empty((len(chosen), *self.shape[1:]), self.dtype)
            number = np.searchsorted(self._starts, chosen, "right") - 1
            for part in np.unique(number):
                here = np.flatnonzero(number == part)
                found[here] = self._parts[part][chosen[here] - self._starts[part]]
        self._count(chosen)
        return found

    def _count(self, rows: Rows) -> None:
        """Give pages back when enough were read; an estimate, since several rows may be in one page."""
        if not len(rows) or self._row_bytes * len(self) <= KEPT_BYTES:
            return
        span = (int(rows.max()) - int(rows.min()) + 1) * self._row_bytes + _AROUND_BYTES
        self._read_bytes += min(span, len(rows) * (self._row_bytes + _AROUND_BYTES))
        if self._read_bytes > KEPT_BYTES:
            self._read_bytes = 0.0
            for file in self._files:
                file.give_back()


class _Names(Sequence[str]):
    """Text that is decoded when it is asked for; equal to any sequence of the same text."""

    def _get(self, index: int) -> str:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self._get(each) for each in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index} of {len(self)} names")
        return self._get(int(index) % len(self))

    def __iter__(self) -> Iterator[str]:
        return map(self._get, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


class MappedNames(_Names):
    """Names in files of UTF-8 text, one per line; `ends` (n,) are where they end, without the line break."""

    def __init__(self, files: Sequence[Path], ends: Sequence[NDArray[np.int64]]):
        self._texts = [_map_text(file) for file in files]
        self._ends = ends
        self._starts = np.cumsum([0, *map(len, ends)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def _get(self, index: int) -> str:
        part = bisect_right(self._starts, index) - 1
        place = index - self._starts[part]
        begin = int(self._ends[part][place - 1]) + 1 if place else 0
        return bytes(self._texts[part][begin : int(self._ends[part][place])]).decode("utf-8")


class ChosenNames(_Names):
    """Those names of a sequence that are at these rows."""

    def __init__(self, names: Sequence[str], rows: Rows):
        self._names, self._rows = names, rows

    def __len__(self) -> int:
        return len(self._rows)

    def _get(self, index: int) -> str:
        return self._names[int(self._rows[index])]


def _map_text(path: Path) -> mmap.mmap | bytes:
    with open_plain(path) as stream:
        is_empty = stream.seek(0, 2) == 0  # an empty file cannot be mapped
        return b"" if is_empty else mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
