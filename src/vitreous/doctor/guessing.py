"""Small sizes for the arguments of a constructor, guessed from their names where they are missing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

from vitreous.doctor.model_io import is_channels_last
from vitreous.errors import VitreousError

Shape = tuple[int, ...]
_DEFAULT_SHAPE = (3, 32, 32)
_CONFIGURATION = r"conf|cfg|args|param|opt|setting|flags|hparams"
_PATCH = 4
_DIM = 48
_HEADS = 4
#: Pattern of a lower-case name → its kind; the first that matches wins.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"batch", "batch"),
    (r"^device$", "device"),
    (r"chw|^(input|image|img|in)_?shape$", "shape"),
    (r"(n|num|number|no)_?(of_?)?(patch|token)|^seq(uence)?_?len|max_?len|patch(es)?_?num|n_?pos", "tokens"),
    (r"patch_?dim|patch(ed)?_?(vec|flat|feat)", "patch_dim"),
    (r"patch|kernel", "patch"),
    (r"(^|_)im(g|age?)?s?_?(size|dim|h$|w$|height|width|res)|^size$|^resolution$|^im(g|age)$|input_?(size|res)|^(height|width)$",
     "image"),
    (r"chan|^in_?c$|^c$|^in_?ch", "channels"),
    (r"class|^out(put)?_?(d|dim|features|size)?$|label|target", "classes"),
    (r"drop|^p$|_p$|rate", "dropout"),
    (r"(dim|size|width|d)_?(per_?)?head$|head_?(dim|size|width)|^d_?(k|h|v)$", "head_dim"),
    (r"head", "heads"),
    (r"ratio|expan|forward_?mul|mul(t|tiplier)?$", "ratio"),
    (r"mlp|feed_?forward|^ff|_ff|ffn|hidden_?(mlp|ff)|intermediate|d_?ff|forward_?(dim|size)", "mlp"),
    (r"depth|layer|block|encoder|stack|(num|n)_?trans|^l$|^n$", "depth"),
    (r"dim|embed|hidden|width|d_?model|latent|emb|^d$|feat|size", "dim"),
    (r"eps", "eps"),
    (r"act", "activation"),
    (r"bias|pool_?cls|cls|use|is_|learn|pretrain", "flag"),
)  # fmt: skip


class Settings(dict[str, Any]):
    """A JSON object, or a configuration that is guessed name by name; readable as attributes and as items."""

    def __init__(self, known: dict[str, Any], shape: Shape | None = None) -> None:
        super().__init__(known)
        self._shape = shape

    def __missing__(self, name: str) -> Any:
        if name.startswith("_") or self._shape is None:  # in this order: a copy has no shape at first
            raise KeyError(name)
        self[name] = guess(name, self._shape)
        return self[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        return dict.get(self, name, default)


def guess(name: str, shape: Shape) -> Any:
    """Return a small value for an argument of this name."""
    channels, height, width = shape
    kind = kind_of(name)
    values = {
        "batch": 4, "device": "cpu", "shape": shape, "tokens": (height // _PATCH) * (width // _PATCH),
        "patch_dim": channels * _PATCH * _PATCH, "patch": _PATCH,
        "image": height if height == width else (height, width),
        "channels": channels, "classes": 10, "dropout": 0.1, "head_dim": _DIM // _HEADS, "heads": _HEADS, "ratio": 2,
        "mlp": 2 * _DIM, "depth": 3, "dim": _DIM, "eps": 1e-6, "activation": "gelu", "flag": True,
    }  # fmt: skip
    if kind not in values:
        raise VitreousError(
            f"no value can be guessed for the argument {name!r}: give it with --args '{{\"{name}\": …}}'"
        )
    return values[kind]


def kind_of(name: str) -> str:
    lower = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")
    return next((kind for pattern, kind in _KINDS if re.search(pattern, lower)), "")


def guess_arguments(
    signature: inspect.Signature, given: dict[str, Any], shape: Shape | None, namespace: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Shape | None]:
    """Return all arguments without a default, and the shape of an image if the arguments state its size.

    `namespace` holds the names of the module, where the class of a configuration may be.
    """
    namespace = namespace or {}
    if shape is not None and len(shape) != 3:
        shape = None
    if shape is not None and is_channels_last((1, *shape)):
        shape = (shape[2], *shape[:2])
    values = {name: _objects(value) for name, value in given.items()}
    base = shape or _shape_in(signature, values) or _DEFAULT_SHAPE
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in values:
            continue
        if parameter.default is parameter.empty:
            if (found := _configuration(parameter, namespace)) is not None:
                values[parameter.name] = found
            elif re.search(_CONFIGURATION, parameter.name.lower()):
                values[parameter.name] = Settings({}, base)
            else:
                values[parameter.name] = guess(parameter.name, base)
        elif shape is not None and kind_of(parameter.name) in ("image", "channels", "shape"):
            values[parameter.name] = guess(parameter.name, base)
    return values, _shape_in(signature, values)


def _configuration(parameter: inspect.Parameter, namespace: Mapping[str, Any]) -> Any:
    """Return a configuration with the author's own values: its class is the annotation, or in the same module."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = namespace.get(annotation)
    plain = (inspect.Parameter.empty, int, float, str, bool, dict, list, tuple, object)
    if inspect.isclass(annotation) and annotation not in plain:
        if issubclass(annotation, nn.Module) or annotation.__module__.partition(".")[0] in ("torch", "typing"):
            return None
        return _instance(annotation)
    if not re.search(_CONFIGURATION, parameter.name.lower()):
        return None
    ready = [value for name, value in namespace.items() if name.lower() == parameter.name.lower()]
    if len(ready) == 1 and isinstance(ready[0], dict | SimpleNamespace) and ready[0]:
        return Settings(ready[0]) if isinstance(ready[0], dict) else ready[0]
    own = [value for name, value in namespace.items() if inspect.isclass(value) and "config" in name.lower()
           and value.__module__ == namespace.get("__name__") and not issubclass(value, nn.Module)]  # fmt: skip
    return _instance(own[0]) if len(own) == 1 else None


def _instance(configuration: type) -> Any:
    try:
        return configuration()
    except Exception:  # fields without a default, or not a configuration
        return None


def _objects(value: Any) -> Any:
    return Settings(value) if isinstance(value, dict) else value


def _shape_in(signature: inspect.Signature, values: dict[str, Any]) -> Shape | None:
    """Return the image's shape as the arguments (or their defaults) state it."""
    stated: dict[str, Any] = {}
    everything = {name: values.get(name, p.default) for name, p in signature.parameters.items()}
    nested = [value for value in everything.values() if isinstance(value, Settings)]
    for settings in nested:
        if settings._shape is not None:
            return settings._shape
        everything |= settings
    for value in values.values():
        if not isinstance(value, Settings) and hasattr(value, "__dict__") and not callable(value):
            everything |= vars(value)
    for name, value in everything.items():
        if isinstance(value, int | tuple | list):
            stated.setdefault(kind_of(name), value)
    if isinstance(stated.get("shape"), tuple | list) and len(stated["shape"]) == 3:
        return tuple(stated["shape"])
    size = stated.get("image")
    if size is None:
        return None
    sides = (size,) if isinstance(size, int) else tuple(size)[-2:]
    if not sides:
        return None
    height, width = sides[0], sides[-1]  # one number: a square
    channels = stated.get("channels", 3)
    return (channels if isinstance(channels, int) else 3, height, width)
