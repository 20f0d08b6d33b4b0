"""The arguments with which a model was built, those in a configuration object included."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Constructor = tuple[Callable[..., nn.Module], dict[str, Any]]


def constructor_arguments(constructor: Constructor | None) -> dict[str, Any]:
    """Return name → value of the arguments, given or by default; `config.depth` stands for a field of an object."""
    if constructor is None:
        return {}
    build, arguments = constructor
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return {}
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            value = arguments.get(parameter.name, parameter.default)
            values |= {parameter.name: value, **_fields(parameter.name, value)}
    return values


def constructor_values(constructor: Constructor | None) -> dict[str, Any]:
    """Return those of the arguments that are a number, or a tuple (or list) of numbers."""
    values: dict[str, Any] = {}
    for name, value in constructor_arguments(constructor).items():
        if isinstance(value, int | float):
            values[name] = value
        elif isinstance(value, list | tuple) and value and all(isinstance(number, int | float) for number in value):
            values[name] = tuple(value)
    return values


def takes_any_keyword(constructor: Constructor | None) -> bool:
    """Whether the constructor has `**kwargs`."""
    try:
        parameters = inspect.signature(constructor[0]).parameters.values() if constructor else []
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def with_values(constructor: Constructor, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with some of those of `constructor_arguments` replaced."""
    build, arguments = constructor
    for name, value in changes.items():
        argument, *fields = name.split(".")
        if not fields:
            arguments = arguments | {name: list(value) if isinstance(arguments.get(name), list) else value}
            continue
        given = arguments.get(argument, inspect.signature(build).parameters[argument].default)
        changed = copy.deepcopy(given)
        _set(changed, fields, value)
        arguments = arguments | {argument: changed}
    return arguments


def _set(settings: Any, fields: list[str], value: Any) -> None:
    for field in fields[:-1]:
        settings = settings[field] if isinstance(settings, dict) else getattr(settings, field)
    if isinstance(settings, dict):
        settings[fields[-1]] = value
    else:
        object.__setattr__(settings, fields[-1], value)  # also of a frozen dataclass


def _fields(name: str, value: Any, depth: int = 3) -> dict[str, Any]:
    """Return the fields of a configuration (a dict, a dataclass, a namespace) and of those in it."""
    if isinstance(value, dict):
        fields = {key: item for key, item in value.items() if isinstance(key, str) and "." not in key}
    elif isinstance(value, type | nn.Module) or callable(value) or not hasattr(value, "__dict__"):
        return {}
    else:
        fields = {key: item for key, item in vars(value).items() if not key.startswith("_")}
    found: dict[str, Any] = {}
    for key, item in fields.items() if depth else ():
        found |= {f"{name}.{key}": item, **_fields(f"{name}.{key}", item, depth - 1)}
    return found
