"""Write a model of ours in another library's layout, or name the part that this library cannot express."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vitreous.checkpoints import google, huggingface, timm, torchvision
from vitreous.checkpoints.facts import Facts
from vitreous.config import ViTConfig
from vitreous.downloads.files import atomic_write_bytes
from vitreous.errors import CheckpointError
from vitreous.models.vit import ViT
from vitreous.reports.formats import plural

TargetLayout = Literal["timm", "hf", "torchvision", "google"]
TARGETS: tuple[TargetLayout, ...] = get_args(TargetLayout)
_LIBRARY = {"timm": "timm", "hf": "Hugging Face's ViT", "torchvision": "torchvision's ViT", "google": "Google's npz"}

_WRITE: dict[str, Callable[[Mapping[str, Tensor], ViTConfig], dict[str, Tensor]]] = {
    "timm": timm.write, "hf": huggingface.write, "torchvision": torchvision.write, "google": google.write,
}  # fmt: skip

#: Parts beyond the plain ViT (RGB, square, class token, learned positions, linear head) that a target can express.
_EXPRESSIBLE = {
    "timm": {
        "mean pooling", "norm after pooling", "channels", "oblong", "erf GELU", "tanh GELU", "quick GELU", "registers",
        "pre-norm",
    },
    "hf": {"channels", "oblong", "erf GELU", "tanh GELU", "quick GELU", "epsilon"},
    "torchvision": {"mlp head", "erf GELU", "epsilon"},
    "google": {"mean pooling", "mlp head", "channels", "oblong", "tanh GELU"},
}  # fmt: skip
#: Parts that change the logits slightly but not the structure; `approximate=True` ignores them.
_NUMERIC = {"erf GELU", "tanh GELU", "quick GELU", "epsilon"}
_COMMON_EPS = 1e-6
_ALWAYS_BIASED = ("torchvision", "google")  # attention there cannot do without biases of q, k and v


def save_model(
    model: ViT,
    path: Path | str,
    layout: TargetLayout,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
    approximate: bool = False,
    temperature: float = 1.0,
) -> list[str]:
    """Write `model` to `path` in `layout`; return notes for the reader.

    timm: a `.safetensors` file, or a folder with timm's config.json; hf: a folder; torchvision: a `.safetensors` file;
    google: a `.npz` file in the layout of the paper's code. `mean` and `std` (per channel, of pixels in [0, 1]) are
    required for folders, which store them. What the target cannot express is refused by name; `approximate` writes
    the weights nevertheless if only the kind of GELU or ε differs, and adds a note. `temperature`, of a calibrated run,
    divides the head, so that the softmax of the other library gives the calibrated probabilities.
    """
    if layout not in TARGETS:
        raise CheckpointError(f"unknown layout {layout!r}; choose from {', '.join(TARGETS)}")
    if not isinstance(model, ViT):
        raise CheckpointError(f"only the ViT can be written in another library's layout, not {type(model).__name__}")
    path, config = Path(path), model.config
    as_folder = layout == "hf" or (layout == "timm" and path.suffix != ".safetensors")
    notes = _refuse_or_note(config, layout, as_folder, approximate)
    facts = _facts(config, mean, std, class_names)
    tensors = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    tensors.pop("background", None)  # of tokens that are as many as the patches
    if temperature != 1:
        tensors |= {name: tensors[name] / temperature for name in ("head.weight", "head.bias")}
        notes.append(f"the head is divided by the run's temperature {temperature:.4g}: probabilities are calibrated")
    if layout in _ALWAYS_BIASED and not config.qkv_bias:
        tensors |= {f"blocks.{i}.attn.qkv.bias": torch.zeros(3 * config.dim) for i in range(config.depth)}
    written = _WRITE[layout](tensors, config)
    if as_folder:
        _write_folder(path, layout, written, config, facts)
    elif path.suffix != (suffix := ".npz" if layout == "google" else ".safetensors"):
        raise CheckpointError(f"{_LIBRARY[layout]} is written to a {suffix} file, not to {str(path)!r}")
    else:
        _write(path, _npz(written) if layout == "google" else _safetensors(written, facts))
    return [f"{len(written)} tensors written", *notes]


def _facts(
    config: ViTConfig, mean: Sequence[float] | None, std: Sequence[float] | None, class_names: Sequence[str] | None
) -> Facts:
    """Return what is stored beside the weights, after checking it against the model."""
    for name, values in {"mean": mean, "std": std}.items():
        if values is not None and (len(values) != config.channels or not all(map(math.isfinite, values))):
            raise CheckpointError(f"{name}={tuple(values)}: expected {plural(config.channels, 'finite number')}")
    if class_names is not None and len(class_names) != config.num_classes:
        raise CheckpointError(f"{len(class_names)} class names were given for {config.num_classes} classes")
    return Facts(
        num_heads=config.num_heads,
        image_size=config.image_size,
        norm_eps=config.norm_eps,
        gelu=config.gelu,
        pool="cls" if config.pool == "cls" else "mean",
        mean=None if mean is None else tuple(map(float, mean)),
        std=None if std is None else tuple(map(float, std)),
        class_names=None if class_names is None else tuple(map(str, class_names)),
    )


# --- what a target cannot express --------------------------------------------------------------------------


def _parts(config: ViTConfig) -> dict[str, str]:
    """Return the parts of this model that not every target has: key of `_EXPRESSIBLE` → description."""
    covered = tuple(rows * side for rows, side in zip(config.grid, config.patch_size, strict=True))
    oblong = len(set(config.image_size)) > 1 or len(set(config.patch_size)) > 1
    present = {
        "conv stem": (bool(config.stem_channels), "the conv stem (model.stem_channels)"),
        "skipped patches": (
            config.kept_patches < config.num_patches,
            f"skipping blank patches (model.tokens={config.tokens})",
        ),
        "window": (config.window is not None, f"tokens that see a window (model.window={config.window})"),
        "hidden embedding": (config.embed_hidden is not None, "a hidden layer in the patch embedding"),
        "sequence pooling": (config.pool == "seq", "sequence pooling (model.pool=seq)"),
        "mean pooling": (config.pool == "mean", "mean pooling without a class token (model.pool=mean)"),
        "norm after pooling": (config.norm_after_pool, "a LayerNorm after the pooling (model.norm_after_pool)"),
        "positions": (config.positions != "learned", f"model.positions={config.positions}"),
        "mlp head": (config.head == "mlp", "the MLP head (model.head=mlp)"),
        "channels": (config.channels != 3, plural(config.channels, "input channel")),
        "oblong": (oblong, f"images of {config.image_size} in patches of {config.patch_size}: only squares fit"),
        "padding": (
            covered != config.feature_size,
            f"images padded or stretched to the patches (model.fit={config.fit})",
        ),
        "erf GELU": (config.gelu == "erf", "erf GELU (it has the tanh approximation only)"),
        "tanh GELU": (config.gelu == "tanh", "tanh GELU (it has erf GELU only)"),
        "quick GELU": (config.gelu == "quick", "CLIP's quick GELU"),
        "registers": (config.registers > 0, "register tokens (model.registers)"),
        "pre-norm": (config.pre_norm, "a LayerNorm before the first block (model.pre_norm)"),
        "epsilon": (config.norm_eps != _COMMON_EPS, f"LayerNorm ε {config.norm_eps:g} (it has {_COMMON_EPS:g})"),
    }
    return {key: words for key, (there, words) in present.items() if there}


def _refuse_or_note(config: ViTConfig, layout: TargetLayout, as_folder: bool, approximate: bool) -> list[str]:
    parts = _parts(config)
    expressible = _EXPRESSIBLE[layout]
    # timm's constructor takes any ε; its config.json has no place for one, but two architectures with different ones
    if layout == "timm" and (not as_folder or config.norm_eps in timm.ARCHITECTURES):
        expressible = expressible | {"epsilon"}
    lacking = {key: words for key, words in parts.items() if key not in expressible}
    refused = [words for key, words in lacking.items() if not (approximate and key in _NUMERIC)]
    if refused:
        hint = "; --approximate (in Python approximate=True) writes the weights nevertheless"
        raise CheckpointError(
            f"{_LIBRARY[layout]} cannot express {', nor '.join(refused)}{hint if set(lacking) <= _NUMERIC else ''}"
        )
    notes = [f"approximate: {_LIBRARY[layout]} has no {words}" for words in lacking.values()]
    return notes + _how_to_build(config, layout, as_folder, parts)


def _how_to_build(config: ViTConfig, layout: TargetLayout, as_folder: bool, parts: Mapping[str, str]) -> list[str]:
    notes = []
    if layout in ("timm", "torchvision") and not as_folder:
        if layout == "timm":
            arguments = timm.model_arguments(config) | {"in_chans": config.channels, "num_classes": config.num_classes}
        else:
            arguments = torchvision.model_arguments(config)
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        eps = f", norm_layer=partial(torch.nn.LayerNorm, eps={config.norm_eps:g})" if "epsilon" in parts else ""
        notes.append(f"build it with VisionTransformer({text}{eps})")
    if layout in _ALWAYS_BIASED and not config.qkv_bias:
        notes.append("the q, k, v biases, which this model does not have, are written as zeros")
    if "oblong" in parts and layout == "google":
        notes.append(f"the file cannot state the image size {config.image_size}: give trained_size when reading it")
    return notes


# --- files -------------------------------------------------------------------------------------------------


def _write_folder(
    path: Path, layout: TargetLayout, tensors: dict[str, Tensor], config: ViTConfig, facts: Facts
) -> None:
    if facts.mean is None or facts.std is None:
        raise CheckpointError(
            f"{_LIBRARY[layout]} stores the input's normalisation beside the weights: give mean=… and std=…"
        )
    if layout == "hf":
        records = {
            "preprocessor_config.json": huggingface.preprocessor_json(config, facts.mean, facts.std),
            "config.json": huggingface.config_json(config, facts.class_names),
        }
    else:
        records = {"config.json": timm.config_json(config, facts.mean, facts.std, facts.class_names)}
    _check_folder(path, {"model.safetensors", *records})
    _write(path / "model.safetensors", _safetensors(tensors, facts))
    for name, record in records.items():  # config.json last: a folder without it is not taken for a model
        _write(path / name, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def _check_folder(path: Path, names: set[str]) -> None:
    """Accept only a new folder, an empty one or an earlier export: another model's files would be read with ours."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in names)
    except OSError as error:
        raise CheckpointError(f"cannot write to the folder {str(path)!r}: {error.strerror or error}") from None
    if others:
        raise CheckpointError(f"the folder {str(path)!r} holds other files ({others[0]!r} …): choose a new one")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data)
    except OSError as error:
        raise CheckpointError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def _safetensors(tensors: dict[str, Tensor], facts: Facts) -> bytes:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return bytes(save(contiguous, metadata=facts.to_header()))


def _npz(tensors: dict[str, Tensor]) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez(buffer, **arrays)
    return buffer.getvalue()
