"""The arguments with which a model was built, those in a configuration object included."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Constructor = tuple[Callable[..., nn.Module], dict[str, Any]]


def constructor_values(constructor: Constructor | None) -> dict[str, Any]:
    """Return name → number, or tuple of numbers, of the arguments, given or by default.

    `config.depth` stands for a field of an object.
    """
    if constructor is None:
        return {}
    build, arguments = constructor
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return {}
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        value = arguments.get(parameter.name, parameter.default)
        fields = {f"{parameter.name}.{field}": item for field, item in _fields(value).items()}
        for name, item in {parameter.name: value, **fields}.items():
            if isinstance(item, int | float):
                values[name] = item
            elif isinstance(item, list | tuple) and item and all(isinstance(number, int | float) for number in item):
                values[name] = tuple(item)
    return values


def with_values(constructor: Constructor, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with some of the values of `constructor_values` replaced."""
    build, arguments = constructor
    for name, value in changes.items():
        arguments = _with_value(build, arguments, name, value)
    return arguments


def _with_value(build: Callable[..., nn.Module], arguments: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    argument, _, field = name.partition(".")
    if not field:
        return arguments | {name: list(value) if isinstance(arguments.get(name), list) else value}
    given = arguments.get(argument, inspect.signature(build).parameters[argument].default)
    changed = copy.deepcopy(given)
    if isinstance(changed, dict):
        changed[field] = value
    else:
        object.__setattr__(changed, field, value)  # also of a frozen dataclass
    return arguments | {argument: changed}


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a configuration: a dict, a dataclass, a namespace; none of anything else."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, type | nn.Module) or callable(value) or not hasattr(value, "__dict__"):
        return {}
    return {key: item for key, item in vars(value).items() if not key.startswith("_")}
