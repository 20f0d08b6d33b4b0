"""What the page must know of the models it talks to, and test images to begin with: models.json, samples.json.

The server's /v1/models and /v1/samples say the same, so that the page's two engines are alike.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import vitreous
from vitreous.config import ViTConfig, build_config
from vitreous.data.datasets import Dataset, describe, load_dataset
from vitreous.data.digits import load_digits
from vitreous.data.images import resize, to_channels
from vitreous.data.specs import DATASETS
from vitreous.data.splits import Split
from vitreous.errors import DataError
from vitreous.inspection.cells import patch_cells
from vitreous.runs import BUNDLED, Run

Entry = dict[str, Any]
SAMPLES = 100
PAGE_IMAGE = (1, 28, 28)  # what is drawn on the page: channels, height, width
_TITLES = {"vit": "ViT", "cnn": "CNN", "post-vit": "The post's ViT", "post-cnn": "The post's CNN",
           "post-design": "The post's design"}  # fmt: skip


def parse_metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """An ONNX file's metadata properties, as `graph.describe` wrote them."""
    return {key: json.loads(value) for key, value in properties.items()}


def model_ids(runs: Sequence[Run]) -> list[str]:
    """One short, unique name a run, fit for an address: its folder's."""
    ids: list[str] = []
    for run in runs:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.resolve().name).strip("-.") or "model"
        number, name = 1, stem
        while name in ids:
            number += 1
            name = f"{stem}-{number}"
        ids.append(name)
    return ids


def model_entries(described: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """One entry a model, from each one's id and parsed metadata."""
    kinds = [metadata["model"]["kind"] for metadata in described.values()]
    return [
        # named by its kind where that tells the models apart, else by its folder
        _entry(ident, _TITLES[kind] if kinds.count(kind) == 1 else ident, metadata)
        for (ident, metadata), kind in zip(described.items(), kinds, strict=True)
    ]


def _entry(ident: str, name: str, metadata: Mapping[str, Any]) -> Entry:
    model = metadata["model"]
    entry = {
        "id": ident,
        "name": name,
        "kind": "vit" if model["kind"] == "vit" else "cnn",  # to the page: one to look into, or one that only answers
        "model": model["kind"],
        "class_names": metadata["class_names"],
        "preprocessing": metadata["preprocessing"],
        "image_size": model["image_size"],
        "channels": model["channels"],
        "parameters": metadata["parameters"],
        "accuracy": metadata["accuracy"],
    }
    if model["kind"] != "vit":
        return entry
    config = build_config(ViTConfig, model)
    cells = patch_cells(config)
    return entry | {
        "depth": config.depth,
        "num_heads": config.num_heads,
        "dim": config.dim,
        "head_dim": config.head_dim,
        "patch_size": list(config.patch_size),
        "grid": list(config.grid),
        "cells": {
            "row_edges": list(cells.row_edges),
            "column_edges": list(cells.column_edges),
            "exact": cells.exact,
            "note": cells.note,
        },
        "has_class_token": config.has_class_token,
        "pool": config.pool,
        "position_similarity": metadata["position_similarity"],
    }


def models_document(entries: Sequence[Entry]) -> dict[str, Any]:
    return {"models": list(entries), "version": vitreous.__version__}


# --- test images to begin with -----------------------------------------------------------------------------------


def run_for_samples(runs: Sequence[Run]) -> Run:
    """The first that takes what the page draws, so that its test images fit the sheet; else the first of all."""
    shapes = ((run, (run.config.model.channels, *run.config.model.image_size)) for run in runs)
    return next((run for run, shape in shapes if shape == PAGE_IMAGE), runs[0])


def sample_digits(run: Run, count: int = SAMPLES) -> dict[str, Any]:
    """About `count` test images at the model's size, the classes in turn: {"samples": [{"label", "pixels"}]}.

    From the run's own test set where that is here already (nothing is fetched), else from the box, else digits.
    """
    dataset = _dataset_here(run)
    if dataset is None:
        boxed = BUNDLED / "samples.json"
        if run.config.data.name == "mnist" and run.config.model.image_size == (28, 28) and boxed.is_file():
            return dict(json.loads(boxed.read_text(encoding="utf-8")))
        loaded = load_digits()
        return _samples(loaded.splits["test"], loaded.class_names, run, count)
    return _samples(dataset.test, dataset.class_names, run, count)


def _dataset_here(run: Run) -> Dataset | None:
    name = run.config.data.name
    try:
        here = describe(name).cached if name in DATASETS else True
        return load_dataset(run.config.data) if here else None
    except DataError:  # a folder that was moved, say
        return None


def _samples(split: Split, class_names: Sequence[str], run: Run, count: int) -> dict[str, Any]:
    each = max(1, count // len(class_names))
    by_class = [torch.nonzero(split.labels == label).flatten()[:each].tolist() for label in range(len(class_names))]
    in_turn = [indices[turn] for turn in range(each) for indices in by_class if turn < len(indices)][:count]
    config = run.config.model
    images = resize(to_channels(split.images[in_turn], config.channels), config.image_size)
    return {
        "samples": [
            {"label": class_names[label], "pixels": base64.b64encode(image.numpy().tobytes()).decode()}
            for image, label in zip(images, split.labels[in_turn].tolist(), strict=True)
        ]
    }
