"""Small sizes for the arguments of a constructor, guessed from their names where they are missing."""

from __future__ import annotations

import inspect
import re
from typing import Any

from vitreous.errors import VitreousError

Shape = tuple[int, ...]
_DEFAULT_SHAPE = (3, 32, 32)
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
    (r"(^|_)im(g|age)?s?_?(size|dim|h$|w$|height|width|res)|^size$|^resolution$|^im(g|age)$|input_?(size|res)|^(height|width)$",
     "image"),
    (r"chan|^in_?c$|^c$|^in_?ch", "channels"),
    (r"class|^out(put)?_?(d|dim|features|size)?$|label|target", "classes"),
    (r"drop|^p$|_p$|rate", "dropout"),
    (r"(dim|size|width|d)_?(per_?)?head$|head_?(dim|size|width)|^d_?(k|h|v)$", "head_dim"),
    (r"head", "heads"),
    (r"ratio|expan|forward_?mul|mul(t|tiplier)?$", "ratio"),
    (r"mlp|feed_?forward|^ff|_ff|ffn|hidden_?(mlp|ff)|intermediate|d_?ff|forward_?(dim|size)", "mlp"),
    (r"depth|layer|block|encoder|stack|^l$|^n$", "depth"),
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
        if self._shape is None or name.startswith("_"):
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
    signature: inspect.Signature, given: dict[str, Any], shape: Shape | None
) -> tuple[dict[str, Any], Shape | None]:
    """Return all arguments without a default, and the shape of an image if the arguments state its size."""
    if shape is not None and len(shape) != 3:
        shape = None
    values = {name: _objects(value) for name, value in given.items()}
    base = shape or _shape_in(signature, values) or _DEFAULT_SHAPE
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in values:
            continue
        if parameter.default is parameter.empty:
            if re.search(r"conf|cfg|args|param|opt|setting|flags", parameter.name.lower()):
                values[parameter.name] = Settings({}, base)
            else:
                values[parameter.name] = guess(parameter.name, base)
        elif shape is not None and kind_of(parameter.name) in ("image", "channels", "shape"):
            values[parameter.name] = guess(parameter.name, base)
    return values, _shape_in(signature, values)


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
    for name, value in everything.items():
        if isinstance(value, int | tuple | list):
            stated.setdefault(kind_of(name), value)
    if isinstance(stated.get("shape"), tuple | list) and len(stated["shape"]) == 3:
        return tuple(stated["shape"])
    size = stated.get("image")
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = stated.get("channels", 3)
    return (channels if isinstance(channels, int) else 3, height, width)
