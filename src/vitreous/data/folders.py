"""A folder of images: one sub-folder per class, or `train/`, `val/` and `test/` with such sub-folders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import SUFFIXES, decode_image, image_extent, is_gray, resize, to_channels
from vitreous.data.splits import RawDataset, Split, SplitName, image_digest
from vitreous.errors import DataError
from vitreous.hardware import require_memory
from vitreous.reports.formats import by

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def read_folder(root: Path, image_size: tuple[int, int] | None = None) -> RawDataset:
    """Read every image under `root`, resized to `image_size`, or else to their common or median size."""
    notes: list[str] = []
    folders = _split_folders(root)
    class_names = tuple(folder.name for folder in _sub_folders(folders["train"]))
    if len(class_names) < 2:
        found = f"only {class_names[0]!r}" if class_names else "none"
        raise DataError(f"{folders['train']}: expected a sub-folder for each of at least 2 classes; found {found}")
    labelled = {name: _labelled_paths(folder, class_names, notes) for name, folder in folders.items()}
    paths = [path for split in labelled.values() for path, _ in split]
    size = _choose_size(paths, image_size, notes)
    # the decoded images, and the tensors they are joined to, with three channels at first
    require_memory(
        2 * len(paths) * size[0] * size[1] * 3,
        f"the {len(paths):,} images of {root}, {by(*size)} pixels each,",
        "make them smaller with --set data.image_size, or take fewer",
    )
    images = {name: [_read_image(path, size, notes) for path, _ in members] for name, members in labelled.items()}
    channels = 1 if all(is_gray(image) for split in images.values() for image, _ in split) else 3
    splits: dict[SplitName, Split] = {}
    digest = hashlib.sha256()
    for name, members in labelled.items():
        pixels = torch.cat([to_channels(image[None], channels) for image, _ in images[name]])  # (n, C, H, W)
        labels = torch.tensor([label for _, label in members], dtype=torch.int64)
        names = (_readable(str(path.relative_to(root))) for path, _ in members)
        digests = (digest for _, digest in images[name])
        splits[name] = Split(pixels, labels, tuple(names), tuple(digests))
        digest.update(pixels.numpy().tobytes() + labels.numpy().tobytes())
    checksums = {"pixels and labels": digest.hexdigest()}
    return RawDataset(splits, class_names, checksums=checksums, notes=tuple(dict.fromkeys(notes)))


def _sub_folders(folder: Path) -> list[Path]:
    try:
        found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    for entry in found:
        if _readable(entry.name) != entry.name:  # class names go into records and reports
            raise DataError(f"the name of the folder {_readable(str(entry))!r} is not UTF-8; rename the folder")
    return found


def _readable(name: str) -> str:
    """Return a file's name with the bytes that are not UTF-8 escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _split_folders(root: Path) -> dict[SplitName, Path]:
    """Return the folder of each split; a root without `train/` is itself the training set."""
    found: dict[SplitName | None, list[Path]] = {}
    for folder in _sub_folders(root):
        found.setdefault(SPLIT_FOLDERS.get(folder.name.lower()), []).append(folder)
    if "train" not in found:
        return {"train": root}
    if None in found:
        raise DataError(
            f"{root} has train/ and also {found[None][0].name}/; expected either train/, val/ and test/, or one folder"
            " per class, not both"
        )
    for first, *others in found.values():
        if others:
            raise DataError(f"{root} has {first.name}/ and also {others[0].name}/, two names for one split: merge them")
    return {name: first for name, (first,) in found.items() if name is not None}


def _labelled_paths(folder: Path, class_names: tuple[str, ...], notes: list[str]) -> list[tuple[Path, int]]:
    """Return (path, label) of the images of a split, by class and path."""
    unknown = {entry.name for entry in _sub_folders(folder)} - set(class_names)
    if unknown:
        raise DataError(f"{folder} has the class {min(unknown)!r}, which the training folder does not; add it there")
    labelled: list[tuple[Path, int]] = []
    others = 0
    for label, name in enumerate(class_names):
        images: list[Path] = []
        for parent, folders, files in os.walk(folder / name):
            folders[:] = sorted(sub for sub in folders if not sub.startswith("."))
            visible = sorted(file for file in files if not file.startswith("."))
            images += [Path(parent, file) for file in visible if file.lower().endswith(SUFFIXES)]
            others += sum(not file.lower().endswith(SUFFIXES) for file in visible)
        if (folder / name).is_dir() and not images:
            raise DataError(
                f"the class folder {folder / name} has no PNG, JPEG, WebP or BMP image; add some, or remove it"
            )
        labelled += [(path, label) for path in images]
    if not labelled:
        raise DataError(
            f"{folder} has no class folders; expected one sub-folder per class, as in training: sort its images into"
            " them, or move it away"
        )
    if others:
        notes.append(f"{others} files in {folder.name}/ that are not PNG, JPEG, WebP or BMP images left out")
    return labelled


def _choose_size(paths: list[Path], wanted: tuple[int, int] | None, notes: list[str]) -> tuple[int, int]:
    if wanted is not None:
        notes.append(f"images resized to {by(*wanted)}")
        return wanted
    extents = [image_extent(path) for path in paths]
    distinct = len(set(extents))
    if distinct == 1:
        return extents[0]
    height, width = (int(np.median(sides)) for sides in zip(*extents, strict=True))
    notes.append(
        f"images of {distinct} sizes resized to the median, {by(height, width)}; choose another with data.image_size"
    )
    return height, width


def _read_image(path: Path, size: tuple[int, int], notes: list[str]) -> tuple[Tensor, bytes]:
    """Return a (C, H, W) image, with one or three channels as in the file, and its digest before it was resized."""
    decoded = decode_image(path)
    notes.extend(decoded.notes)
    image = torch.from_numpy(decoded.pixels).permute(2, 0, 1)
    as_seen = to_channels(image[None], 1) if is_gray(image) else image  # gray may be stored in colour
    return resize(image[None], size)[0], image_digest(as_seen.numpy())
