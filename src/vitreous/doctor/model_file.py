"""A model from a Python file that is not installed: `path/to/model.py:ViT`, sizes guessed from the signature.

Only definitions are executed (imports, classes, functions, plain assignments), so a file that trains when it is run
does not train here. Modules that are not installed are replaced by placeholders, which fail only where they are used.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from vitreous.doctor.findings import MissingModule
from vitreous.doctor.guessing import Settings, Shape, guess_arguments
from vitreous.doctor.model_io import is_image
from vitreous.errors import VitreousError
from vitreous.reports.formats import join

LOADING_SECONDS = 60.0  # of wall time, for importing the file and for building the model

#: Functions that may be called in a module-level assignment.
_HARMLESS = frozenset(["torch", "np", "numpy", "math", "os", "int", "float", "str", "bool", "tuple", "list", "dict",
    "set", "range", "len", "partial", "functools", "namedtuple", "collections", "TypeVar", "typing", "logging",
    "getLogger", "Path", "pathlib", "isinstance", "argparse", "ArgumentParser"])  # fmt: skip
#: Calls that are executed on their own.
_ON_SEARCH_PATH = frozenset(["sys.path.append", "sys.path.extend", "sys.path.insert"])


def load_from_file(path: Path, name: str) -> Callable[..., nn.Module]:
    """Return the class or function `name` of a Python file."""
    if not path.is_file():
        raise VitreousError(f"There is no file {path}; expected path/to/model.py:ClassName")
    module = _import(path)
    if not name:
        classes = [key for key, value in vars(module).items() if _is_own_module_class(value, module)]
        whole = [key for key in classes if key not in _parts(path)] if len(classes) > 1 else classes
        if len(whole) != 1:
            raise VitreousError(f"{path}: name the model after a colon; it defines {join(classes, most=12) or 'none'}")
        name = whole[0]
    if not hasattr(module, name):
        names = sorted(
            key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        )
        raise VitreousError(f"{path} defines no {name!r}; it defines {join(names, most=12) or 'nothing'}")
    found = getattr(module, name)
    if not callable(found) or isinstance(found, nn.Module):
        raise VitreousError(f"{path}:{name} is neither a class nor a function")
    return found


def build(
    target: str, found: Callable[..., nn.Module], given: dict[str, Any], input_shape: tuple[int, ...] | None
) -> tuple[nn.Module, dict[str, Any]]:
    """Call it with the given arguments and guesses for the others; return the model and arguments of `diagnose`."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        raise VitreousError(f"{target} cannot be called with arguments") from None
    unknown = [name for name in given if name not in signature.parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise VitreousError(f"{target} has no argument {unknown[0]!r}; it has {join(signature.parameters, most=20)}")
    namespace = vars(sys.modules[found.__module__]) if getattr(found, "__module__", "") in sys.modules else {}
    arguments, shape = guess_arguments(signature, given, input_shape, namespace)
    try:
        with time_limit(f"building {target}"), searching(found):
            model = found(**arguments)
    except MissingModule as error:
        raise VitreousError(f"{target} cannot be built: {error}") from None
    except TookTooLong:
        raise
    except Exception as error:
        shown = {key: value for key, value in arguments.items() if not isinstance(value, Settings)}
        raise VitreousError(
            f"{target} could not be built with {shown}: {type(error).__name__}: {error}; give the right values with"
            " --args '{\"depth\": 3}'"
        ) from error
    if not isinstance(model, nn.Module):
        raise VitreousError(f"{target} returned a {type(model).__name__}, not an nn.Module")
    return model, {"constructor": (found, arguments), "input_shape": input_shape or _accepted(model, shape)}


def _accepted(model: nn.Module, shape: Shape | None) -> Shape | None:
    """Return the guessed shape, or the one with another number of channels if the model takes only that."""
    if shape is None or not is_image(shape):
        return shape
    for channels in (shape[0], 1, 3):
        with contextlib.suppress(Exception), torch.no_grad():
            copy.deepcopy(model).eval()(torch.zeros(2, channels, *shape[1:]))
            return (channels, *shape[1:])
    return shape  # the diagnosis says why it is not accepted


def _parts(path: Path) -> set[str]:
    """Return the names that classes of this file mention: a block, a patch embedding, a class to inherit from."""
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        name.id for node in classes for name in ast.walk(node) if isinstance(name, ast.Name) and name.id != node.name
    }


def _is_own_module_class(value: Any, module: ModuleType) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == module.__name__


