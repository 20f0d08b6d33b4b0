"""The graphs: a model with its normalisation inside, as ONNX, and what the file says of itself.

Two graphs of one model. The lean one answers (`pixels` → `logits`, `probabilities`) and does nothing else, for
serving. The full one also lets heads and patches be taken away and shows what is inside, for looking.

Shapes: B images, C channels, L layers, H heads, P patches, N tokens (the class token first), K = D // H.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import MissingExtraError, VitreousError
from vitreous.models import ViT, count_parameters
from vitreous.models.vit import Taps
from vitreous.runs import Run

if TYPE_CHECKING:
    from onnx import ModelProto

ANSWERS = ("logits", "probabilities")
INSIDES = ("attention", "lens", "queries", "keys", "values")
MASKS = ("head_mask", "token_mask")

#: What each input and output is, in words; it travels in the file.
MEANINGS = {
    "pixels": "float32 (B, C, height, width), 0 to 1, brought to size as `preprocessing` says; normalised inside",
    "head_mask": "float32 (L, H): multiplies each head's output; 0 removes the head",
    "token_mask": "float32 (B or 1, P): 0 removes the patch, so that no token looks at it",
    "logits": "float32 (B, classes)",
    "probabilities": "float32 (B, classes): softmax of the logits",
    "attention": "float32 (B, L, H, N, N): row q says how token q spreads its look; the class token is first",
    "lens": "float32 (B, L + 1, classes): logits the head would give after the embedding and after each layer",
    "queries": "float32 (B, L, H, N, K)",
    "keys": "float32 (B, L, H, N, K)",
    "values": "float32 (B, L, H, N, K)",
}


class ExportError(VitreousError):
    """A model that cannot be written as ONNX, or whose file does not do what the model does."""


class Lean(nn.Module):
    """pixels 0–1 (B, C, height, width) → logits and probabilities (B, classes)."""

    def __init__(self, model: nn.Module, preprocessing: Preprocessing):
        super().__init__()
        self.model = model
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        logits = self.model((pixels - self.mean) / self.std)
        return logits, logits.softmax(dim=-1)  # the posts' log-probabilities come out as probabilities too


class Full(Lean):
    """The same with masks, and with the insides: see MEANINGS."""

    model: ViT

    def forward(self, pixels: Tensor, head_mask: Tensor, token_mask: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        taps: Taps = {}
        kept = token_mask > 0.5
        logits = self.model((pixels - self.mean) / self.std, taps, head_mask=head_mask, patch_mask=kept)
        depth = self.model.config.depth
        insides = [
            torch.stack([taps[f"blocks.{layer}.{name}"] for layer in range(depth)], dim=1)
            for name in ("attention", "q", "k", "v")
        ]
        key_mask = F.pad(kept, (1, 0), value=True) if self.model.config.has_class_token else kept
        stream = [taps["tokens"], *(taps[f"blocks.{layer}.output"] for layer in range(depth))]
        lens = torch.stack([self.model.classify(tokens, key_mask) for tokens in stream], dim=1)
        return logits, logits.softmax(dim=-1), insides[0], lens, *insides[1:]


def require_export_packages() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtraError(package, "export", "exporting to ONNX") from None


def build_graph(run: Run, model: nn.Module, full: bool) -> ModelProto:
    """The run's model as one ONNX graph with a dynamic batch, its masks optional, and its metadata written in."""
    config = run.config.model
    pixels = torch.rand(3, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Tensor] = {"pixels": pixels}
    outputs: tuple[str, ...] = ANSWERS
    wrapped = Lean(model, run.preprocessing)
    if full:
        assert isinstance(model, ViT), "only a ViT has a full graph"
        inputs |= default_masks(model)
        outputs += INSIDES
        wrapped = Full(model, run.preprocessing)
    proto = _trace(wrapped.eval(), inputs, outputs)
    if full:
        _make_optional(proto, inputs)
    proto.producer_name, proto.producer_version = "vitreous", vitreous.__version__
    names = (*inputs, *outputs)
    for key, value in describe(run, model, {name: MEANINGS[name] for name in names}).items():
        proto.metadata_props.add(key=key, value=json.dumps(value, ensure_ascii=False))
    return proto


