"""Images that are listed and not decoded yet: what a folder, a manifest or a set of shards has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
