"""POST /v1/look: what one image does inside a model, as arrays.

Shapes: L layers, H heads, P patches, N tokens (the class token first, if the model has one).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import safetensors.numpy

from vitreous.config import ViTConfig
from vitreous.serving.contract import WANTS, LookRequest
from vitreous.serving.limits import Limits
from vitreous.serving.models import ServedModel, input_shape
from vitreous.serving.responses import Problem

_KEYS = {"qkv": ("queries", "keys", "values")}  # in the response; other wants are their own key
LARGE = ("attention", "queries", "keys", "values")  # thousands of numbers each
_DIGITS = 5  # significant digits of those
ATTENTION_STEPS = 1024
_LARGEST_HALF = float(np.finfo(np.float16).max)
_COMPUTED = ("rollout", "patch_removal", "relevance")  # here; the other arrays are outputs of the ONNX graph
_REMOVAL_BATCH = 64


@dataclass(frozen=True)
class LookInputs:
    """A request checked against the model it is for."""

    pixels: np.ndarray  # uint8 (C, height, width)
    head_mask: np.ndarray | None  # float32 (L, H)
    token_mask: np.ndarray | None  # float32 (1, P)
    relevance_class: int | None
    want: frozenset[str]

    @property
    def masks(self) -> dict[str, np.ndarray]:
        named = {"head_mask": self.head_mask, "token_mask": self.token_mask}
        return {name: mask for name, mask in named.items() if mask is not None}


def check_request(request: LookRequest, model: ServedModel, limits: Limits) -> LookInputs:
    pixels, want = _pixels(request.pixels, model), frozenset[str](request.want)
    num_classes, index, config = len(model.run.class_names), request.relevance_class, model.vit
    if index is not None and not 0 <= index < num_classes:
        raise Problem(422, f"`relevance_class` must be null or from 0 to {num_classes - 1}")
    if config is None:
        return LookInputs(pixels, head_mask=None, token_mask=None, relevance_class=index, want=want)
    _check_size(config, want, limits)
    head_mask = _mask(request.head_mask, (config.depth, config.num_heads), "head_mask", "layers × heads")
    token_mask = _mask(request.token_mask, (config.num_patches,), "token_mask", "one per patch")
    if token_mask is not None and not config.has_class_token and not token_mask.any():
        raise Problem(422, "`token_mask` must keep at least one patch: this model has no class token")
    return LookInputs(pixels, head_mask, None if token_mask is None else token_mask[None], index, want)


def _pixels(encoded: str, model: ServedModel) -> np.ndarray:
    shape = input_shape(model.run)
    expected = f"`pixels` must be base64 of {np.prod(shape)} bytes: channels × rows × columns {shape}"
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise Problem(422, expected) from None
    if len(raw) != np.prod(shape):
        raise Problem(422, f"{expected}, not {len(raw)}")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _mask(values: list[Any] | None, shape: tuple[int, ...], name: str, meaning: str) -> np.ndarray | None:
    if values is None:
        return None
    try:
        mask = np.array(values, np.float64)
    except ValueError:  # rows of unequal length
        mask = np.empty(0)
    if mask.shape != shape or not np.isin(mask, (0, 1)).all():
        raise Problem(422, f"`{name}` must be null or 0s and 1s of shape {list(shape)}: {meaning}")
    return mask.astype(np.float32)


def _check_size(config: ViTConfig, want: frozenset[str], limits: Limits) -> None:
    heads, tokens = config.depth * config.num_heads, config.num_tokens
    numbers = heads * tokens * tokens * ("attention" in want) + 3 * heads * tokens * config.head_dim * ("qkv" in want)
    if numbers > limits.look_numbers:
        raise Problem(
            422, f"the response would have {numbers} numbers; want less: at most {limits.look_numbers} are sent"
        )


def look(model: ServedModel, inputs: LookInputs, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return what was wanted by name; None where the model has no such thing.

    `check` is called between long steps and may raise an exception to stop.
    """
    pixels = inputs.pixels[None].astype(np.float32) / np.float32(255)
    keys = [key for want in WANTS if want in inputs.want for key in _KEYS.get(want, (want,))]
    config = model.vit
    if config is None:
        known = [key for key in keys if key == "probabilities" or (key == "novelty" and model.engine.has_novelty)]
        values = model.engine.session.run(known, {"pixels": pixels}) if known else []
        return dict.fromkeys(keys) | {key: value[0] for key, value in zip(known, values, strict=True)}
    missing = [key for key in keys if key == "novelty" and not model.engine.has_novelty]
    outputs = [key for key in keys if key not in (*_COMPUTED, *missing)]
    if "rollout" in keys:
        outputs += [name for name in ("attention", "kept") if name not in outputs]
    values = model.full.run(outputs, {"pixels": pixels, **inputs.masks}) if outputs else []
    arrays = {name: value[0] for name, value in zip(outputs, values, strict=True)}
    found: dict[str, Any] = dict.fromkeys(missing)
    found |= {name: array for name, array in arrays.items() if name in keys}
    if "lens" in keys:
        found["lens"] = _softmax(arrays["lens"] / np.float32(model.run.temperature))
    if "rollout" in keys:
        found["rollout"] = _rollout(arrays["attention"], config, arrays["kept"])
    if "patch_removal" in keys:
        found["patch_removal"] = _patch_removal(model, config, pixels, inputs, check)
    if "relevance" in keys:
        check()
        found["relevance"] = _relevance(model, inputs)
    return found


