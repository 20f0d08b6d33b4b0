"""Write docs/reference/: the commands, the settings and the Python functions, from the code (`make docs` runs this)."""

from __future__ import annotations

import ast
import inspect
import re
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
        table = ["| setting | values | default | |", "|---|---|---|---|", *rows]
        parts.append("\n".join([title, "", _cell(ast.get_docstring(node) or ""), "", *table]))
    return "\n\n".join(parts) + "\n"


def _setting(field: ast.AnnAssign, lines: list[str], prefix: str) -> str:
    assert isinstance(field.target, ast.Name)
    kind, value = ast.unparse(field.annotation), "" if field.value is None else ast.unparse(field.value)
    text = "\n".join(lines[field.lineno - 1 : field.end_lineno])
    comment = text.rpartition("  # ")[2] if "  # " in text else ""
    above = lines[field.lineno - 2].strip()
    comment = comment or (above.removeprefix("#: ") if above.startswith("#: ") else "")
    if kind.endswith("Config") and value:  # a section of its own
        value = ""
    default = _code(value.strip("'"))
    return f"| `{prefix}{field.target.id}` | {_kind(field.annotation)} | {default} | {_cell(comment)} |"


#: the types of config/fields.py, in words
_KINDS = {
    "Positive": "whole number, 1 or more", "Count": "whole number, 1 to 1000", "Seed": "whole number", "Name": "text",
    "FolderName": "text", "Fraction": "number from 0, below 1", "NonNegative": "number, 0 or more",
    "PixelValue": "0 to 255", "Size": "pixels, or (height, width)", "Tokens": "`all`, `auto` or a number",
    "bool": "`true` or `false`", "float": "number", "int": "whole number", "str": "text", "None": "`none`",
}  # fmt: skip


def _kind(node: ast.expr) -> str:
    """Return a type as a user reads it: choices for a Literal, `none` for None, no bounds of pydantic's."""
    if isinstance(node, ast.BinOp):
        return f"{_kind(node.left)}, or {_kind(node.right)}"
    if isinstance(node, ast.Subscript):
        name, inside = ast.unparse(node.slice), node.slice
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if ast.unparse(node.value) == "Literal":
            return ", ".join(f"`{ast.literal_eval(part)}`" for part in parts)
        if ast.unparse(node.value) == "Annotated":
            return _kind(parts[0])
        if ast.unparse(node.value) == "tuple" and name.endswith("..."):
            return f"list: {_kind(parts[0])}"
        if ast.unparse(node.value) == "tuple":
            return f"{len(parts)} of: {_kind(parts[0])}"
    name = ast.unparse(node)
    if name.endswith("Config"):
        return "the section of that name"
    return _KINDS.get(name, _code(name))


def functions_page() -> str:
    """Return the public names: functions with their signatures, then classes with their methods and properties."""
    parts = ["# Python", "The public names of `vitreous`; [python.md](../python.md) has examples."]
    public = {name: getattr(vitreous, name) for name in vitreous.__all__ if not name.startswith("__")}
    for name, value in sorted(public.items(), key=lambda item: (inspect.isclass(item[1]), item[0].lower())):
        parts.append(f"## `vitreous.{name}`")
        if inspect.isfunction(value):
            parts.append(f"```python\n{_signature(name, value)}\n```")
        parts.append(_cell(inspect.cleandoc(value.__doc__ or "").split("\n\n")[0]))
        if inspect.isclass(value) and not issubclass(value, Exception):
            members = [_member(each, found) for each, found in vars(value).items() if not each.startswith("_")]
            rows = [row for row in members if row]
            parts.append("\n".join(["| | |", "|---|---|", *rows]) if rows else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(name: str, function: Any) -> str:
    """Return a call with one argument per line where they do not fit."""
    signature = inspect.signature(function)
    short = _unquoted(f"{name}{signature}")
    if len(short) <= 100:
        return short
    arguments, starred = list[str](), False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not starred:
            arguments.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        arguments.append(str(each))
    lines = ",\n".join(f"    {each}" for each in arguments)
    return _unquoted(f"{name}(\n{lines},\n) -> {signature.return_annotation}")


def _unquoted(signature: str) -> str:
    """Return a signature whose annotations, which Python keeps as text, have no quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _member(name: str, value: Any) -> str:
    """Return a method or property that has a docstring as a row."""
    function = getattr(value, "func", None) or getattr(value, "fget", None) or getattr(value, "__func__", value)
    doc = getattr(function, "__doc__", None)
    if not doc or not inspect.isfunction(function):
        return ""
    arguments = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
    call = f"({', '.join(arguments)})" if function is value or isinstance(value, classmethod | staticmethod) else ""
    return f"| `.{name}{call}` | {_cell(inspect.cleandoc(doc).split(chr(10) * 2)[0])} |"


def _cell(text: str) -> str:
    """Return text for a table or a paragraph: one line, without what Markdown would take for markup."""
    plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    outside = re.split(r"(`[^`]*`)", plain)  # code, which needs no escapes, is every other part
    outside[::2] = [part.replace("_", "\\_") for part in outside[::2]]
    return "".join(part.replace("&lt;", "<") if part.startswith("`") else part for part in outside)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in (
        ("commands", commands_page()), ("settings", settings_page()), ("python", functions_page()),
    ):  # fmt: skip
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