class TookTooLong(VitreousError):
    """Code of the model's file ran for longer than `LOADING_SECONDS`."""


@contextlib.contextmanager
def time_limit(what: str) -> Iterator[None]:
    """Stop after `LOADING_SECONDS`, where the system has alarms (not in threads, not on Windows)."""

    def stop(*_: Any) -> None:
        raise TookTooLong(
            f"{what} took more than {LOADING_SECONDS:.0f} s: does it train, download or wait? Give the doctor a file"
            " (or a function) that only defines and builds the model"
        )

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LOADING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


# --- import --------------------------------------------------------------------------------------------------


def _import(path: Path) -> ModuleType:
    path = path.resolve()
    folder, name = path.parent, path.stem
    error: Exception | None = None
    for _ in range(4):  # from its own folder, or as part of a package around it
        _forget()
        # a repository's files are often run from its root
        roots = [folder, *list(folder.parents)[:5], Path.cwd()]
        _finders[:] = [_DefinitionsFinder(roots), _PlaceholderFinder()]
        try:
            with _on_meta_path(), time_limit(f"importing {path}"):
                return importlib.import_module(name)
        except ImportError as failed:
            error = failed  # of the last try: the ones before could not know the package
            if not any(reason in str(failed) for reason in ("relative import", "is not a package")):
                break
        except VitreousError:
            raise
        except Exception as failed:
            raise VitreousError(f"{path}: importing it failed: {type(failed).__name__}: {failed}") from failed
        folder, name = folder.parent, f"{folder.name}.{name}"
    raise VitreousError(f"{path}: importing it failed: {error}") from error


_from_files: set[str] = set()  # the modules that were imported from files that are not installed
_finders: list[importlib.abc.MetaPathFinder] = []  # of the last file: its definitions, then placeholders


def _forget() -> None:
    """Remove the modules of files examined before: every second one is called `model` or `utils`."""
    for name in [*_from_files, *(name for name, module in sys.modules.items() if type(module) is _PlaceholderModule)]:
        sys.modules.pop(name, None)
    _from_files.clear()


@contextlib.contextmanager
def searching(found: Callable[..., nn.Module]) -> Iterator[None]:
    """Find the modules that code of the last file imports while it runs: in a constructor, or in forward."""
    with _on_meta_path() if getattr(found, "__module__", None) in _from_files else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _on_meta_path() -> Iterator[None]:
    """Execute only definitions of what is not installed, and replace what is missing."""
    definitions, placeholders = _finders
    if definitions in sys.meta_path:
        yield
        return
    sys.meta_path.insert(0, definitions)
    sys.meta_path.append(placeholders)
    try:
        yield
    finally:
        sys.meta_path.remove(definitions)
        sys.meta_path.remove(placeholders)


