"""The import direction: each unit imports only from its own layer and the layers below (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitreous"

#: The lowest layer first. A name is a module or a folder of src/vitreous.
LAYERS: list[set[str]] = [
    {"errors", "hardware", "downloads", "reports"},
    {"config"},
    {"data", "models"},
    {"runs"},
    {"checkpoints", "evaluation"},
    {"training"},
    {"comparison", "inspection", "doctor", "conformance", "export"},
    {"studies", "serving", "planning", "testing"},
    {"api", "api_run", "estimator", "cli", "__main__", "__init__"},
]

#: These read runs and never import how runs are made.
READ_RUNS_ONLY = {"comparison", "inspection", "doctor", "conformance", "export"}

#: Exceptions: (file, module).
ALLOWED: set[tuple[str, str]] = set()

LAYER_OF = {unit: number for number, layer in enumerate(LAYERS) for unit in layer}
FILES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}


def unit_of(module: str) -> str:
    """vitreous.models.vit → models; vitreous → __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_of(file: str) -> str:
    """models/vit.py → vitreous.models.vit; models/__init__.py → vitreous.models."""
    return ".".join(("vitreous", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def imported_modules(source: str, file: str) -> set[str]:
    """Return every vitreous module that a file imports: at its top, inside a function or for types only."""
    module = module_of(file)
    package = (module if file.endswith("__init__.py") else module.rpartition(".")[0]).split(".")
    tree, found = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from vitreous import runs` names a module, `from vitreous.runs import Run` a name in one
            found |= {f"vitreous.{alias.name}" for alias in node.names} if origin == "vitreous" else {origin}
    if _reads_only_the_version(tree):
        found.discard("vitreous")
    return {name for name in found if name.split(".")[0] == "vitreous"} - {"vitreous.__version__"}


def _reads_only_the_version(tree: ast.Module) -> bool:
    """`import vitreous` reaches every public name; a lower layer may use only its version."""
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitreous"
    }
    return used <= {"__version__"}


@pytest.mark.parametrize("file", FILES)
def test_imports_only_from_layers_below(file: str) -> None:
    unit = unit_of(module_of(file))
    assert unit in LAYER_OF, f"add {unit!r} to LAYERS (and to ARCHITECTURE.md)"
    for imported in imported_modules(FILES[file].read_text(encoding="utf-8"), file):
        target = unit_of(imported)
        assert target in LAYER_OF, f"{file} imports {imported}, which is not in LAYERS"
        if (file, imported) in ALLOWED:
            continue
        assert LAYER_OF[target] <= LAYER_OF[unit], f"{file} may not import {imported}: it is in a higher layer"
        assert not (unit in READ_RUNS_ONLY and target == "training"), f"{file} reads runs; it may not import {imported}"


def test_no_circular_imports() -> None:
    """Units of one layer may use each other, in one direction."""
    edges: dict[str, set[str]] = {}
    for file, path in FILES.items():
        unit = unit_of(module_of(file))
        imported = {unit_of(name) for name in imported_modules(path.read_text(encoding="utf-8"), file)}
        edges.setdefault(unit, set()).update(imported - {unit})
    for start in edges:
        reached, waiting = set(), [*edges[start]]
        while waiting:
            unit = waiting.pop()
            if unit not in reached:
                reached.add(unit)
                waiting += edges.get(unit, set())
        assert start not in reached, f"{start} imports itself through other units"


def test_every_kind_of_import_counts() -> None:
    source = """
import vitreous
from vitreous import runs, __version__
from . import vit
from ..training.loop import fit
def later():
    import vitreous.serving.app
    return vitreous.fit
"""
    found = imported_modules(source, "models/cnn.py")
    assert found == {"vitreous", "vitreous.runs", "vitreous.models", "vitreous.training.loop", "vitreous.serving.app"}
    assert imported_modules("import vitreous\nprint(vitreous.__version__)", "runs.py") == set()
