"""Write docs/reference/: the commands, the settings and the Python functions, from the code (`make docs` runs this)."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import vitreous
from vitreous.cli import app
from vitreous.config import schema

FOLDER = Path(__file__).parent / "reference"


def commands(group: Any = None, prefix: str = "vitreous") -> Iterator[tuple[str, Any]]:
    """Yield every command of the command line with its whole name."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        whole = f"{prefix} {name}"
        yield from commands(command, whole) if hasattr(command, "commands") else [(whole, command)]


def commands_page() -> str:
    parts = ["# Commands", "Printed from the program: `vitreous COMMAND --help` shows the same."]
    for name, command in sorted(commands()):
        rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
        table = ["| argument or option | what it is | default |", "|---|---|---|", *rows] if rows else []
        parts.append("\n".join([f"## `{name}`", "", _cell(command.help or ""), "", *table]))
    return "\n\n".join(parts) + "\n"


def _parameter(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    default = parameter.default
    shown = "" if default is None or default is False or callable(default) or default == [] else f"`{default}`"
    return f"| {names} | {_cell(parameter.help or '')} | {shown} |"


def settings_page() -> str:
    """Return every setting with its type, its default and the comment beside it in the schema."""
    source = Path(schema.__file__).read_text(encoding="utf-8")
    lines, parts = source.splitlines(), ["# Settings", "`--set SECTION.FIELD=VALUE`, or a TOML file with these tables."]
    sections = {"Config": "", "DataConfig": "data.", "AugmentConfig": "data.augment.", "TrainConfig": "train.",
                "StartConfig": "start."}  # fmt: skip
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or not node.name.endswith("Config"):
            continue
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        rows = [_setting(one, lines, sections.get(node.name, "model.")) for one in fields]
        heading = sections.get(node.name, "model.").rstrip(".") or "the whole"
        title = f"## {heading}" + (f" ({node.name.removesuffix('Config')})" if heading == "model" else "")
        table = ["| setting | type | default | |", "|---|---|---|---|", *rows]
        parts.append("\n".join([title, "", _cell(ast.get_docstring(node) or ""), "", *table]))
    return "\n\n".join(parts) + "\n"


def _setting(field: ast.AnnAssign, lines: list[str], prefix: str) -> str:
    assert isinstance(field.target, ast.Name)
    kind, value = ast.unparse(field.annotation), "" if field.value is None else ast.unparse(field.value)
    text = "\n".join(lines[field.lineno - 1 : field.end_lineno])
    comment = text.rpartition("  # ")[2] if "  # " in text else ""
    above = lines[field.lineno - 2].strip()
    comment = comment or (above.removeprefix("#: ") if above.startswith("#: ") else "")
    return f"| `{prefix}{field.target.id}` | {_code(kind)} | {_code(value)} | {_cell(comment)} |"


def functions_page() -> str:
    parts = ["# Python", "The public names of `vitreous`; [python.md](../python.md) has examples."]
    for name in sorted(vitreous.__all__):
        value = getattr(vitreous, name)
        doc = inspect.cleandoc(value.__doc__ or "") if callable(value) else ""
        parts.append(f"## `vitreous.{name}`")
        if inspect.isfunction(value):
            parts.append(f"```python\n{name}{inspect.signature(value)}\n```")
        if doc and not isinstance(value, str):
            parts.append(_cell(doc.split("\n\n")[0]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Return text for a table or a paragraph: one line, without what Markdown would take for markup."""
    plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<!`)\b(\w+)_(\w*)(?!`)", lambda found: found[0].replace("_", "\\_"), plain)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in (
        ("commands", commands_page()), ("settings", settings_page()), ("python", functions_page()),
    ):  # fmt: skip
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"wrote {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()
