"""What a table of images has in common, whatever its format: names of columns, rows, and rows → a listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitreous.data.array_names import SPLIT_NAMES
from vitreous.data.items import Item, Listing
from vitreous.data.splits import SplitName
from vitreous.downloads.files import read_plain
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import join

Column = Literal["path", "label", "split"]

#: The names that people give to a column, the preferred one first; compared in lower case, with _ for - and spaces.
COLUMN_NAMES: dict[Column, tuple[str, ...]] = {
    "path": (
        "path", "file_name", "filename", "file", "filepath", "file_path", "image_path", "img_path", "image_file",
        "image", "img", "images", "image_name", "image_id",
    ),
    "label": (
        "label", "labels", "class", "target", "category", "class_name", "label_name", "y", "targets", "classes",
        "fine_label", "cls",
    ),
    "split": ("split", "set", "subset", "partition", "fold"),
}  # fmt: skip
CLASS_NAME_FILES = ("class_names.txt", "classnames.txt", "classes.txt")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_SPLIT_WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?![a-z])")


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a table; the label is text, and becomes a class index once all rows are known."""

    where: str  # "line 7": for messages
    name: str
    path: str
    label: str
    split: SplitName = "train"
    offset: int = 0
    size: int | None = None


def find_column(names: Iterable[str], column: Column) -> str | None:
    """Return the name of a column among those of a table, or None."""
    by_plain = {re.sub(r"[\s-]+", "_", name.strip().lower()): name for name in names}
    return next((by_plain[known] for known in COLUMN_NAMES[column] if known in by_plain), None)


def require_column(names: Sequence[str], column: Column, source: str) -> str:
    found = find_column(names, column)
    if found is None:
        listed = join([quoted(name) for name in names], most=8)
        columns = f"its columns are {listed}" if len(names) > 1 else f"it has only {listed}"
        kind, content = ("image", "path of each image") if column == "path" else ("label", "class of each image")
        raise DataError(f"{source} has no {kind} column: {columns}; name the one with the {content} {column!r}")
    return found


def to_split(text: str, where: str) -> SplitName:
    split = SPLIT_NAMES.get(text.strip().lower())
    if split is None:
        problem = f"the split {quoted(text)}" if text.strip() else "no split"
        raise DataError(f"{where} has {problem}; expected train, val or test")
    return split


def split_of_file(path: Path) -> SplitName | None:
    """Return the split that a file's name contains, as in train-00000-of-00002.parquet, or its folder's is; or None."""
    words = _SPLIT_WORD.findall(path.stem.lower())
    return SPLIT_NAMES.get(words[0] if words else path.parent.name.lower())


def split_files(files: Sequence[Path], source: str) -> list[tuple[SplitName, Path]]:
    """Return each file with the split in its name; all of them are training images where their names do not differ."""
    splits = [split_of_file(file) for file in files]
    if len(set(splits)) == 1:
        return [("train", file) for file in files]
    if None in splits:
        named = next(file for file, split in zip(files, splits, strict=True) if split)
        raise DataError(
            f"{source}: {named.name} names its split and {files[splits.index(None)].name} does not; expected train, val"
            " or test in each name"
        )
    return [(split, file) for split, file in zip(splits, files, strict=True) if split]


def read_class_names(folder: Path) -> tuple[str, ...] | None:
    """Return the lines of class_names.txt, which names the labels 0, 1, …; None where there is no such file."""
    file = next((folder / name for name in CLASS_NAME_FILES if (folder / name).is_file()), None)
    if file is None:
        return None
    try:
        lines = read_plain(file).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}); expected one class name per line, in UTF-8") from None
    return tuple(line.strip() for line in lines if line.strip())


# --- rows → a listing --------------------------------------------------------------------------------------------


def to_listing(
    source: str, rows: Sequence[Row], notes: Sequence[str] = (), class_names: Sequence[str] | None = None
) -> Listing:
    """Return the listing of a table; labels that are all integers keep their numeric order, or index `class_names`."""
    if not rows:
        raise DataError(f"{source} lists no images")
    if not any(row.split == "train" for row in rows):
        raise DataError(f"{source} has no training images, only {join(sorted({row.split for row in rows}))}; add some")
    unlabelled = [row.where for row in rows if not row.label]
    if unlabelled:
        raise DataError(
            f"{source}: {join(unlabelled, most=5)} {'has' if len(unlabelled) == 1 else 'have'} no label; fill it in, or"
            " leave the image out"
        )
    distinct = {row.label for row in rows}
    if len(rows) >= 20 and 2 * len(distinct) > len(rows):
        raise DataError(
            f"{source} has {len(distinct):,} different labels for {len(rows):,} images, such as"
            f" {quoted(rows[0].label)}: expected a few classes with several images each"
        )
    integers = all(map(_INTEGER.fullmatch, distinct))
    ordered = sorted(distinct, key=int) if integers else sorted(distinct)
    if class_names is not None:
        ordered = _match_class_names(source, ordered, integers, class_names)
        integers = False
    index = {label: number for number, label in enumerate(ordered)}
    names = tuple(ordered) if class_names is None else tuple(class_names)
    items = [Item(row.name, row.path, index[row.label], row.split, row.offset, row.size) for row in rows]
    return Listing(items, names, tuple(dict.fromkeys(notes)))


def _match_class_names(source: str, labels: list[str], integers: bool, class_names: Sequence[str]) -> list[str]:
    """Return the label of each class name: its number, or the name itself."""
    if len(set(class_names)) != len(class_names):
        raise DataError(f"{source}: the list of class names repeats a name; each class needs its own")
    known = [str(number) for number in range(len(class_names))] if integers else list(class_names)
    unknown = [label for label in labels if label not in set(known)]
    if unknown:
        expected = f"0 to {len(class_names) - 1}" if integers else "one of the class names"
        raise DataError(f"{source} has the label {quoted(unknown[0])}; beside its class names, expected {expected}")
    return known
