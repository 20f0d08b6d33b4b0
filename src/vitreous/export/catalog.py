"""What the page needs to know about its models, and test images to start with: models.json and samples.json.

The server's /v1/models and /v1/samples return the same documents, so the page works alike with and without a server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import vitreous
from vitreous.config import ViTConfig, build_config
from vitreous.data.digits import load_digits
from vitreous.data.splits import Split
from vitreous.export.images import fit_to_model, local_dataset
from vitreous.inspection.cells import patch_cells
from vitreous.runs import BUNDLED, Run

Entry = dict[str, Any]
SAMPLES = 100
_COPIED = ("class_names", "preprocessing", "parameters", "accuracy", "temperature", "novelty")  # from the metadata
PAGE_IMAGE = (1, 28, 28)  # what is drawn on the page: channels, height, width
BUNDLED_SAMPLES = BUNDLED / "samples.json"  # `digit_samples` of a run with PAGE_IMAGE, without importing scikit-learn
_TITLES = {"vit": "ViT", "cnn": "CNN", "post-vit": "The article's ViT", "post-cnn": "The article's CNN",
           "post-design": "The article's design"}  # fmt: skip


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


def run_for_samples(runs: Sequence[Run]) -> Run:
    """Return the first run whose images have the size drawn on the page, or else the first run."""
    return next((run for run in runs if _shape(run) == PAGE_IMAGE), runs[0])


def _shape(run: Run) -> tuple[int, ...]:
    return (run.config.model.channels, *run.config.model.image_size)


def sample_digits(run: Run) -> dict[str, Any]:
    """Return test images at the model's size, alternating classes: {"samples": [{"label", "pixels"}]}.

    They come from the run's test set if it is on this machine, else from the digits.
    """
    dataset = local_dataset(run)
    if dataset is not None:
        return _samples(dataset.test, dataset.class_names, run)
    if _shape(run) == PAGE_IMAGE:
        return json.loads(BUNDLED_SAMPLES.read_text(encoding="utf-8"))
    return digit_samples(run)


def digit_samples(run: Run) -> dict[str, Any]:
    """Return samples from scikit-learn's digits."""
    digits = load_digits()
    return _samples(digits.splits["test"], digits.class_names, run)


def _samples(split: Split, class_names: Sequence[str], run: Run) -> dict[str, Any]:
    per_class = max(1, SAMPLES // len(class_names))
    labels = split.labels.numpy()
    by_class = [np.flatnonzero(labels == label)[:per_class].tolist() for label in range(len(class_names))]
    chosen = [indices[i] for i in range(per_class) for indices in by_class if i < len(indices)][:SAMPLES]
    return {
        "samples": [
            {"label": class_names[label], "pixels": base64.b64encode(image.numpy().tobytes()).decode()}
            for image, label in zip(
                fit_to_model(split.batch(np.array(chosen)), run), split.labels[chosen].tolist(), strict=True
            )
        ]
    }
