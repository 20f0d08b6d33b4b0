"""Facts about weights that the tensors do not hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, ValidationError

from vitreous.errors import CheckpointError

Gelu = Literal["erf", "tanh"]
Stats = tuple[float, ...] | None  # of the input per channel, for pixels in [0, 1]; None: unknown

#: The key in a safetensors header under which we store what the layout has no place for.
METADATA_KEY = "vitreous"


def _as_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _in_order(value: Any) -> Any:
    """{"0": name, "1": name, …}, Hugging Face's id2label, → [name, name, …]."""
    return [value.get(str(i)) for i in range(len(value))] if isinstance(value, dict) else value


_Positive = Annotated[int, Field(strict=True, gt=0, lt=2**20)]
_Size = Annotated[tuple[_Positive, _Positive], BeforeValidator(_as_pair)]
_Numbers = Annotated[tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...], Field(min_length=1)]
_Names = Annotated[tuple[StrictStr, ...], Field(min_length=1), BeforeValidator(_in_order)]


class Facts(BaseModel):
    """What a config.json, a safetensors header, the caller or a layout's defaults state; None: not stated."""

    model_config = ConfigDict(frozen=True)

    num_heads: _Positive | None = None
    image_size: _Size | None = None
    channels: _Positive | None = None
    norm_eps: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    gelu: Gelu | None = None
    mean: _Numbers | None = None
    std: _Numbers | None = None
    class_names: _Names | None = None

    @classmethod
    def from_untrusted(cls, /, **values: Any) -> Facts:
        """Take the valid values and ignore the others: a downloaded file may state anything."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            invalid = {detail["loc"][0] for detail in error.errors()}
            return cls.model_validate({name: value for name, value in values.items() if name not in invalid})

    @classmethod
    def from_header(cls, metadata: Mapping[str, str]) -> Facts:
        """Read what `to_header` wrote into a safetensors header."""
        try:
            facts = json.loads(metadata.get(METADATA_KEY, "{}"))
        except (ValueError, RecursionError):
            return cls()
        return cls.from_untrusted(**facts) if isinstance(facts, dict) else cls()

    def to_header(self) -> dict[str, str]:
        return {"format": "pt", METADATA_KEY: self.model_dump_json()}

    def over(self, other: Facts) -> Facts:
        """Return these facts, completed by `other`."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


def gelu_named(activation: Any, kinds: Mapping[str, Gelu]) -> Gelu:
    """Return the kind of GELU that a config.json names in its library's words."""
    if not isinstance(activation, str) or activation not in kinds:
        raise CheckpointError(f"the activation {activation!r} of the model's config.json is not GELU")
    return kinds[activation]
