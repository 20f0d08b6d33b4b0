"""The Python API: what the command line does, as a handful of functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vitreous.checkpoints import load_model
from vitreous.comparison import Comparison
from vitreous.config import Config, configure
from vitreous.data.preprocessing import ImageLike
from vitreous.evaluation.calibration import calibrate_run
from vitreous.evaluation.prediction import Evaluation, Prediction, evaluate_run, predict_images
from vitreous.inspection.from_run import look_at_run
from vitreous.inspection.report import Look
from vitreous.models import build
from vitreous.runs import Calibration, Run, is_run, open_run, report_folder
from vitreous.studies import compare as study
from vitreous.training import loop


def _as_run(run: Run | Path | str | None) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def create(config: Config | str = "vit", **model_settings: Any) -> nn.Module:
    """Return a freshly initialised model: `create("vit", depth=6, num_classes=26)`."""
    return build(configure(config).model.replace(**model_settings))


def load(path: Run | Path | str | None = None) -> nn.Module:
    """Return a trained model in eval mode: of a run, of a published checkpoint (timm, Hugging Face, torchvision, Google
    npz; `vitreous.checkpoints.load_model` has more options), or by default the bundled ViT."""
    if isinstance(path, Path | str) and not is_run(path) and Path(path).exists():
        return load_model(path)[0]
    return _as_run(path).load_model()


def fit(
    config: Config | str = "vit",
    *,
    data: str | Path | None = None,
    out: Path | str | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
) -> Run:
    """Train a preset or a configuration; `settings` are `section.field=value`, as for `--set`."""
    chosen = configure(config, settings=settings, data=data, seed=seed)
    return loop.fit(chosen, out, resume=resume, device=device, progress=progress)


def evaluate(
    run: Run | Path | str | None = None,
    split: str = "test",
    *,
    data: str | Path | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluate a run on a split of its data, or of other data: `.accuracy`, `.nll`, `.logits`, …"""
    return evaluate_run(_as_run(run), split, batch_size, None if data is None else str(data))


def calibrate(run: Run | Path | str, *, data: str | Path | None = None) -> Calibration:
    """Fit the temperature and the novelty score of a run on its validation images, and store them in it."""
    opened = _as_run(run)
    return calibrate_run(opened, None if data is None else str(data))


def predict(images: ImageLike | Sequence[ImageLike], run: Run | Path | str | None = None) -> list[Prediction]:
    """Predict your own images: paths, bytes, PIL images or uint8 arrays, of any size."""
    several = images if isinstance(images, list | tuple) else [images]
    return predict_images(_as_run(run), several)


def look(
    image: ImageLike | None = None,
    run: Run | Path | str | None = None,
    *,
    test_index: int | None = None,
    against: Run | Path | str | None = None,
    target: str | None = None,
    patch: int | None = None,
    without_heads: Sequence[tuple[int, int]] = (),
    without_patches: Sequence[int] = (),
    out: Path | str | None = None,
) -> Look:
    """Look inside a model on one image: write a report, and return every map and array behind it.

    `without_heads` (layer, head) and `without_patches`, counted from 0, are removed from the model first.
    """
    opened = _as_run(run)
    return look_at_run(
        opened,
        image,
        test_index=test_index,
        against=None if against is None else _as_run(against),
        target=target,
        patch=patch,
        without_heads=without_heads,
        without_patches=without_patches,
        out=report_folder(out, Path("runs") / f"look-{opened.config.name}"),
    )


def compare(
    *subjects: str | Path | Config | Run,
    data: str | None = None,
    seeds: int = 1,
    equal: str | None = None,
    out: Path | str | None = None,
    settings: Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Train presets, or take runs, and report which is better, by how much, and how certain that is."""
    return study.compare(
        subjects or ("vit", "cnn"), data=data, seeds=seeds, equal=equal, out=out, settings=settings, progress=progress
    )
