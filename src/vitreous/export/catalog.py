"""What the page needs to know about its models, and test images to start with: models.json and samples/.

The server's /v1/models and /v1/samples return the same documents, so the page works alike with and without a server.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import vitreous
from vitreous.config import ViTConfig, build_config
from vitreous.data.digits import load_digits
from vitreous.data.splits import Split
from vitreous.errors import ExportError
from vitreous.export.images import fit_to_model, local_dataset
from vitreous.inspection.cells import patch_cells
from vitreous.runs import BUNDLED, Run

Entry = dict[str, Any]
SAMPLES = 100
_COPIED = ("class_names", "preprocessing", "parameters", "accuracy", "temperature", "novelty")  # from the metadata
SAMPLES_BYTES = 720_000  # of pixels; 1 MB as text
BUNDLED_SAMPLES = BUNDLED / "samples.json"  # `digit_samples` of a run with this shape, without importing scikit-learn
BUNDLED_SHAPE = [1, 28, 28]  # channels, height, width
#: What the page's own forward pass (serving/page/forward.js) needs to know besides the weights.
_ARCHITECTURE = (
    "window", "embed_hidden", "mlp_dim", "positions", "norm_eps", "gelu", "pre_norm", "norm_after_pool", "fit",
)  # fmt: skip
_TITLES = {"vit": "ViT", "cnn": "CNN", "mixer": "Mixer", "post-vit": "The article's ViT",
           "post-cnn": "The article's CNN", "post-design": "The article's design"}  # fmt: skip


def parse_metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """Decode an ONNX file's metadata properties, which `graph.describe` wrote."""
    return {key: json.loads(value) for key, value in properties.items()}


def model_ids(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run that is valid in a URL: its folder's, numbered if it repeats."""
    ids: list[str] = []
    for run in runs:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.resolve().name).strip("-.") or "model"
        names = (stem, *(f"{stem}-{number}" for number in range(2, len(runs) + 1)))
        ids.append(next(name for name in names if name not in ids))
    return ids


def model_entries(described: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """Return one entry per model, from its id and parsed metadata."""
    kinds = [metadata["model"]["kind"] for metadata in described.values()]
    return [
        # named by its kind if only one model is of that kind, else by its folder
        _entry(ident, _TITLES[kind] if kinds.count(kind) == 1 else ident, metadata)
        for (ident, metadata), kind in zip(described.items(), kinds, strict=True)
    ]


def _entry(ident: str, name: str, metadata: Mapping[str, Any]) -> Entry:
    model = metadata["model"]
    entry = {
        "id": ident,
        "name": name,
        "kind": "vit" if model["kind"] == "vit" else "cnn",  # the page looks inside a "vit" only
        "model": model["kind"],
        "image_size": model["image_size"],
        "channels": model["channels"],
        **{name: metadata[name] for name in _COPIED},
    }
    if model["kind"] != "vit":
        return entry
    config = build_config(ViTConfig, model)
    cells = patch_cells(config)
    return entry | {
        **{
            name: getattr(config, name) for name in ("depth", "num_heads", "dim", "head_dim", "has_class_token", "pool")
        },
        "architecture": {
            **config.model_dump(mode="json", include=set(_ARCHITECTURE)),
            "has_stem": bool(config.stem_channels),
            "head": "mlp" if config.head == "mlp" else "linear",
        },
        "patch_size": list(config.patch_size),
        "grid": list(config.grid),
        "cells": {
            "row_edges": list(cells.row_edges),
            "column_edges": list(cells.column_edges),
            "exact": cells.exact,
            "note": cells.note,
        },
        "position_similarity": metadata["position_similarity"],
    }


def models_document(entries: Sequence[Entry]) -> dict[str, Any]:
    return {"models": list(entries), "version": vitreous.__version__}


# --- images to start with ----------------------------------------------------------------------------------------


def check_images(runs: Sequence[Run]) -> None:
    """Refuse a run whose images no page can show."""
    for run in runs:
        channels = run.config.model.channels
        if channels not in (1, 3):
            raise ExportError(
                f"{str(run.path)!r} takes images of {channels} channels, and the page shows gray (1) or colour (3):"
                " use it from Python, or write it with `vitreous export --to onnx`"
            )
        if getattr(run.config.model, "registers", 0):
            raise ExportError(
                f"{str(run.path)!r} has register tokens, which the page does not show: use `vitreous look`, or write it"
                " with `vitreous export --to onnx`"
            )


def samples_for(run: Run) -> dict[str, Any]:
    """Return test images at the model's size, alternating classes: {"shape", "samples": [{"label", "pixels"}], "note"}.

    They come from the run's test set. Where that is not on this machine, a model of digits gets scikit-learn's, and any
    other none and a `note` that says so.
    """
    dataset = local_dataset(run)
    if dataset is not None:
        return _samples(dataset.test, dataset.class_names, run)
    if run.preprocessing.resize == "mnist":
        if _shape(run) == BUNDLED_SHAPE:
            return json.loads(BUNDLED_SAMPLES.read_text(encoding="utf-8"))
        return digit_samples(run)
    note = "There are no test images to choose from: the data it was trained on are not where they were."
    return {"shape": _shape(run), "samples": [], "note": note}


def digit_samples(run: Run) -> dict[str, Any]:
    """Return samples from scikit-learn's digits."""
    digits = load_digits()
    return _samples(digits.splits["test"], digits.class_names, run)


def _shape(run: Run) -> list[int]:
    return [run.config.model.channels, *run.config.model.image_size]


def _samples(split: Split, class_names: Sequence[str], run: Run) -> dict[str, Any]:
    shape = _shape(run)
    most = max(1, min(SAMPLES, SAMPLES_BYTES // math.prod(shape)))
    per_class = max(1, most // len(class_names))
    labels = split.labels.numpy()
    by_class = [np.flatnonzero(labels == label)[:per_class].tolist() for label in range(len(class_names))]
    chosen = [indices[i] for i in range(per_class) for indices in by_class if i < len(indices)][:most]
    images = fit_to_model(split.batch(np.array(chosen)), run)
    return {
        "shape": shape,
        "samples": [
            {"label": class_names[label], "pixels": base64.b64encode(image.numpy().tobytes()).decode()}
            for image, label in zip(images, split.labels[chosen].tolist(), strict=True)
        ],
        "note": "",
    }
