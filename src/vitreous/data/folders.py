"""A folder of images: one sub-folder per class, or `train/`, `val/` and `test/` with such sub-folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vitreous.data.file_formats import FORMATS, SUFFIXES
from vitreous.data.items import Item, Listing
from vitreous.data.splits import SplitName
from vitreous.errors import DataError
from vitreous.reports.formats import join, plural

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
JUNK = {"__macosx", "thumbs.db", "desktop.ini", "ehthumbs.db"}  # what archives and file managers leave behind


def list_folder(root: Path) -> Listing:
    """List every image under `root`, by split, class and path; nothing is opened."""
    notes: list[str] = []
    folders = _split_folders(root, notes)
    empty: dict[SplitName, list[str]] = {name: [] for name in folders}
    found = {name: _class_images(folder, root, empty[name], notes) for name, folder in folders.items()}
    class_names = tuple(found["train"])
    if len(class_names) < 2:
        only = f"only {class_names[0]!r}" if class_names else "none"
        without = f" ({join(map(repr, empty['train']), most=5)} has none)" if empty["train"] else ""
        raise DataError(
            f"{folders['train']}: expected a sub-folder with {FORMATS} images for each of at least 2 classes; found"
            f" {only}{without}"
        )
    items: list[Item] = []
    start = len(os.path.join(os.path.abspath(root), ""))  # of the names, after the root and a separator
    for name, classes in found.items():
        if unknown := sorted(set(classes) - set(class_names)):
            raise DataError(
                f"{folders[name]} has the class {unknown[0]!r}, of which the training folder has no image; add some"
            )
        if not classes:
            raise DataError(
                f"{folders[name]} has no class folders; expected one sub-folder per class, as in training: sort its"
                " images into them, or move it away"
            )
        for label, class_name in enumerate(class_names):
            for path in classes.get(class_name, ()):
                items.append(Item(readable(path[start:]), path, label, name))
    return Listing(items, class_names, tuple(notes))


def _sub_folders(folder: Path) -> list[Path]:
    try:
        found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not _is_junk(entry.name))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    for entry in found:
        if readable(entry.name) != entry.name:  # class names go into records and reports
            raise DataError(f"the name of the folder {readable(str(entry))!r} is not UTF-8; rename the folder")
    return found


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in JUNK


def readable(name: str) -> str:
    """Return a file's name with the bytes that are not UTF-8 escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _split_folders(root: Path, notes: list[str]) -> dict[SplitName, Path]:
    """Return the folder of each split; a root without `train/` is itself the training set."""
    found: dict[SplitName | None, list[Path]] = {}
    for folder in _sub_folders(root):
        found.setdefault(SPLIT_FOLDERS.get(folder.name.lower()), []).append(folder)
    if "train" not in found:
        return {"train": root}
    _note_strays(root, root, notes)
    if None in found:
        raise DataError(
            f"{root} has train/ and also {found[None][0].name}/; expected either train/, val/ and test/, or one folder"
            " per class, not both"
        )
    for first, *others in found.values():
        if others:
            raise DataError(f"{root} has {first.name}/ and also {others[0].name}/, two names for one split: merge them")
    return {name: first for name, (first,) in found.items() if name is not None}


def _class_images(folder: Path, root: Path, empty: list[str], notes: list[str]) -> dict[str, list[str]]:
    """Return the paths of the images of every class that has any, by class and path."""
    classes: dict[str, list[str]] = {}
    others = 0
    for class_folder in _sub_folders(folder):
        files = list(files_below(os.path.abspath(class_folder)))  # a prepared copy has the same key from every folder
        images = [path for path in files if path.lower().endswith(SUFFIXES)]
        others += len(files) - len(images)
        if images:
            classes[class_folder.name] = images
        else:
            empty.append(class_folder.name)
    _note_strays(folder, root, notes)
    if empty:
        notes.append(f"no {FORMATS} image in {join(map(repr, empty), most=5)}: left out, as no class")
    if others:
        whose = "its name" if others == 1 else "their names"
        notes.append(f"{plural(others, 'file')} in {readable(folder.name)}/ left out: no {FORMATS} by {whose}")
    return classes


def files_below(folder: Path | str) -> Iterator[str]:
    """Yield the files in a folder and below it, in the order of their names."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_junk(name))
        for name in sorted(files):
            if not _is_junk(name):
                yield os.path.join(parent, name)


def _note_strays(folder: Path, root: Path, notes: list[str]) -> None:
    """Note the files beside the class folders: they have no class."""
    strays = sorted(entry.name for entry in folder.iterdir() if not entry.is_dir() and not _is_junk(entry.name))
    if strays:
        where = folder.name if folder == root else f"{root.name}/{folder.name}"
        notes.append(
            f"{plural(len(strays), 'file')} in {readable(where)}/ beside the class folders left out, such as"
            f" {readable(strays[0])}"
        )
