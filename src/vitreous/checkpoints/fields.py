"""Every field of a configuration file is used, known to have no effect on inference, or refused by name.

A field that nobody looked at is how a checkpoint becomes silently wrong: the weights load, and another pooling or
another activation is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vitreous.checkpoints.facts import Facts
from vitreous.errors import CheckpointError, quoted

#: Field → (the values that do not change what a plain ViT computes, the feature that any other value means)
Features = Mapping[str, tuple[tuple[Any, ...], str]]


class Fields:
    """The fields of one JSON object of a configuration file."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values, self.where = values, where
        self._known: set[str] = set()

    def take(self, name: str, default: Any = None) -> Any:
        """Return the value of a field that is used."""
        self._known.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def refuse_null(self, names: Collection[str]) -> None:
        """Refuse null where the library expects a value."""
        for name in names:
            if name in self.values and self.values[name] is None:
                raise CheckpointError(f"{self.where}: {name} is null; give it a value, or remove it for the default")

    def section(self, name: str) -> Fields:
        """Return the object in a field, an empty one if it is not there."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.where}: {name} should be an object, not {quoted(value)}; correct the file")
        return Fields(value, f"{name} in {self.where}")

    def facts(self, names: Mapping[str, str], **others: Any) -> Facts:
        """Return the facts in the fields `names` (ours → theirs); `others` were made from some fields."""
        values = {fact: self.take(name) for fact, name in names.items()} | others
        return Facts.stated(self.where, values, names)

    def refuse(self, features: Features) -> None:
        """Refuse the features that our ViT does not have."""
        for name, (neutral, feature) in features.items():
            value = self.take(name)
            if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
                raise CheckpointError(
                    f"{self.where} states {name}={quoted(value)}: {feature}, which vitreous' ViT does not compute"
                )

    def finish(self, harmless: Collection[str]) -> None:
        """Refuse a field that is neither used nor known to have no effect on inference."""
        for name in self.values:
            if name not in self._known and name not in harmless:
                raise CheckpointError(
                    f"{self.where} has the field {quoted(name)}, which vitreous does not know and which may change what"
                    " the model computes: remove it from the file if it does not"
                )


def product(width: Any, ratio: Any) -> Any:
    """Return the width of an MLP, int(width · ratio), or what is not a number, for `facts` to refuse."""
    is_number = isinstance(width, int) and isinstance(ratio, int | float)
    return int(width * ratio) if is_number and 0 < width < 2**20 and 0 < ratio < 2**20 else ratio
