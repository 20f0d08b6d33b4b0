"""POST /v1/look: what one image does inside a model, as arrays.

Shapes: L layers, H heads, P patches, N tokens (the class token first, if there is one), K = head width.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.config import ViTConfig
from vitreous.serving.limits import Limits
from vitreous.serving.models import ServedModel
from vitreous.serving.problems import Problem
from vitreous.serving.reading import parse_object

WANTS = ("probabilities", "attention", "lens", "qkv", "rollout", "patch_removal", "relevance")
_LARGE = ("attention", "queries", "keys", "values")  # thousands of numbers each
_DIGITS = 5  # of those, the significant ones that are sent
_FIELDS = ("model", "pixels", "head_mask", "token_mask", "relevance_class", "want")


@dataclass(frozen=True)
class Question:
    pixels: np.ndarray  # uint8 (C, height, width)
    head_mask: np.ndarray | None  # float32 (L, H)
    token_mask: np.ndarray | None  # float32 (1, P)
    relevance_class: int | None
    want: frozenset[str]


def model_of(document: dict[str, Any]) -> str | None:
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise Problem(422, "`model` must be the id of a model, as /v1/models lists them")
    return model


def parse_look(body: bytes) -> dict[str, Any]:
    document = parse_object(body)
    unknown = [key for key in document if key not in _FIELDS]
    if unknown:
        raise Problem(422, f"there is no field {str(unknown[0])[:60]!r}; known are {', '.join(_FIELDS)}")
    return document


def read_question(document: dict[str, Any], model: ServedModel, limits: Limits) -> Question:
    want = document.get("want", ["probabilities"])
    if not isinstance(want, list) or not all(isinstance(one, str) and one in WANTS for one in want):
        raise Problem(422, f"`want` must be a list of: {', '.join(WANTS)}")
    question = Question(
        pixels=_pixels(document.get("pixels"), model),
        head_mask=None,
        token_mask=None,
        relevance_class=_class(document.get("relevance_class"), model),
        want=frozenset(want),
    )
    config = model.vit
    if config is None:
        return question
    _check_size(config, question.want, limits)
    heads = _mask(document.get("head_mask"), (config.depth, config.num_heads), "head_mask", "layers × heads")
    tokens = _mask(document.get("token_mask"), (config.num_patches,), "token_mask", "one a patch")
    if tokens is not None and not config.has_class_token and not tokens.any():
        raise Problem(
            422, "`token_mask` removes every patch, and this model has no class token: nothing is left to read"
        )
    return Question(
        question.pixels, heads, None if tokens is None else tokens[None], question.relevance_class, question.want
    )


def _pixels(encoded: Any, model: ServedModel) -> np.ndarray:
    config = model.run.config.model
    shape = (config.channels, *config.image_size)
    expected = f"`pixels` must be base64 of {shape[0] * shape[1] * shape[2]} bytes: channels × rows × columns {shape}"
    if not isinstance(encoded, str):
        raise Problem(422, expected)
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, expected) from None
    if len(raw) != shape[0] * shape[1] * shape[2]:
        raise Problem(422, f"{expected}, not {len(raw)}")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _class(index: Any, model: ServedModel) -> int | None:
    if index is None:
        return None
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(model.class_names):
        raise Problem(422, f"`relevance_class` must be null or a class from 0 to {len(model.class_names) - 1}")
    return index


def _mask(values: Any, shape: tuple[int, ...], name: str, meaning: str) -> np.ndarray | None:
    if values is None:
        return None
    expected = f"`{name}` must be null or 0s and 1s of shape {list(shape)}, {meaning}"
    try:
        mask = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise Problem(422, expected) from None
    if mask.shape != shape or mask.dtype.kind not in "iufb" or not np.isin(mask, (0, 1)).all():
        raise Problem(422, expected)
    return mask.astype(np.float32)


def _check_size(config: ViTConfig, want: frozenset[str], limits: Limits) -> None:
    heads, tokens = config.depth * config.num_heads, config.num_tokens
    numbers = heads * tokens * tokens * ("attention" in want) + 3 * heads * tokens * config.head_dim * ("qkv" in want)
    if numbers > limits.look_numbers:
        raise Problem(
            422, f"that would be {numbers} numbers; at most {limits.look_numbers} are sent: want less at a time"
        )


# --- answering ---------------------------------------------------------------------------------------------------


def look(model: ServedModel, question: Question) -> dict[str, Any]:
    """What was wanted, by name; null where this model has no such thing."""
    pixels = question.pixels[None].astype(np.float32) / np.float32(255)
    config = model.vit
    if config is None:
        answer: dict[str, Any] = dict.fromkeys(_keys(question.want))
        if "probabilities" in question.want:
            answer["probabilities"] = model.engine.session.run(["probabilities"], {"pixels": pixels})[0][0]
        return answer
    masks = {
        name: mask
        for name, mask in (("head_mask", question.head_mask), ("token_mask", question.token_mask))
        if mask is not None
    }
    outputs = _outputs(question.want)
    found = dict(zip(outputs, model.full.run(outputs, {"pixels": pixels, **masks}), strict=True)) if outputs else {}
    answer = {name: found[name][0] for name in outputs if name != "lens" and name in _keys(question.want)}
    answer |= {name: _shortened(answer[name]) for name in _LARGE if name in answer}
    if "lens" in found:
        answer["lens"] = _softmax(found["lens"][0])
    if "rollout" in question.want:
        answer["rollout"] = _rollout(found["attention"][0], config, question.token_mask)
    if "patch_removal" in question.want:
        answer["patch_removal"] = _occlusion(model, config, pixels, question)
    if "relevance" in question.want:
        answer["relevance"] = _relevance(model, question)
    return answer


def _keys(want: frozenset[str]) -> list[str]:
    return [key for one in WANTS if one in want for key in (("queries", "keys", "values") if one == "qkv" else (one,))]


def _outputs(want: frozenset[str]) -> list[str]:
    from_graph = [key for key in _keys(want) if key not in ("rollout", "patch_removal", "relevance")]
    return [*from_graph, "attention"] if "rollout" in want and "attention" not in want else from_graph


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _shortened(values: np.ndarray) -> np.ndarray:
    """To a few significant digits: a page shows no more, and as JSON every digit of every number is sent."""
    wide = values.astype(np.float64)
    places = _DIGITS - 1 - np.floor(np.log10(np.abs(wide), out=np.zeros_like(wide), where=wide != 0))
    return (np.round(wide * 10**places) / 10**places).astype(np.float32)


def _rollout(attention: np.ndarray, config: ViTConfig, token_mask: np.ndarray | None) -> np.ndarray | None:
    """(P,); None for sequence pooling, whose weights the graph does not give."""
    if config.pool == "seq":
        return None
    import torch

    from vitreous.inspection.attention import rollout

    if config.has_class_token:
        readout = torch.eye(attention.shape[-1])[0]
    else:  # the mean of the patches that are left
        kept = torch.ones(config.num_patches) if token_mask is None else torch.from_numpy(token_mask[0])
        readout = kept / kept.sum()
    return rollout(list(torch.from_numpy(attention)), readout)[int(config.has_class_token) :].numpy()


def _occlusion(model: ServedModel, config: ViTConfig, pixels: np.ndarray, question: Question) -> np.ndarray:
    """(P,): what the answer's probability loses when each patch is removed as well."""
    patches = config.num_patches
    kept = np.ones((1, patches), np.float32) if question.token_mask is None else question.token_mask
    rows = np.repeat(kept, patches + 1, axis=0)
    rows[np.arange(1, patches + 1), np.arange(patches)] = 0
    if not config.has_class_token:
        rows[~rows.any(axis=1)] = kept  # the last patch of a model that reads patches only cannot be removed
    feeds = {"token_mask": rows}
    if question.head_mask is not None:
        feeds["head_mask"] = question.head_mask
    answers = []
    for start in range(0, patches + 1, 64):
        part = {**feeds, "token_mask": rows[start : start + 64]}
        copies = np.repeat(pixels, len(part["token_mask"]), axis=0)
        answers.append(model.full.run(["probabilities"], {"pixels": copies, **part})[0])
    probabilities = np.concatenate(answers)
    return probabilities[0].max() - probabilities[1:, probabilities[0].argmax()]


def _relevance(model: ServedModel, question: Question) -> np.ndarray:
    """(P,): gradient × attention carried through the layers (internals/relevance.py), with the same masks."""
    import torch

    from vitreous.inspection.attention import attention_layers
    from vitreous.inspection.relevance import class_relevance, forward_and_back, relevance_readout
    from vitreous.models import ViT

    vit = model.torch_model
    assert isinstance(vit, ViT)
    image = model.run.preprocessing.to_input(torch.from_numpy(question.pixels.copy())[None])[0]
    heads = None if question.head_mask is None else torch.from_numpy(question.head_mask)
    patches = None if question.token_mask is None else torch.from_numpy(question.token_mask) > 0.5
    with torch.enable_grad():
        asked = forward_and_back(vit, image, question.relevance_class, head_mask=heads, patch_mask=patches)
    layers = [layer[0] for layer in attention_layers(asked.taps, vit.config.depth)]
    relevance = class_relevance(layers, asked.attention_gradients, relevance_readout(vit, asked))
    return relevance[int(vit.config.has_class_token) :].detach().numpy()
