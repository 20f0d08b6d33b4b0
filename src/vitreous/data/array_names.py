"""Which array is which, by the name that people give it: `x_train`, `mnist_test_labels`, `y`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from vitreous.data.splits import SplitName
from vitreous.errors import DataError
from vitreous.reports.formats import join

Role = Literal["images", "labels", "class_names"]
Slot = tuple[Role, SplitName]

#: The names that people give to a role, the preferred one first: scikit-learn's digits have `images` and flat `data`.
ROLE_NAMES: dict[Role, tuple[str, ...]] = {
    "images": ("images", "image", "imgs", "pixels", "x", "data", "inputs"),
    "labels": ("labels", "label", "y", "targets", "target"),
    "class_names": ("class_names", "target_names", "label_names", "classes"),
}
SPLIT_NAMES: dict[str, SplitName] = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
EXPECTED = "images and labels, X and y, or x_train, y_train, x_test and y_test"
_ROLE_OF = {name: role for role, names in ROLE_NAMES.items() for name in names}
_ROLES, _SPLITS = ("|".join(sorted(names, key=len, reverse=True)) for names in (_ROLE_OF, SPLIT_NAMES))
_NAME = re.compile(
    rf"(?:(?P<prefix>.+?)[-_. ])??(?:(?P<before>{_SPLITS})[-_. ]?)?(?P<role>{_ROLES})(?:[-_. ]?(?P<after>{_SPLITS}))?",
    re.IGNORECASE,
)


def parse_name(name: str) -> tuple[str, Role, SplitName | None, int] | None:
    """Return (prefix, role, split, rank among the role's names) of "mnist_train_images", "x_test" or "y"; else None."""
    match = _NAME.fullmatch(name)
    if match is None or (match["before"] and match["after"]):
        return None
    role = _ROLE_OF[match["role"].lower()]
    split = match["before"] or match["after"]
    rank = ROLE_NAMES[role].index(match["role"].lower())
    return match["prefix"] or "", role, SPLIT_NAMES[split.lower()] if split else None, rank


def assign_roles(names: Collection[str]) -> dict[Slot, str]:
    """Return the name of each role's array in each split; names that say nothing are left out."""
    if set(names) == {"arr_0", "arr_1"}:  # numpy.savez(path, X, y)
        return {("images", "train"): "arr_0", ("labels", "train"): "arr_1"}
    parsed = {name: parts for name in names if (parts := parse_name(name))}
    prefixes = sorted({prefix for prefix, role, *_ in parsed.values() if role != "class_names"})
    if len(prefixes) > 1 and prefixes[0]:
        raise DataError(
            f"there are arrays of {join([repr(prefix) for prefix in prefixes], most=6)}; keep one of them, or name one"
            " of its files"
        )
    assigned: dict[Slot, str] = {}
    # those without a split first; of several names for a role, the preferred one
    for name, (prefix, role, split, _) in sorted(parsed.items(), key=lambda entry: (entry[1][2] or "", entry[1][3])):
        if role == "class_names" or prefix == prefixes[0]:
            other = assigned.setdefault((role, split or "train"), name)
            if parsed[other][2] != split:
                raise DataError(f"there are {other!r} and {name!r}, and both may be the training set; keep one")
    _require_pairs(assigned, names)
    return assigned


def _require_pairs(assigned: Mapping[Slot, str], names: Collection[str]) -> None:
    for split in ("train", "val", "test"):
        images, labels = assigned.get(("images", split)), assigned.get(("labels", split))
        if images and labels:
            continue
        if images or labels:
            other = "labels" if images else "images"
            kind = "training" if split == "train" else split
            raise DataError(f"there is {images or labels!r}, but no {other} of the {kind} set; expected {EXPECTED}")
        if split == "train":
            listed = join([repr(name) for name in sorted(names)], most=6)
            raise DataError(f"there are no training images, only {listed or 'nothing'}; expected {EXPECTED}")
