"""Images that are listed and not decoded yet: what a folder, a manifest or a set of shards has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from vitreous.data.splits import SplitName


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled image file, or a part of a file (a member of a tar shard)."""

    name: str  # in messages and reports: the path relative to the source, valid UTF-8
    path: str  # of the file with its bytes
    label: int
    split: SplitName = "train"
    offset: int = 0
    size: int | None = None  # bytes from offset; None: to the end of the file


@dataclass(frozen=True)
class Listing:
    """The images of a source, in the order in which they are stored; a split that it does not define has none."""

    items: Sequence[Item]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


class LazyListing:
    """A listing that is made on first use: unpacking a parquet file takes long, and its prepared copy may be there.

    `identity` is known before: while it stays, so do the images, labels and notes.
    """

    def __init__(self, identity: str, make: Callable[[], Listing]):
        self.identity = identity
        self._make = make

    @cached_property
    def _listing(self) -> Listing:
        return self._make()

    @property
    def items(self) -> Sequence[Item]:
        return self._listing.items

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._listing.class_names

    @property
    def notes(self) -> tuple[str, ...]:
        return self._listing.notes
