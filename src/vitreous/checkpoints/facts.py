"""Facts about weights that the tensors do not hold, or that must agree with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from vitreous.errors import CheckpointError, quoted

Gelu = Literal["erf", "tanh", "quick"]
Pool = Literal["cls", "mean"]
Stats = tuple[float, ...] | None  # of the input per channel, for pixels in [0, 1]; None: unknown

#: The key in a safetensors header under which we store what the layout has no place for.
METADATA_KEY = "vitreous"


def _as_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _in_order(value: Any) -> Any:
    """{"0": name, "1": name, …}, Hugging Face's id2label, → [name, name, …]."""
    return [value.get(str(i)) for i in range(len(value))] if isinstance(value, dict) else value


_Positive = Annotated[int, Field(strict=True, gt=0, lt=2**20)]
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**20)]
_Size = Annotated[tuple[_Positive, _Positive], BeforeValidator(_as_pair)]
_Numbers = Annotated[tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...], Field(min_length=1)]
_Names = Annotated[tuple[StrictStr, ...], Field(min_length=1), BeforeValidator(_in_order)]


class Facts(BaseModel):
    """What a config.json, a safetensors header, the caller or a layout's defaults state; None: not stated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # what the tensors do not show
    num_heads: _Positive | None = None
    image_size: _Size | None = None
    norm_eps: Annotated[float, Field(strict=True, gt=0, lt=0.1, allow_inf_nan=False)] | None = None
    gelu: Gelu | None = None
    pool: Pool | None = None
    mean: _Numbers | None = None
    std: _Numbers | None = None
    class_names: _Names | None = None
    # what they do: a file that states something else is refused
    channels: _Positive | None = None
    dim: _Positive | None = None
    depth: _Positive | None = None
    mlp_dim: _Positive | None = None
    patch_size: _Size | None = None
    num_classes: _Positive | None = None
    qkv_bias: StrictBool | None = None
    registers: _Count | None = None
    pre_norm: StrictBool | None = None
    norm_after_pool: StrictBool | None = None
    positions: Literal["learned", "none"] | None = None

    @classmethod
    def stated(cls, where: str, values: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Facts:
        """Validate what a file states; `names` are the file's own for its fields. None: not stated."""
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            fact = str(first["loc"][0])
            name = (names or {}).get(fact, fact)
            reason = "vitreous does not know it" if first["type"] == "extra_forbidden" else first["msg"].lower()
            raise CheckpointError(f"{where}: {name}={quoted(values[fact])}: {reason}; correct the file") from None

    @classmethod
    def from_header(cls, metadata: Mapping[str, str]) -> Facts:
        """Read what `to_header` wrote into a safetensors header."""
        where = "the file's header, under 'vitreous'"
        try:
            facts = json.loads(metadata.get(METADATA_KEY, "{}"))
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise CheckpointError(f"{where}, should be a JSON object: save it again")
        return cls.stated(where, facts)

    def to_header(self) -> dict[str, str]:
        return {"format": "pt", METADATA_KEY: self.model_dump_json(exclude_none=True)}

    def over(self, other: Facts) -> Facts:
        """Return these facts, completed by `other`."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


def gelu_named(activation: Any, kinds: Mapping[str, Gelu]) -> Gelu:
    """Return the kind of GELU that a config.json names in its library's words."""
    if not isinstance(activation, str) or activation not in kinds:
        raise CheckpointError(
            f"the activation {quoted(activation)} of the model's config.json is not GELU ({', '.join(kinds)})"
        )
    return kinds[activation]
