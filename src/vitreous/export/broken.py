"""The broken ViT of the page (`bundled:broken`): its weights, and what the doctor reports about it.

It is the article's with every flaw fixed but one: attention runs over the images of a batch. The class token never
meets the patches, so every image gets the same prediction. (In the article, a normalisation across the tokens lets a
trace of the image through.)
"""

from __future__ import annotations

import json
from typing import Any

from vitreous.config import ArticleViTConfig
from vitreous.downloads.files import atomic_write_text
from vitreous.runs import BUNDLED, Run

FINDINGS = BUNDLED / "broken" / "findings.json"
SHOWN = ("image-ignored", "tokens-never-attend")  # of the doctor's findings, those that make it useless


def broken_files() -> dict[str, bytes]:
    """Return broken.safetensors and broken.json."""
    from safetensors.torch import save

    from vitreous.models.article import ArticleViT

    run = Run.open("bundled:broken")
    model, config = run.load_model(), run.config.model
    assert isinstance(model, ArticleViT)
    assert isinstance(config, ArticleViTConfig)
    weights = dict(model.named_parameters())  # not the numbers 0 … 16 of the positions
    tensors = {name.removeprefix("model."): value.detach().contiguous() for name, value in weights.items()}
    about = {
        "mean": run.preprocessing.mean[0],
        "std": run.preprocessing.std[0],
        "heads": config.num_heads,
        **json.loads(FINDINGS.read_text(encoding="utf-8")),
    }
    return {"broken.safetensors": save(tensors), "broken.json": json.dumps(about, ensure_ascii=False).encode()}


def write_findings() -> None:
    """Diagnose the bundled run and measure it one image at a time; needs MNIST."""
    atomic_write_text(FINDINGS, json.dumps(measure(Run.open("bundled:broken")), indent=1, ensure_ascii=False) + "\n")


def measure(run: Run) -> dict[str, Any]:
    """Return the doctor's findings, and the test accuracy in batches and one image at a time."""
    from vitreous.doctor import diagnose_target
    from vitreous.evaluation.prediction import compute_logits
    from vitreous.runs import load_run_data

    found = {one.id: one for one in diagnose_target(str(run.path)).findings}
    test = load_run_data(run).test
    model, labels = run.load_model(), test.labels
    correct = {
        size: int((compute_logits(model, test, run.preprocessing, size).argmax(dim=1) == labels).sum())
        for size in (run.config.train.eval_batch_size, 1)
    }
    return {
        "findings": [
            {"id": name, "measured": found[name].measured, "why": found[name].why, "fix": found[name].fix}
            for name in SHOWN
        ],
        "accuracy": [{"batch": size, "share": count / len(labels)} for size, count in correct.items()],
    }
