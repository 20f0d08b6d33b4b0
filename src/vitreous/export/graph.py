"""A model with its input normalisation as an ONNX graph, and the metadata in the file.

There are two graphs per model. The lean one computes `pixels` → `logits`, `probabilities` and, where the run measures
it, `novelty`, for serving. The full one
also accepts masks that remove heads and patches, and returns intermediates, for `look`.

Shapes: B images, C channels, L layers, H heads, P patches, N tokens (the class token first), K = D // H.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import vitreous
from vitreous.errors import ExportError, require_packages
from vitreous.evaluation.novelty import Novelty
from vitreous.evaluation.prediction import calibrated
from vitreous.inspection.attention import stream_layers
from vitreous.inspection.model_survey import position_similarity
from vitreous.models import ViT, count_parameters
from vitreous.models.representations import Representations, represent, representations_in
from vitreous.models.vit import Taps
from vitreous.runs import Run

if TYPE_CHECKING:
    from onnx import ModelProto

OUTPUTS = ("logits", "probabilities", "novelty")
INTERMEDIATES = ("attention", "lens", "queries", "keys", "values", "kept")
MASKS = ("head_mask", "token_mask")
LEAST_HALVED = 1024  # numbers: smaller tensors are not worth a conversion
HALF_ROUNDING = 2**-11  # of float16, relative

#: Descriptions of the inputs and outputs, stored in the file.
MEANINGS = {
    "pixels": "float32 (B, C, height, width), 0 to 1, resized as in `preprocessing`; normalised by the graph",
    "head_mask": "float32 (L, H): multiplies each head's output; 0 removes the head",
    "token_mask": "float32 (B or 1, P): 0 removes the patch: no token attends to it",
    "logits": "float32 (B, classes)",
    "probabilities": "float32 (B, classes): softmax of the logits divided by `temperature`",
    "novelty": "float32 (B,): above 1, the image is unlike those the model was trained on",
    "attention": "float32 (B, L, H, N, N): row q holds the weights of query q; the class token is first",
    "lens": "float32 (B, L + 1, classes): the head's logits on the tokens after the embedding and after each layer",
    "queries": "float32 (B, L, H, N, K)",
    "keys": "float32 (B, L, H, N, K)",
    "values": "float32 (B, L, H, N, K)",
    "kept": "float32 (B, P): 0 where the patch was removed or, being blank, skipped",
}


class Lean(nn.Module):
    """pixels 0–1 (B, C, height, width) → logits and probabilities (B, classes), and novelty (B,) if it is measured."""

    def __init__(self, run: Run, model: nn.Module):
        super().__init__()
        self.model, self.temperature, self.novelty = model, run.temperature, Novelty.of_run(run)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(run.preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(run.preprocessing.std).view(1, -1, 1, 1))

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS if self.novelty is not None else OUTPUTS[:2]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return self.results(*represent(self.model, (pixels - self.mean) / self.std))

    def results(self, logits: Tensor, representations: Representations) -> tuple[Tensor, ...]:
        found = (logits, calibrated(logits, self.temperature))  # correct for the article's log-probabilities too
        return found if self.novelty is None else (*found, self.novelty.score(representations))


class Full(Lean):
    """The same with masks and intermediates: see MEANINGS."""

    model: ViT

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*super().outputs, *INTERMEDIATES)

    def forward(self, pixels: Tensor, head_mask: Tensor, token_mask: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        taps: Taps = {}
        kept = token_mask > 0.5
        logits = self.model((pixels - self.mean) / self.std, taps, head_mask=head_mask, patch_mask=kept)
        depth = self.model.config.depth
        attention, *qkv = (
            torch.stack([taps[f"blocks.{layer}.{name}"] for layer in range(depth)], dim=1)
            for name in ("attention", "q", "k", "v")
        )
        kept = taps["kept"].expand(pixels.shape[0], -1)
        key_mask = self.model.token_mask(kept)
        lens = torch.stack([self.model.classify(tokens, key_mask) for tokens in stream_layers(taps, depth)], dim=1)
        return *self.results(logits, representations_in(self.model, taps)), attention, lens, *qkv, kept.float()


def require_export_packages() -> None:
    require_packages("onnx", "onnxscript", "onnxruntime", extra="export", needed_for="exporting to ONNX")


def build_graph(run: Run, model: nn.Module, full: bool) -> ModelProto:
    """Return the run's model as an ONNX graph with a dynamic batch size, optional masks and metadata."""
    config = run.config.model
    pixels = torch.rand(3, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Tensor] = {"pixels": pixels}
    wrapped = Lean(run, model)
    if full:
        assert isinstance(model, ViT), "only a ViT has a full graph"
        inputs |= default_masks(model)
        wrapped = Full(run, model)
    outputs = wrapped.outputs
    proto = _trace(wrapped.eval(), inputs, outputs)
    if full:
        _make_optional(proto, inputs)
    _remove_source_paths(proto)
    proto.producer_name, proto.producer_version = "vitreous", vitreous.__version__
    for key, value in describe(run, model, {name: MEANINGS[name] for name in (*inputs, *outputs)}).items():
        proto.metadata_props.add(key=key, value=json.dumps(value, ensure_ascii=False))
    return proto


