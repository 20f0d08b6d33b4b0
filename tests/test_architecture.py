"""ARCHITECTURE.md stays true: it names every unit and every command, and everything it names exists."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from vitreous.cli import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
UNITS = {path.stem for path in (ROOT / "src" / "vitreous").iterdir() if path.suffix in ("", ".py")} - {"__pycache__"}


def commands(group: Any, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from commands(command, f"{name} ") if hasattr(command, "commands") else [prefix + name]


def exists(dotted_name: str) -> bool:
    """Return whether a module, or an attribute of one, has that name."""
    parts = dotted_name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("unit", sorted(UNITS))
def test_every_unit_is_named(unit: str) -> None:
    assert f"`{unit}`" in TEXT


@pytest.mark.parametrize("command", sorted(commands(typer.main.get_command(app))))
def test_every_command_has_a_row(command: str) -> None:
    (module,) = re.findall(rf"^\| `{command}` \| `(\w+\.py)` \|", TEXT, flags=re.MULTILINE)
    function = command.split()[-1].replace("list", "list_datasets")
    assert f"def {function}(" in (ROOT / "src" / "vitreous" / "cli" / module).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(vitreous\.[\w.]+)`", TEXT))))
def test_every_name_exists(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests|docs|bench)/[\w./]*)`", TEXT))))
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_missing_names_are_noticed() -> None:
    assert not exists("vitreous.runs.Walk")
    assert not exists("vitreous.nowhere.Run")
