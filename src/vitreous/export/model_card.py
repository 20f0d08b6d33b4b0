"""The model card of a run: README.md of a Hugging Face repository, with its measured results."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import vitreous
from vitreous.data.copies import PREFIX
from vitreous.evaluation.metrics import wilson_interval
from vitreous.models.summary import count_parameters_of
from vitreous.reports.formats import by, join, percent, percent_decimals, plural
from vitreous.runs import Run

RUN_FOLDER = "vitreous"  # of the repository
_HUB_NAMES = {"mnist": "mnist", "fashion-mnist": "fashion_mnist", "cifar10": "cifar10"}
_MOST_CLASSES = 40

_CARD = """---
{front_matter}
---

# {title}

{summary}

## Intended use

Classifying {images} into {classes}. Images of anything else are classified, too: the model has no class for them.

It was trained on the data below alone; measure it on your own before you rely on it.

## Data

{data}

## Preprocessing

{preprocessing}

## Results

{results}

## How to load it

{loading}
"""


def model_card(run: Run, limits: Sequence[str], license: str | None, *, for_transformers: bool) -> str:
    """Return the text of README.md; `limits` say what the repository cannot do."""
    kind, preprocessing = run.config.model.kind, run.preprocessing
    size, colours = by(*preprocessing.image_size), "gray" if preprocessing.channels == 1 else "colour"
    names = run.class_names
    listed = join(names[:_MOST_CLASSES]) + (f" and {len(names) - _MOST_CLASSES} more" * (len(names) > _MOST_CLASSES))
    article = "ViT" if kind == "vit" else kind
    return _CARD.format(
        front_matter=_front_matter(run, license, for_transformers),
        title=f"{run.config.name} on {_data_name(run)}",
        summary=(
            f"A {article} of {count_parameters_of(run.config.model):,} parameters for {size} {colours} images, trained"
            f" with vitreous {run.record.vitreous}."
        ),
        images=f"{colours} images of {size} pixels, or images that are resized to it,",
        classes=f"{plural(len(names), 'class', 'classes')}: {listed}",
        data=_data(run),
        preprocessing=_preprocessing(run, limits),
        results=_results(run),
        loading=_loading(run, for_transformers),
    )


def _data_name(run: Run) -> str:
    """Return the name of the data without the folders they are in; arrays have none."""
    if run.record.data.name.startswith(PREFIX):
        return "own data"
    return os.path.basename(run.record.data.name.rstrip("/\\")) or "unknown data"


def _front_matter(run: Run, license: str | None, for_transformers: bool) -> str:
    """Return YAML; every value is written as JSON, which YAML includes."""
    name, test = _data_name(run), run.record.results.test
    values: dict[str, Any] = {} if license is None else {"license": license}
    values |= {
        "library_name": "transformers" if for_transformers else "vitreous",
        "pipeline_tag": "image-classification",
        "tags": ["vitreous", "image-classification", run.config.model.kind],
    }
    if name in _HUB_NAMES:
        values["datasets"] = [_HUB_NAMES[name]]
    if test is not None:
        accuracy = {"type": "accuracy", "value": round(test.accuracy, 6), "name": "Test accuracy"}
        data = {"name": name, "type": _HUB_NAMES.get(name, name), "split": "test"}
        result = {"task": {"type": "image-classification"}, "dataset": data, "metrics": [accuracy]}
        values |= {"metrics": ["accuracy"], "model-index": [{"name": run.config.name, "results": [result]}]}
    return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def _data(run: Run) -> str:
    record = run.record.data
    counts = join(f"{count:,} for {_SPLITS.get(split, split)}" for split, count in record.images.items() if count)
    if not counts:
        return "Not known: the weights were converted from another format."
    lines = [f"`{_data_name(run)}`: images {counts}.", *(f"- {note}" for note in record.notes)]
    return "\n".join([lines[0], "", *lines[1:]] if record.notes else lines)


_SPLITS = {"train": "training", "val": "validation", "test": "the test"}


def _preprocessing(run: Run, limits: Sequence[str]) -> str:
    preprocessing = run.preprocessing
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    text = f"Resized to {by(*preprocessing.image_size)} (bilinear, antialiased), then (pixel / 255 − {mean}) / {std}."
    return text + ("\n\n" + "\n".join(f"- {note}" for note in limits) if limits else "")


def _results(run: Run) -> str:
    test = run.record.results.test
    if test is None:
        return "Not measured: this run has no test images."
    interval, decimals = wilson_interval(test.correct, test.count), percent_decimals(test.count)
    rows = {
        "accuracy": f"{percent(test.accuracy, decimals)} ({test.correct:,} of {test.count:,})",
        "95 % interval (Wilson)": f"{percent(interval.low, decimals)} to {percent(interval.high, decimals)}",
        "negative log likelihood": f"{test.nll:.4f}",
        "expected calibration error": percent(test.calibration_error, 2),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    seed = f"One training, seed {run.config.seed}"
    where = f" on {run.record.resolved.hardware}" if run.record.resolved and run.record.resolved.hardware else ""
    return f"| on the test images | |\n|---|---|\n{table}\n\n{seed}; {test.train_seconds:,.0f} s{where}."


def _loading(run: Run, for_transformers: bool) -> str:
    ours = (
        f"With vitreous {vitreous.__version__} or newer, from a copy of this repository; the whole preprocessing and"
        f" calibration are in `{RUN_FOLDER}/`:\n\n```python\nimport vitreous\n\n"
        f'run = vitreous.Run.open("{RUN_FOLDER}")\nprint(run.predict("image.png"))\n```'
    )
    if not for_transformers:
        return ours
    gray = '.convert("L")' if run.preprocessing.channels == 1 else ""
    return (
        "With transformers, from a copy of this repository (its folder, or its name on the Hub, instead of `.`):\n\n"
        "```python\nfrom PIL import Image, ImageOps\n"
        "from transformers import AutoImageProcessor, ViTForImageClassification\n\n"
        'processor = AutoImageProcessor.from_pretrained(".")\n'
        'model = ViTForImageClassification.from_pretrained(".")\n'
        f'image = ImageOps.exif_transpose(Image.open("image.png")){gray}\n'
        'logits = model(**processor(image, return_tensors="pt")).logits\n'
        "print(model.config.id2label[int(logits.argmax())], float(logits.softmax(-1).max()))\n```\n\n" + ours
    )
