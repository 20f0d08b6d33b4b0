"""Input shapes, synthetic inputs, and logits extracted from whatever a model returns.

An input is a batch of images (B, C, H, W), or of patches (B, N, ...): any tensor with the batch in front.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.doctor.findings import NotMeasured

Shape = tuple[int, ...]
OutputKind = Literal["logits", "probabilities", "log-probabilities"]

#: Tried in this order where neither the caller nor the model states its input shape.
COMMON_SHAPES: tuple[Shape, ...] = (
    (1, 28, 28), (3, 32, 32), (3, 28, 28), (1, 32, 32), (16, 7, 7), (16, 49), (49, 4, 4), (49, 16), (3, 64, 64),
    (1, 64, 64), (3, 96, 96), (3, 224, 224), (1, 8, 8), (3, 16, 16), (1, 16, 16), (3, 384, 384), (1, 224, 224),
)  # fmt: skip


def is_image(shape: Shape) -> bool:
    """Whether a single input (without its batch axis) is an image: up to four channels, then height and width."""
    return len(shape) == 3 and shape[0] <= 4


def is_channels_last(shape: Shape) -> bool:
    """Whether a batch is (B, H, W, C), as image files and NumPy have it."""
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] > 4 and shape[2] > 4


def candidate_shapes(model: nn.Module) -> Iterator[Shape]:
    """Yield input shapes to try: the one the model declares, then the common ones that fit its first convolution."""
    convolution = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    config = getattr(model, "config", None)  # ours, Hugging Face's
    channels = getattr(config, "channels", None) or getattr(config, "num_channels", None)
    size = _pair(getattr(config, "image_size", None))
    if not (isinstance(channels, int) and size) and convolution is not None:  # timm's field, torchvision's
        channels = convolution.in_channels
        patch_embed = getattr(model, "patch_embed", None)
        size = _pair(getattr(patch_embed, "img_size", None)) or _pair(getattr(model, "image_size", None))
    if isinstance(channels, int) and size:
        yield channels, *size
    for shape in COMMON_SHAPES:
        if convolution is None or (is_image(shape) and shape[0] == convolution.in_channels):
            yield shape


def _pair(value: Any) -> tuple[int, int] | None:
    pair = (value, value) if isinstance(value, int) else value
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(side, int) for side in pair):
        return pair[0], pair[1]
    return None


def synthetic_inputs(count: int, shape: Shape, generator: torch.Generator) -> Tensor:
    """Return normalised inputs with coarse and fine structure, as pictures have, each different from the others."""
    fine = torch.randn(count, *shape, generator=generator)
    if is_image(shape):
        height, width = shape[1:]
        coarse = torch.randn(count, shape[0], min(4, height), min(4, width), generator=generator)
        coarse = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    else:  # patches: one level per patch
        coarse = torch.randn(count, shape[0], *[1] * (len(shape) - 1), generator=generator).expand(-1, *shape)
    return standardised(coarse + 0.5 * fine)


def standardised(inputs: Tensor) -> Tensor:
    inputs = inputs.float()
    return (inputs - inputs.mean()) / inputs.std().clamp(min=1e-6)


def regions(shape: Shape) -> list[tuple[slice, ...]]:
    """Return four parts of an input as indices into it: quadrants of an image, quarters of the patches."""
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


def finer_regions(shape: Shape) -> Iterator[list[tuple[slice, ...]]]:
    """Yield the same four parts with the first of them ever smaller; one of these parts the tokens of a window."""
    axes = (1, 2) if is_image(shape) else (0,)
    while max(shape[axis] for axis in axes) > 3:
        shape = tuple(-(-size // 2) if axis in axes else size for axis, size in enumerate(shape))
        yield regions(shape)


# --- outputs -------------------------------------------------------------------------------------------------


def logits_in(output: Any) -> Tensor:
    """Return the (B, classes) tensor in a tensor, an object with `.logits`, a dict or a tuple.

    A tensor of another shape is flattened; `checks.outputs.not_a_classifier` reports it.
    """
    if isinstance(output, Tensor):
        return output if output.ndim == 2 else output.flatten(1) if output.ndim > 2 else output.reshape(-1, 1)
    if isinstance(output, Mapping):  # "logits", or a name such as "head_logits" beside features
        logits = next((value for key, value in output.items() if "logit" in str(key).lower()), None)
    else:
        logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits_in(logits)
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, Iterable) else ()
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    if not tensors:
        raise NotMeasured(f"no (batch, classes) tensor was found in the model's output, a {type(output).__name__}")
    return logits_in(next((tensor for tensor in tensors if tensor.ndim == 2), tensors[0]))


def kind_of(outputs: Tensor) -> OutputKind:
    """Classify output rows. Float32 softmax rows sum to 1 within 1e-5; logits do not by accident."""
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


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return the total variation distance per row: the share of the probability that moves, 0 to 1.

    It does not shrink with the number of classes, as a difference of single probabilities does.
    """
    return (first.exp() - second.exp()).abs().sum(dim=1) / 2


def max_moved(first: Tensor, second: Tensor) -> float:
    """Return the largest share of the probability that moves in any row."""
    return float(total_variation(first, second).max())
