"""Named tensors as the bytes of a safetensors file: weights and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def read_tensors(data: bytes, file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise RunError(
            f"{str(file)!r} is not a whole safetensors file ({error}); train again, or restore the file"
        ) from None