class _DefinitionsFinder(importlib.abc.MetaPathFinder):
    """Finds modules in the file's own folder, those above it, the current one, and where it looks itself."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        first = fullname.partition(".")[0]
        if first in sys.stdlib_module_names or (path is not None and first not in _from_files):
            return None
        if path is None and _is_installed(first) and not (self.roots[0] / f"{first}.py").is_file():
            return None
        spec = self._find(fullname, path)
        if spec is not None:
            _from_files.add(fullname)
        return spec

    def _find(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        for root in self.roots if path is None else [Path(entry) for entry in path]:
            base = root / fullname.rpartition(".")[2]
            for file, package in ((base.with_suffix(".py"), False), (base / "__init__.py", True)):
                if file.is_file():
                    loader = _DefinitionsLoader(fullname, str(file), self.roots)
                    return _spec(fullname, loader, file.parent if package else None, str(file))
            if base.is_dir() and any(base.rglob("*.py")):
                return _spec(fullname, None, base, None)
        return None


def _is_installed(name: str) -> bool:
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # any folder is a namespace package: `src` of the current one


def _spec(name: str, loader: Any, folder: Path | None, file: str | None) -> importlib.machinery.ModuleSpec:
    spec = importlib.machinery.ModuleSpec(name, loader, origin=file, is_package=folder is not None)
    if folder is not None:
        spec.submodule_search_locations = [str(folder)]
    return spec


class _DefinitionsLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, roots: list[Path]) -> None:
        super().__init__(fullname, path)
        self.roots = roots

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.path
        source = Path(self.path).read_text(encoding="utf-8", errors="replace")
        search_path = list(sys.path)
        for statement in _definitions(ast.parse(source, self.path).body):
            code = compile(ast.Module([statement], []), self.path, "exec")
            try:
                exec(code, vars(module))
            except ImportError as error:
                if not _lacks_a_name(statement, error):
                    raise
                assert isinstance(statement, ast.ImportFrom)
                vars(module).update(_names_there_are(statement))
            except VitreousError:
                raise
            except Exception as error:
                if isinstance(statement, ast.Import | ast.ImportFrom):  # installed, and broken on this machine
                    vars(module).update(_unimportable(statement, error))
                elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
                    raise  # an assignment that fails (data that are not here) may not be needed
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                # what the file adds is searched for definitions; other imports do not search there
                self.roots[1:1] = [Path(entry) for entry in sys.path if entry not in search_path]
                sys.path[:] = search_path


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            if all(_root(call) in _HARMLESS for call in _calls(statement)):
                yield statement
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            calls = list(_calls(statement))
            if ast.unparse(calls[0]) in _ON_SEARCH_PATH and all(_root(call) in _HARMLESS for call in calls[1:]):
                yield statement
        elif isinstance(statement, ast.Try):
            for part in (statement.body, *(handler.body for handler in statement.handlers)):
                part[:] = list(_definitions(part)) or [ast.Pass(lineno=1, col_offset=0)]
            for handler in statement.handlers:  # an installed package may fail otherwise: torchvision of another torch
                if handler.type is not None and ast.unparse(handler.type) in ("ImportError", "ModuleNotFoundError"):
                    handler.type = ast.Name("Exception", ast.Load(), lineno=1, col_offset=0)
            statement.orelse, statement.finalbody = list(_definitions(statement.orelse)), []
            if statement.handlers:
                yield statement
        elif isinstance(statement, ast.If) and "__name__" not in ast.dump(statement.test):
            statement.body = list(_definitions(statement.body)) or [ast.Pass(lineno=1, col_offset=0)]
            statement.orelse = list(_definitions(statement.orelse))
            yield statement


def _calls(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the functions that executing this calls; those in a lambda are called later."""
    if isinstance(node, ast.Call):
        yield node.func
    if not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _calls(child)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# --- placeholders --------------------------------------------------------------------------------------------


class _PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides an empty module for every name that is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and not isinstance(parent, _PlaceholderModule):
            return None  # a missing part of something installed is an error
        if not _importer().startswith(tuple(_from_files)):
            return None  # installed packages try optional ones, and must not find them
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


def _importer() -> str:
    """Return the name of the module whose import statement is being executed."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_globals["__name__"] == __name__ or "importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals["__name__"])


class _PlaceholderModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(self.__name__, name)


def _unimportable(statement: ast.Import | ast.ImportFrom, error: Exception) -> dict[str, Any]:
    """Return placeholders for the names that this statement was to import."""
    found: dict[str, Any] = {}
    for alias in statement.names:
        module = statement.module or "" if isinstance(statement, ast.ImportFrom) else alias.name
        why = f"importing {module!r} fails here: {type(error).__name__}: {error}"
        found[alias.asname or alias.name.partition(".")[0]] = _placeholder(module, alias.name, why)
    return found


def _lacks_a_name(statement: ast.stmt, error: ImportError) -> bool:
    """Whether an installed package does not have a name that this imports: its newer versions have renamed it."""
    if not isinstance(statement, ast.ImportFrom) or statement.level or type(error) is not ImportError:
        return False
    return (statement.module or "").partition(".")[0] not in _from_files


def _names_there_are(statement: ast.ImportFrom) -> dict[str, Any]:
    """Return what this imports, with placeholders for the names that do not exist."""
    found: dict[str, Any] = {}
    for alias in statement.names:
        one = ast.ImportFrom(statement.module, [alias], 0, lineno=1, col_offset=0)
        try:
            exec(compile(ast.Module([one], []), "<import>", "exec"), found)
        except ImportError as error:
            found |= _unimportable(one, error)
    return found


def _placeholder(module: str, name: str, why: str = "") -> type:
    """Return a class that can be inherited from, and fails when it is called."""
    missing = module.partition(".")[0]
    why = why or f"the module {missing!r} is missing: pip install {missing}"

    class Meta(type):
        def __getattr__(cls, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return _placeholder(module, attribute, why)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls.__name__ == name:
                raise MissingModule(why)
            return super().__call__(*args, **kwargs)

    return Meta(name, (nn.Module,) if name.endswith("Module") else (), {})
