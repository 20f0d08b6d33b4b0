"""The Python API: what the command line does, as a handful of functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import nn

from vitreous import runs
from vitreous.api_run import Run
from vitreous.checkpoints import load_model
from vitreous.comparison import Comparison
from vitreous.config import Config
from vitreous.config.keywords import ConfigLike, as_config, change_model, configure_from_keywords
from vitreous.data.arrays import as_source
from vitreous.data.preprocessing import ImageLike
from vitreous.errors import ConfigError
from vitreous.evaluation.calibration import calibrate_run
from vitreous.evaluation.prediction import Evaluation
from vitreous.evaluation.predictions import Predictions
from vitreous.inspection.from_run import look_at_run
from vitreous.inspection.report import Look
from vitreous.models import build
from vitreous.runs import Calibration, is_run, report_folder
from vitreous.studies import compare as study
from vitreous.training import auto, loop
from vitreous.training.callbacks import Callback

RunLike = runs.Run | Path | str
Settings = Mapping[str, Any] | BaseModel | None


def create(config: ConfigLike = "vit", **model_settings: Any) -> nn.Module:
    """Return a freshly initialised model: `create("vit", depth=6, num_classes=26)`."""
    return build(change_model(config, model_settings, "create"))


def load(path: RunLike | None = None) -> nn.Module:
    """Return a trained model in eval mode: of a run, of a published checkpoint (timm, Hugging Face, torchvision, Google
    npz; `vitreous.checkpoints.load_model` has more options), or by default the bundled ViT."""
    if isinstance(path, Path | str) and not is_run(path) and Path(path).exists():
        return load_model(path)[0]
    return Run.of(path).load_model()


def fit(
    config: ConfigLike = auto.NAME,
    *,
    data: Any = None,
    out: Path | str | None = None,
    seed: int | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    model: Settings = None,
    train: Settings = None,
    augment: Settings = None,
    start: Settings = None,
    settings: Iterable[str] | Mapping[str, Any] = (),
    callbacks: Iterable[Callback | str] = (),
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    **fields: Any,
) -> Run:
    """Train a model on images and return the run: `fit("vit", data=(X, y), epochs=5, depth=6)`.

    `config` is the name of a preset, a Config, the configuration of a model, a dictionary or the path of a TOML file;
    by default, "auto", the data choose what is not named. `data` is a name, a path, arrays `(X, y)` or
    `((X, y), (X_test, y_test))`, a dictionary of these, a data frame, or a data set of (image, label). Every setting
    can be given by its name (`depth=6`, `val_fraction=0.2`), in its section (`train={"lr": 1e-3}`), or as
    `settings={"train.lr": 1e-3}`. `callbacks` are `vitreous.Callback`s, or "tensorboard", "wandb", "trackio". With
    `resume`, the unfinished run `out` goes on with its own configuration.
    """
    named = {"seed": seed, "epochs": epochs, "lr": lr, "batch_size": batch_size}
    keywords = {name: value for name, value in named.items() if value is not None} | fields
    sections = {"model": model, "train": train, "augment": augment, "start": start}
    chosen: Config | auto.AutoRequest
    if resume:
        unused = {"data": data, **sections, "settings": settings or None, **keywords}
        if given := [name for name, value in unused.items() if value is not None]:
            raise ConfigError(f"resume=True keeps the run's configuration: leave out {', '.join(given)}")
        chosen = Run.open(out).config if out is not None else Config()
    else:
        texts = settings if isinstance(settings, Mapping | str) else [*settings]
        change = partial(configure_from_keywords, sections=sections, settings=texts, keywords=keywords)
        source = None if data is None else as_source(data)
        if config == auto.NAME:
            chosen = auto.AutoRequest(source or "", changes=change)
        else:
            chosen = change(config)
            chosen = chosen if source is None else chosen.replace(data=chosen.data.replace(name=source))
    return Run.of(loop.fit(chosen, out, resume=resume, device=device, progress=progress, callbacks=callbacks))


def evaluate(
    run: RunLike | None = None, split: str = "test", *, data: Any = None, batch_size: int | None = None
) -> Evaluation:
    """Evaluate a run on a split of its data, or of other data (all that `fit` takes): `.accuracy`, `.confusion`, …"""
    return Run.of(run).evaluate(split, data=data, batch_size=batch_size)


def calibrate(run: RunLike, *, data: Any = None) -> Calibration:
    """Fit the temperature and the novelty score of a run on its validation images, and store them in it."""
    return calibrate_run(Run.of(run), None if data is None else as_source(data))


def predict(images: Any, run: RunLike | None = None) -> Predictions:
    """Predict your own images: one or several, of any size; a list of predictions.

    Paths, a folder, bytes, PIL images, arrays and tensors (uint8, or floats from 0 to 1): (H, W), (H, W, C), (C, H, W)
    or batches of these.
    """
    return Run.of(run).predict(images)


def look(
    image: ImageLike | None = None,
    run: RunLike | None = None,
    *,
    test_index: int | None = None,
    against: RunLike | None = None,
    target: str | None = None,
    patch: int | None = None,
    without_heads: Sequence[tuple[int, int]] = (),
    without_patches: Sequence[int] = (),
    out: Path | str | None = None,
) -> Look:
    """Look inside a model on one image: write a report, and return every map and array behind it.

    `without_heads` (layer, head) and `without_patches`, counted from 0, are removed from the model first.
    """
    opened = Run.of(run)
    return look_at_run(
        opened,
        image,
        test_index=test_index,
        against=None if against is None else Run.of(against),
        target=target,
        patch=patch,
        without_heads=without_heads,
        without_patches=without_patches,
        out=report_folder(out, Path("runs") / f"look-{opened.config.name}"),
    )


def compare(
    *subjects: ConfigLike | runs.Run,
    data: Any = None,
    seeds: int = 1,
    equal: str | None = None,
    out: Path | str | None = None,
    settings: Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Train presets, or take runs, and report which is better, by how much, and how certain that is."""
    chosen = [one if isinstance(one, runs.Run | Path | str) else as_config(one) for one in subjects]
    return study.compare(
        chosen or ("vit", "cnn"),
        data=None if data is None else as_source(data),
        seeds=seeds,
        equal=equal,
        out=out,
        settings=[settings] if isinstance(settings, str) else settings,
        progress=progress,
    )
