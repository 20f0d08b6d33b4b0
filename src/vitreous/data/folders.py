"""A folder of images: one sub-folder a class, or those under `train/`, `val/` and `test/`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import SUFFIXES, decode_image, image_extent, is_gray, resize, to_channels
from vitreous.data.splits import PartName, RawDataset, Split
from vitreous.errors import DataError

PART_NAMES: dict[str, PartName] = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
MOST_BYTES = 8 * 1024**3  # of decoded pixels


@dataclass(frozen=True)
class _Item:
    path: Path
    label: int


def read_folder(root: Path, image_size: tuple[int, int] | None = None) -> RawDataset:
    """Every image under `root`, in one size: their common one, else their median, unless `image_size` is given."""
    parts, notes = _part_folders(root), []
    class_names = _class_names(parts["train"])
    items, strangers = {}, 0
    for part, folder in parts.items():
        items[part], left_out = _items(folder, class_names)
        strangers += left_out
    if strangers:
        notes.append(f"{strangers} files that are no PNG, JPEG, WebP or BMP images left out")
    everything = [item for part in items.values() for item in part]
    size = _common_size(everything, image_size, notes)
    if len(everything) * size[0] * size[1] * 3 > MOST_BYTES:
        raise DataError(
            f"{root}: {len(everything)} images of {size[0]}×{size[1]} pixels do not fit into {MOST_BYTES >> 30} GB;"
            " make them smaller with --set data.image_size"
        )
    pixels = [_in_size(item.path, size, notes) for item in everything]
    channels = 1 if all(is_gray(picture) for picture in pixels) else 3
    splits, start = {}, 0
    for part, members in items.items():
        splits[part] = _split(members, pixels[start : start + len(members)], channels, root)
        start += len(members)
    digest = hashlib.sha256()
    for split in splits.values():
        digest.update(split.images.numpy().tobytes() + split.labels.numpy().tobytes())
    return RawDataset(
        splits, class_names, checksums={"pixels and labels": digest.hexdigest()}, notes=tuple(_once(notes))
    )


def _once(notes: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def _sub_folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None


def _part_folders(root: Path) -> dict[PartName, Path]:
    """The folder of each part; a root without `train/` is itself the training part."""
    below = _sub_folders(root)
    named = [(PART_NAMES[entry.name.lower()], entry) for entry in below if entry.name.lower() in PART_NAMES]
    parts = dict(named)
    if "train" not in parts:
        return {"train": root}
    for part, entry in named:
        if parts[part] != entry:
            raise DataError(
                f"{root} holds {entry.name}/ and also {parts[part].name}/, two names for one part: merge them"
            )
    strangers = [entry.name for entry in below if entry.name.lower() not in PART_NAMES]
    if strangers:
        raise DataError(
            f"{root} holds train/ and also {', '.join(strangers[:3])}/; expected either train/, val/ and test/,"
            " or one folder a class, not both"
        )
    return parts


def _class_names(train: Path) -> tuple[str, ...]:
    names = tuple(folder.name for folder in _sub_folders(train))
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "none"
        raise DataError(f"{train}: expected a sub-folder for each of at least 2 classes, and found {found}")
    return names


def _items(folder: Path, class_names: tuple[str, ...]) -> tuple[list[_Item], int]:
    """The images of a part by class and path, and how many files are something else."""
    unknown = {entry.name for entry in _sub_folders(folder)} - set(class_names)
    if unknown:
        raise DataError(f"{folder} holds the class {min(unknown)!r}, which the training folder does not; add it there")
    items: list[_Item] = []
    strangers = 0
    for label, name in enumerate(class_names):
        before = len(items)
        for parent, folders, files in os.walk(folder / name):
            folders[:] = sorted(sub for sub in folders if not sub.startswith("."))
            for file in sorted(file for file in files if not file.startswith(".")):
                if file.lower().endswith(SUFFIXES):
                    items.append(_Item(Path(parent, file), label))
                else:
                    strangers += 1
        if (folder / name).is_dir() and len(items) == before:
            raise DataError(
                f"the class folder {folder / name} holds no PNG, JPEG, WebP or BMP image; add some, or remove it"
            )
    if not items:
        raise DataError(
            f"{folder} holds no class folders; expected one sub-folder a class, as in training: sort its images into"
            " them, or move it away"
        )
    return items, strangers


def _common_size(items: list[_Item], wanted: tuple[int, int] | None, notes: list[str]) -> tuple[int, int]:
    if wanted is not None:
        notes.append(f"images resized to {wanted[0]}×{wanted[1]}")
        return wanted
    extents = [image_extent(item.path) for item in items]
    distinct = len(set(extents))
    if distinct == 1:
        return extents[0]
    height, width = (int(np.median([extent[axis] for extent in extents])) for axis in (0, 1))
    notes.append(
        f"images of {distinct} sizes resized to the median, {height}×{width}; choose another with data.image_size"
    )
    return height, width


def _in_size(path: Path, size: tuple[int, int], notes: list[str]) -> Tensor:
    """(C, H, W), with one or three channels as the file has it."""
    decoded = decode_image(path)
    notes.extend(decoded.notes)
    planes = torch.from_numpy(decoded.pixels).permute(2, 0, 1)[None]  # (1, C, H, W)
    return resize(planes, size)[0]


def _split(items: list[_Item], pixels: list[Tensor], channels: int, root: Path) -> Split:
    images = torch.cat([to_channels(picture[None], channels) for picture in pixels])  # (n, C, H, W)
    labels = torch.tensor([item.label for item in items], dtype=torch.int64)
    return Split(images, labels, tuple(str(item.path.relative_to(root)) for item in items))