def default_masks(model: ViT) -> dict[str, Tensor]:
    config = model.config
    return {"head_mask": torch.ones(config.depth, config.num_heads), "token_mask": torch.ones(1, config.num_patches)}


def _trace(wrapped: Lean, inputs: dict[str, Tensor], outputs: tuple[str, ...]) -> ModelProto:
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    shapes: dict[str, Any] = {name: {0: batch} if name == "pixels" else None for name in inputs}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(
        False
    )  # a fused operator of nn.TransformerEncoder that ONNX has no word for
    try:
        with warnings.catch_warnings(), _exportable_resize(wrapped.model), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter's own making: nothing a person could act on
            program = torch.onnx.export(
                wrapped,
                tuple(inputs.values()),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=shapes,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"this model cannot be written as ONNX: {reason}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    assert program is not None
    proto = program.model_proto
    if not proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ExportError(
            "this model fixes the number of images in a batch (len() of a tensor in its forward does that)"
        )
    return proto


@contextlib.contextmanager
def _exportable_resize(model: nn.Module) -> Iterator[None]:
    """While exporting, `fit="resize"` is two matrix products: ONNX has no antialiased bilinear stretch of its own.

    Stretching is linear and each axis stands alone, so its matrix is what stretching makes of the unit vectors.
    """
    if not isinstance(model, ViT) or model.config.fit != "resize":
        yield
        return
    sides = zip(model.config.feature_size, model.config.fitted_size, strict=True)
    down, across = (
        F.interpolate(torch.eye(have)[None, None], size=(want, have), mode="bilinear", antialias=True)[0, 0]
        for have, want in sides
    )
    model.fit = lambda x: down @ x @ across.mT  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.fit  # the class's own is seen again


def _make_optional(proto: ModelProto, inputs: dict[str, Tensor]) -> None:
    """Give the masks their defaults (an initializer of the input's name), and let token_mask have a row an image."""
    from onnx import numpy_helper

    graph = proto.graph
    for value in graph.input:
        if value.name == "token_mask":
            # traced with one row, which every operation broadcasts; so B rows serve as well
            value.type.tensor_type.shape.dim[0].dim_param = "mask_batch"
    del graph.value_info[:]  # shapes inferred for one row
    for name in MASKS:
        graph.initializer.append(numpy_helper.from_array(inputs[name].numpy(), name))


def without_defaults(proto: ModelProto) -> ModelProto:
    """The same graph with its masks required: onnxruntime-web refuses inputs that have a default ("invalid input")."""
    from onnx import ModelProto

    copy = ModelProto()
    copy.CopyFrom(proto)
    kept = [tensor for tensor in copy.graph.initializer if tensor.name not in MASKS]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy


def describe(run: Run, model: nn.Module, meanings: dict[str, str]) -> dict[str, Any]:
    """What the file says of itself; each value is JSON."""
    return {
        "run": run.path.resolve().name,
        "vitreous_version": vitreous.__version__,
        "class_names": list(run.class_names),
        "preprocessing": run.preprocessing.model_dump(mode="json"),
        "model": run.config.model.model_dump(mode="json"),
        "parameters": count_parameters(model),
        "accuracy": run.record.results.test.accuracy if run.record.results.test else None,
        "position_similarity": _position_similarity(model),
        "meanings": meanings,
    }


def _position_similarity(model: nn.Module) -> list[list[float]] | None:
    """(P, P): the cosine of each pair of positions; None where none are added to the tokens."""
    positions = model.positions() if isinstance(model, ViT) else None
    if positions is None:
        return None
    assert isinstance(model, ViT)
    unit = F.normalize(positions.detach()[0, int(model.config.has_class_token) :], dim=-1)
    return [[round(value, 4) for value in row] for row in (unit @ unit.mT).tolist()]
