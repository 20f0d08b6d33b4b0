"""The calls of the constructors of a model's own layers: who gives which arguments to whom."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

#: A class and the name of an argument of its constructor → the value to use instead of the one that is given.
Replacements = Mapping[tuple[type[nn.Module], str], Any]


@dataclass(frozen=True, eq=False)
class ConstructorCall:
    layer_class: type[nn.Module]
    given: frozenset[str]  # the arguments that the caller gives; the others have their defaults
    numbers: Mapping[str, float]  # those given or by default that are a number
    caller: ConstructorCall | None  # the innermost layer whose constructor makes this call

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.layer_class).parameters


def own_classes(model: nn.Module) -> list[type[nn.Module]]:
    """Return the classes of a model's layers that come from no installed library and have a constructor."""
    classes = dict.fromkeys(type(module) for module in model.modules())
    return [one for one in classes if "__init__" in vars(one) and not _is_installed(one)]


def _is_installed(layer: type) -> bool:
    try:
        return layer.__module__.startswith("torch.") or "site-packages" in (inspect.getsourcefile(layer) or "")
    except (TypeError, OSError):  # no file: a class made while the program runs
        return True


@contextmanager
def recorded_calls(
    classes: Sequence[type[nn.Module]], replacements: Replacements | None = None
) -> Iterator[list[ConstructorCall]]:
    """Record the calls of these constructors, and give them other values for some arguments."""
    calls: list[ConstructorCall] = []
    running: list[ConstructorCall] = []
    originals = {one: vars(one)["__init__"] for one in classes}

    def recording(layer_class: type[nn.Module], original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)
        names = {name for one, name in replacements or {} if one is layer_class}

        @functools.wraps(original)
        def init(self: nn.Module, *arguments: Any, **keywords: Any) -> None:
            own = next(one for one in type(self).__mro__ if "__init__" in vars(one))
            try:
                bound = signature.bind(self, *arguments, **keywords)
            except TypeError:
                bound = None
            if own is not layer_class or bound is None:  # called by a subclass; or in a way that raises below
                return original(self, *arguments, **keywords)
            given = frozenset(bound.arguments)
            for name in names:
                bound.arguments[name] = (replacements or {})[layer_class, name]
            bound.apply_defaults()
            values = {key: value for key, value in bound.arguments.items() if type(value) in (int, float)}
            call = ConstructorCall(type(self), given, values, running[-1] if running else None)
            calls.append(call)
            running.append(call)
            try:
                original(*bound.args, **bound.kwargs)
            finally:
                running.pop()

        return init

    try:
        for one, original in originals.items():
            one.__init__ = recording(one, original)  # type: ignore[method-assign]
        yield calls
    finally:
        for one, original in originals.items():
            one.__init__ = original  # type: ignore[method-assign]