def default_masks(model: ViT) -> dict[str, Tensor]:
    config = model.config
    return {"head_mask": torch.ones(config.depth, config.num_heads), "token_mask": torch.ones(1, config.num_patches)}


@contextlib.contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """Let a logger pass errors alone: without torchvision, the exporter warns of four operators that we do not use."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _trace(wrapped: Lean, inputs: dict[str, Tensor], outputs: tuple[str, ...]) -> ModelProto:
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    shapes: dict[str, Any] = {name: {0: batch} if name == "pixels" else None for name in inputs}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # nn.TransformerEncoder's fused operator has no ONNX equivalent
    try:
        with warnings.catch_warnings(), _errors_only("torch.onnx"), _exportable_resize(wrapped.model), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own: nothing the user could act on
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
            "this model fixes the batch size: does its forward call len() on a tensor? Use tensor.shape[0]"
        )
    return proto


@contextlib.contextmanager
def _exportable_resize(model: nn.Module) -> Iterator[None]:
    """While exporting, express `fit="resize"` as two matrix products: ONNX has no antialiased bilinear resize.

    Resizing is linear and separable, so the matrix of each axis holds the resized unit vectors.
    """
    if not isinstance(model, ViT) or model.config.fit != "resize":
        yield
        return
    sides = zip(model.config.feature_size, model.config.fitted_size, strict=True)
    down, across = (
        F.interpolate(torch.eye(old)[None, None], size=(new, old), mode="bilinear", antialias=True)[0, 0]
        for old, new in sides
    )
    model.fit = lambda x: down @ x @ across.mT  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.fit  # uncovers the method of the class


def _make_optional(proto: ModelProto, inputs: dict[str, Tensor]) -> None:
    """Give the masks defaults (an initializer of the input's name) and let token_mask have one row per image."""
    from onnx import numpy_helper

    graph = proto.graph
    for value in graph.input:
        if value.name == "token_mask":
            # traced with one row, which every operation broadcasts; so B rows work as well
            value.type.tensor_type.shape.dim[0].dim_param = "mask_batch"
    del graph.value_info[:]  # shapes inferred for one row
    for name in MASKS:
        graph.initializer.append(numpy_helper.from_array(inputs[name].numpy(), name))


def _remove_source_paths(proto: ModelProto) -> None:
    """Remove the stack traces of each operation, which contain paths of this machine (and a seventh of the file)."""
    del proto.metadata_props[:], proto.graph.metadata_props[:]
    proto.doc_string = proto.graph.doc_string = ""
    graph = proto.graph
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


def make_masks_required(proto: ModelProto) -> None:
    """Remove the masks' defaults again: onnxruntime-web rejects inputs that have one ("invalid input")."""
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in MASKS]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


def store_weights_in_half(proto: ModelProto) -> None:
    """Store the large weights as float16 and convert them when the file is opened: half the bytes to download.

    A tensor whose values float16 does not hold (too large, or all tiny) stays as it is.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph, stored, casts = proto.graph, [], []
    for tensor in graph.initializer:
        half = in_half(numpy_helper.to_array(tensor))
        if half is None:
            stored.append(tensor)
            continue
        name = f"{tensor.name}.half"
        stored.append(numpy_helper.from_array(half, name))
        casts.append(helper.make_node("Cast", [name], [tensor.name], name=f"{name}.cast", to=TensorProto.FLOAT))
    nodes = list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(stored)
    graph.node.extend([*casts, *nodes])


def in_half(values: NDArray[Any]) -> NDArray[np.float16] | None:
    """Return weights as float16; None where they are few, not float32, or too large or too small for it."""
    if values.dtype != np.float32 or values.size < LEAST_HALVED:
        return None
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.abs(values - half).max() <= HALF_ROUNDING * np.abs(values).max() else None


def describe(run: Run, model: nn.Module, meanings: dict[str, str]) -> dict[str, Any]:
    """Return the file's metadata; each value is stored as JSON."""
    similarity = position_similarity(model) if isinstance(model, ViT) else None
    calibration = run.record.calibration
    return {
        "run": run.path.resolve().name,
        "vitreous_version": vitreous.__version__,
        "weights_sha256": run.record.weights.sha256,
        "class_names": list(run.class_names),
        "preprocessing": run.preprocessing.model_dump(mode="json"),
        "model": run.config.model.model_dump(mode="json"),
        "parameters": count_parameters(model),
        "accuracy": run.record.results.test.accuracy if run.record.results.test else None,
        "temperature": run.temperature,
        "novelty": calibration is not None and calibration.novelty is not None,
        "position_similarity": None if similarity is None else _rounded_rows(similarity),
        "meanings": meanings,
    }


def _rounded_rows(similarity: Tensor) -> list[list[float]]:
    """(rows, columns, rows, columns) → (P, P)."""
    return [[round(value, 4) for value in row] for row in similarity.flatten(2).flatten(0, 1).tolist()]
