"""The arguments with which a model was built, those in a configuration object included."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

Constructor = tuple[Callable[..., nn.Module], dict[str, Any]]


def constructor_values(constructor: Constructor | None) -> dict[str, Any]:
    """Return name → number of the arguments, given or by default; `config.depth` for a field of an object."""
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
        if isinstance(value, int | float):
            values[parameter.name] = value
        else:
            fields = _fields(value)
            values |= {f"{parameter.name}.{k}": v for k, v in fields.items() if isinstance(v, int | float)}
    return values


def with_value(constructor: Constructor, name: str, value: Any) -> dict[str, Any]:
    """Return the arguments with one of the values of `constructor_values` replaced."""
    build, arguments = constructor
    argument, _, field = name.partition(".")
    if not field:
        return arguments | {name: value}
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
