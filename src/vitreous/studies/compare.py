"""Train presets, then compare them: `vitreous compare` and `vitreous demo`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitreous.comparison import Comparison, write_comparison
from vitreous.comparison.from_runs import load_test_data, names_of, results_from_runs, training_notes
from vitreous.config import Config, configure, override
from vitreous.config.presets import PRESETS, preset
from vitreous.data.datasets import fetch
from vitreous.errors import ConfigError, DataError, RunError
from vitreous.runs import Run, is_run, report_folder
from vitreous.studies.grid import train_or_reuse
from vitreous.training import auto
from vitreous.training.auto import AutoRequest
from vitreous.training.loop import TrainingInterrupted

#: digits has 1/40 of MNIST's images: this many epochs are about a third of the steps, in a minute or two
_DIGITS_EPOCHS = 40


def compare(
    subjects: Sequence[str | Path | Config | Run] = ("vit", "cnn"),
    *,
    data: str | None = None,
    seeds: int = 1,
    equal: str | None = None,
    out: Path | str | None = None,
    settings: Sequence[str] = (),
    device: str = "auto",
    progress: bool = True,
) -> Comparison:
    """Compare presets (trained now, each by its own recipe, on the same data and split) or runs; write a report.

    `equal="epochs"` trains every preset for as many epochs as the longest; `"seconds"`, for as long as the first took.
    """
    if equal not in (None, "epochs", "seconds"):
        raise ConfigError(f"--equal {equal!r}: choose epochs or seconds")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least 1")
    if len(subjects) < 2:
        raise ConfigError(
            f"a comparison needs at least two models, not {len(subjects)}: as in `vitreous compare vit cnn`"
        )
    chosen = [_subject(subject, data, settings) for subject in subjects]
    configs = [one for one in chosen if isinstance(one, Config)]
    _check(configs, settings, equal)
    if equal == "epochs":
        most = max(config.train.epochs for config in configs)
        chosen = [_with_train(one, epochs=most) if isinstance(one, Config) else one for one in chosen]
    names = "-".join(one.name if isinstance(one, Config) else one.path.name for one in chosen)
    folder = report_folder(out, Path("runs") / f"compare-{names}")
    runs: list[Run] = []
    for one in chosen:
        if isinstance(one, Run):
            runs.append(one)
            continue
        if equal == "seconds" and runs:
            one = _with_train(one, budget_seconds=runs[0].test_results.train_seconds)
        runs += _train_seeds(one, seeds, folder, device, progress)
    datasets = load_test_data(runs)
    dataset = datasets[0]
    notes, warnings = training_notes(runs, datasets)
    return write_comparison(
        results_from_runs(runs, datasets),
        dataset.test,
        dataset.class_names,
        folder,
        title=f"{' against '.join(dict.fromkeys(names_of(runs)))} on {dataset.name}",
        data_name=dataset.name,
        notes=[*dataset.notes, *notes],
        warnings=warnings,
        settings={"equal": equal or "each its own recipe", "seeds": seeds, "settings": list(settings)},
    )


def demo(
    out: Path | str | None = None, data: str | None = None, device: str = "auto", log: Callable[[str], None] = print
) -> Comparison:
    """Compare a ViT with a CNN on MNIST; where MNIST cannot be downloaded, on digits, which need no network."""
    folder = report_folder(out, Path("runs/demo"))
    if data is None:
        try:
            fetch("mnist")
            data = "mnist"
        except DataError as error:
            log(f"MNIST is out of reach, so this runs on digits (1,797 images that come with scikit-learn): {error}")
            data = "digits"
    settings = ["train.precision=auto"]  # of both, so that their training times can be compared
    if data == "digits":
        settings.append(f"train.epochs={_DIGITS_EPOCHS}")
    return compare(("mnist-vit", "cnn"), data=data, out=folder, settings=settings, device=device)


def _subject(subject: str | Path | Config | Run, data: str | None, settings: Sequence[str]) -> Config | Run:
    """Return a configuration to train, with the settings that apply to it, or a finished run."""
    if isinstance(subject, Config | Run):
        opened = subject
    elif subject == auto.NAME:
        if data is None:
            raise ConfigError("`auto` chooses a training from the data: name some with --data")
        return auto.choose(AutoRequest(data, tuple(one for one in settings if applies(Config(), one))))
    elif subject not in PRESETS and (is_run(subject) or Path(subject).is_dir()):
        opened = Run.open(subject)
    else:
        opened = preset(str(subject))  # an unknown name raises an error that lists the presets
    if isinstance(opened, Config):
        applicable = [setting for setting in settings if applies(opened, setting)]
        return configure(opened, settings=applicable, data=data)
    if not opened.is_done:
        raise RunError(
            f"{str(opened.path)!r} is not finished: go on with `vitreous train --resume -o {opened.path}` first"
        )
    return opened


def applies(config: Config, setting: str) -> bool:
    """Return whether this model has the setting: `model.depth=6` is for the ViT of a pair, not for its CNN."""
    path = setting.partition("=")[0].strip().split(".")
    return path[0] != "model" or len(path) != 2 or path[1] in type(config.model).model_fields


def _check(configs: Sequence[Config], settings: Sequence[str], equal: str | None) -> None:
    if not configs and (settings or equal):
        raise ConfigError("--set, --epochs and --equal change how presets are trained, and only runs were named")
    for setting in settings:
        if not any(applies(config, setting) for config in configs):
            override(configs[0], [setting])  # raises an error that names the setting
    for name, count in Counter(config.name for config in configs).items():
        if count > 1:
            raise ConfigError(f"{name!r} was named twice: --seeds 2 trains each preset twice, with different seeds")


def _with_train(config: Config, **changes: Any) -> Config:
    return config.replace(train=config.train.replace(**changes))


def _train_seeds(config: Config, seeds: int, folder: Path, device: str, progress: bool) -> list[Run]:
    runs = []
    for seed in range(config.seed, config.seed + seeds):
        path = folder / "runs" / (config.name if seeds == 1 else f"{config.name}-seed{seed}")
        try:
            runs.append(train_or_reuse(config.replace(seed=seed), path, device, progress))
        except TrainingInterrupted as stop:
            raise TrainingInterrupted(
                f"stopped and saved; the same command with -o {folder} goes on where it stopped", stop.signal_number
            ) from None
    return runs