def as_json(found: dict[str, Any]) -> bytes:
    """Return what `look` found as JSON, the large arrays with five significant digits."""
    shown = {name: _shortened(value) if name in LARGE and value is not None else value for name, value in found.items()}
    contiguous = {
        name: np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value for name, value in shown.items()
    }
    return orjson.dumps(contiguous, option=orjson.OPT_SERIALIZE_NUMPY)


def as_tensors(found: dict[str, Any]) -> bytes:
    """Return what `look` found in the safetensors format: the large arrays as float16, the others as float32.

    Attention weights are rounded to multiples of 1/1024 (by at most 0.0005), so that they compress to half the size,
    unless the queries and keys that they are computed from are there as well. What is None is left out.
    """
    is_exact = found.get("queries") is not None
    arrays = {}
    for name, value in found.items():
        if value is None:
            continue
        array: np.ndarray = np.ascontiguousarray(value, np.float32)
        if name == "attention" and not is_exact:
            array = np.rint(array * ATTENTION_STEPS) / np.float32(ATTENTION_STEPS)
        if name in LARGE and np.abs(array).max(initial=0) <= _LARGEST_HALF:
            array = array.astype(np.float16)
        arrays[name] = array
    return safetensors.numpy.save(arrays)


def _shortened(values: np.ndarray) -> np.ndarray:
    """Round to a few significant digits: the page shows no more, and JSON sends every digit of every number."""
    wide = values.astype(np.float64)
    places = _DIGITS - 1 - np.floor(np.log10(np.abs(wide), out=np.zeros_like(wide), where=wide != 0))
    return (np.round(wide * 10**places) / 10**places).astype(np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _rollout(attention: np.ndarray, config: ViTConfig, kept: np.ndarray) -> np.ndarray | None:
    """Return (P,); None for sequence pooling, whose weights are not an output of the graph.

    As `inspection.attention.rollout`, without torch: the page asks for it with every stroke.
    """
    if config.pool == "seq":
        return None
    identity = np.eye(attention.shape[-1], dtype=attention.dtype)
    row = identity[0] if config.has_class_token else np.pad(kept / kept.sum(), (config.num_prefix_tokens, 0))
    for layer in reversed(attention):
        mixed = layer.mean(axis=0) + identity
        row = row @ (mixed / mixed.sum(axis=-1, keepdims=True))
    return row[config.num_prefix_tokens :]


def _patch_removal(
    model: ServedModel, config: ViTConfig, pixels: np.ndarray, inputs: LookInputs, check: Callable[[], None]
) -> np.ndarray:
    """Return (P,): the probability that the predicted class loses when each patch's token is removed as well."""
    num_patches = config.num_patches
    kept = np.ones((1, num_patches), np.float32) if inputs.token_mask is None else inputs.token_mask
    rows = np.repeat(kept, num_patches + 1, axis=0)  # (P + 1, P): nothing more removed, then each patch
    np.fill_diagonal(rows[1:], 0)
    if not config.has_class_token:
        rows[~rows.any(axis=1)] = kept  # the only patch left cannot be removed
    outputs = []
    for start in range(0, len(rows), _REMOVAL_BATCH):
        check()
        batch = rows[start : start + _REMOVAL_BATCH]
        feeds = {**inputs.masks, "pixels": np.repeat(pixels, len(batch), axis=0), "token_mask": batch}
        outputs.append(model.full.run(["probabilities"], feeds)[0])
    probabilities = np.concatenate(outputs)
    return probabilities[0].max() - probabilities[1:, probabilities[0].argmax()]


def _relevance(model: ServedModel, inputs: LookInputs) -> np.ndarray:
    """Return (P,): gradient × attention through the layers (inspection/relevance.py), with the same masks."""
    import torch

    from vitreous.inspection.attention import attention_layers
    from vitreous.inspection.relevance import class_relevance, forward_and_back, relevance_readout
    from vitreous.models import ViT

    vit = model.torch_model
    assert isinstance(vit, ViT)
    image = model.run.preprocessing.to_input(torch.from_numpy(inputs.pixels.copy())[None])[0]
    head_mask = None if inputs.head_mask is None else torch.from_numpy(inputs.head_mask)
    patch_mask = None if inputs.token_mask is None else torch.from_numpy(inputs.token_mask) > 0.5
    torch.set_flush_denormal(True)  # for this thread
    with torch.enable_grad():
        trace = forward_and_back(vit, image, inputs.relevance_class, head_mask=head_mask, patch_mask=patch_mask)
    layers = [layer[0] for layer in attention_layers(trace.taps, vit.config.depth)]
    relevance = class_relevance(layers, trace.attention_gradients, relevance_readout(vit, trace))
    return relevance[vit.config.num_prefix_tokens :].detach().numpy()
