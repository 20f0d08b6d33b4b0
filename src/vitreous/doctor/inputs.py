"""What goes into a patient and what comes out: shapes, images made up where none are given, answers read off anything.

An input is a batch of images (B, C, H, W), or of patches (B, N, ...): any tensor with the batch in front.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor.findings import NotMeasured

Shape = tuple[int, ...]
OutputKind = Literal["logits", "probabilities", "log-probabilities"]

#: Tried in this order where neither the caller nor the model says what it takes.
COMMON_SHAPES: tuple[Shape, ...] = (
    (1, 28, 28), (3, 32, 32), (3, 28, 28), (1, 32, 32), (16, 7, 7), (16, 49), (49, 4, 4), (49, 16), (3, 64, 64),
    (1, 64, 64), (3, 96, 96), (3, 224, 224), (1, 8, 8), (3, 16, 16), (1, 16, 16), (3, 384, 384), (1, 224, 224),
)  # fmt: skip


def is_image(shape: Shape) -> bool:
    """Whether a single input (without its batch axis) is an image: up to four channels, then height and width."""
    return len(shape) == 3 and shape[0] <= 4


def pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return value[0], value[1]
    return None


def declared_shape(model: nn.Module) -> Shape | None:
    """The image shape a model states about itself: `config` (ours, Hugging Face), timm's and torchvision's fields."""
    config = getattr(model, "config", None)
    channels = getattr(config, "channels", None) or getattr(config, "num_channels", None)
    size = pair(getattr(config, "image_size", None))
    if isinstance(channels, int) and size:
        return channels, *size
    embed = getattr(model, "patch_embed", None)
    size = pair(getattr(embed, "img_size", None)) or pair(getattr(model, "image_size", None))
    first_conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if size and first_conv is not None:
        return first_conv.in_channels, *size
    return None


def candidate_shapes(model: nn.Module) -> Iterator[Shape]:
    """Shapes worth trying, best first; a first convolution settles the number of channels."""
    declared = declared_shape(model)
    if declared is not None:
        yield declared
    first_conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    for shape in COMMON_SHAPES:
        if first_conv is None or (is_image(shape) and shape[0] == first_conv.in_channels):
            yield shape


def made_up(count: int, shape: Shape, generator: torch.Generator) -> Tensor:
    """Normalised inputs with large shapes and fine grain, as pictures have; every one different from the others."""
    grain = torch.randn(count, *shape, generator=generator)
    if is_image(shape):
        height, width = shape[1:]
        coarse = torch.randn(count, shape[0], min(4, height), min(4, width), generator=generator)
        large = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    else:  # patches: a level of its own for each
        large = torch.randn(count, shape[0], *[1] * (len(shape) - 1), generator=generator).expand(-1, *shape)
    return standardised(large + 0.5 * grain)


def standardised(inputs: Tensor) -> Tensor:
    inputs = inputs.float()
    return (inputs - inputs.mean()) / inputs.std().clamp(min=1e-6)


def regions(shape: Shape) -> list[tuple[slice, ...]]:
    """Four parts of an input, as indices into a single one: quadrants of an image, quarters of the patches."""
    if is_image(shape):
        rows, columns = max(shape[1] // 2, 1), max(shape[2] // 2, 1)
        return [
            (slice(None), vertical, horizontal)
            for vertical in (slice(0, rows), slice(rows, None))
            for horizontal in (slice(0, columns), slice(columns, None))
        ]
    parts = min(4, shape[0])
    bounds = [round(i * shape[0] / parts) for i in range(parts + 1)]
    return [(slice(start, stop),) for start, stop in itertools.pairwise(bounds)]


# --- answers -------------------------------------------------------------------------------------------------


def answer_in(output: Any) -> Tensor:
    """The (B, classes) tensor in whatever a model returns: a tensor, an object with `.logits`, a dict, a tuple."""
    if isinstance(output, Tensor):
        return output if output.ndim == 2 else output.flatten(1) if output.ndim > 2 else output[:, None]
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return answer_in(logits)
    values = output.values() if isinstance(output, Mapping) else output
    values = values if isinstance(values, Iterable) else ()
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    for tensor in tensors:
        if tensor.ndim == 2:
            return tensor
    if tensors:
        return answer_in(tensors[0])
    raise NotMeasured(f"no (batch, classes) tensor was found in the model's output, a {type(output).__name__}")


def kind_of(outputs: Tensor) -> OutputKind:
    """What the rows are. Tolerances: float32 rows of a softmax sum to 1 within 1e-5, and no logits do by accident."""
    if outputs.shape[1] < 2:
        return "logits"
    in_unit_range = bool((outputs >= 0).all() and (outputs <= 1 + 1e-5).all())
    if in_unit_range and bool(((outputs.sum(1) - 1).abs() < 1e-3).all()):
        return "probabilities"
    if bool((outputs <= 1e-5).all()) and bool((outputs.logsumexp(1).abs() < 1e-3).all()):
        return "log-probabilities"
    return "logits"


def log_probabilities(outputs: Tensor, kind: OutputKind) -> Tensor:
    if kind == "probabilities":
        return outputs.clamp(min=1e-12).log()
    if outputs.shape[1] == 1:  # one score: two classes
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    return outputs.log_softmax(dim=1)


def moved_probability(first: Tensor, second: Tensor) -> Tensor:
    """Per row, the share of the probability that sits elsewhere in `second`: total variation distance, 0 to 1.

    It does not shrink with the number of classes, as a difference of single probabilities does.
    """
    return (first.exp() - second.exp()).abs().sum(dim=1) / 2


def percent(share: float) -> str:
    if share != 0 and share < 0.001:
        return f"{100 * share:.1g} %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def number(value: float) -> str:
    """A number for a sentence: three digits, no exponent where none is needed."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.3g}"


def listed(names: list[str], most: int = 3) -> str:
    """`a`, `b` and 4 more"""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) <= most:
        return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}" if quoted else ""
    return ", ".join(quoted[:most]) + f" and {len(quoted) - most} more"
