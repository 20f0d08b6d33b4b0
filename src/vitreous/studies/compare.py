"""Train presets, then compare: the main job in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitreous.comparison import Comparison, write_report
from vitreous.comparison.from_runs import common_dataset, names_of, results_from_runs
from vitreous.config import Config, override
from vitreous.config.presets import PRESETS, preset
from vitreous.data.datasets import fetch
from vitreous.errors import ConfigError, DataError, RunError
from vitreous.runs import CONFIG, Run, is_run, report_folder
from vitreous.training.loop import TrainingInterrupted, fit


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
    """Presets (trained now, each by its own recipe, on the same data and split) or runs → a report in `out`.

    `equal="epochs"`: every preset gets as many epochs as the one with most; `"seconds"`: as many seconds of training as
    the first one took.
    """
    if equal not in (None, "epochs", "seconds"):
        raise ConfigError(f"--equal {equal!r}: choose epochs or seconds")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least 1")
    chosen = [_subject(subject, data, settings) for subject in subjects]
    if len(chosen) < 2:
        raise ConfigError(
            f"a comparison needs at least two models, not {len(chosen)}: as in `vitreous compare vit cnn`"
        )
    configs = [one for one in chosen if isinstance(one, Config)]
    _check_settings(configs, settings, equal)
    if equal == "epochs":
        most = max(config.train.epochs for config in configs)
        chosen = [_with_train(one, epochs=most) if isinstance(one, Config) else one for one in chosen]
    twice = [name for name, count in Counter(config.name for config in configs).items() if count > 1]
    if twice:
        raise ConfigError(f"{twice[0]!r} was named twice: --seeds 2 trains each preset twice, with different seeds")
    folder = report_folder(out, _default_folder(chosen))
    runs: list[Run] = []
    for one in chosen:
        if isinstance(one, Run):
            runs.append(one)
            continue
        if equal == "seconds" and runs:
            one = _with_train(one, budget_seconds=runs[0].test_results.train_seconds)
        for seed in range(one.seed, one.seed + seeds):
            path = folder / "runs" / (one.name if seeds == 1 else f"{one.name}-seed{seed}")
            try:
                runs.append(train_or_reuse(one.replace(seed=seed), path, device, progress))
            except TrainingInterrupted as stop:
                raise TrainingInterrupted(
                    f"stopped and saved; the same command with -o {folder} goes on where it stopped", stop.signal_number
                ) from None
    return report_on(
        runs, folder, {"equal": equal or "each its own recipe", "seeds": seeds, "settings": list(settings)}
    )


#: digits has a fortieth of MNIST's images: so many more epochs give about a third of the steps, in a minute or two
_DIGITS_EPOCHS = 40


def demo(
    out: Path | str | None = None, data: str | None = None, device: str = "auto", say: Callable[[str], None] = print
) -> Comparison:
    """A ViT against a CNN on MNIST; on digits, which needs no network, where MNIST cannot be had."""
    folder = report_folder(out, Path("runs/demo"))
    if data is None:
        try:
            fetch("mnist")
            data = "mnist"
        except DataError as error:
            say(f"MNIST is out of reach, so this runs on digits (1,797 images that come with scikit-learn): {error}")
            data = "digits"
    settings = [f"train.epochs={_DIGITS_EPOCHS}"] if data == "digits" else []
    return compare(("vit", "cnn"), data=data, out=folder, settings=settings, device=device)


def report_on(runs: Sequence[Run], folder: Path, settings: dict[str, Any]) -> Comparison:
    """The comparison of finished runs, written into `folder`."""
    dataset = common_dataset(runs)
    names = list(dict.fromkeys(names_of(runs)))
    return write_report(
        results_from_runs(runs),
        dataset.test.images.numpy(),
        dataset.class_names,
        folder,
        title=f"{' against '.join(names)} on {dataset.name}",
        data_name=dataset.name,
        notes=dataset.notes,
        settings=settings,
    )


def _subject(subject: str | Path | Config | Run, data: str | None, settings: Sequence[str]) -> Config | Run:
    if isinstance(subject, Run):
        return _finished(subject)
    if isinstance(subject, Config):
        config = subject
    elif isinstance(subject, str) and subject in PRESETS:
        config = preset(subject)
    elif is_run(subject) or Path(subject).is_dir():
        return _finished(Run.open(subject))
    else:
        config = preset(str(subject))  # says what there is
    if data is not None:
        config = config.replace(data=config.data.replace(name=data))
    return override(config, [setting for setting in settings if _fits(config, setting)])


def _fits(config: Config, setting: str) -> bool:
    """Whether a setting speaks of this model: `model.depth=6` is for the ViT of a pair, not for its CNN."""
    path = setting.partition("=")[0].strip().split(".")
    return path[0] != "model" or len(path) != 2 or path[1] in type(config.model).model_fields


def _check_settings(configs: Sequence[Config], settings: Sequence[str], equal: str | None) -> None:
    if not configs and (settings or equal):
        raise ConfigError("--set, --epochs and --equal change how presets are trained, and only runs were named")
    for setting in settings:
        if not any(_fits(config, setting) for config in configs):
            override(configs[0], [setting])  # says what is wrong with it


def _finished(run: Run) -> Run:
    if not run.is_done:
        raise RunError(f"{str(run.path)!r} is not finished: go on with `vitreous train --resume -o {run.path}` first")
    return run


def _with_train(config: Config, **changes: Any) -> Config:
    return config.replace(train=config.train.replace(**changes))


def _default_folder(chosen: Sequence[Config | Run]) -> Path:
    names = "-".join(one.name if isinstance(one, Config) else one.path.name for one in chosen)
    return Path("runs") / f"compare-{names}"


def same_training(done: Config, asked: Config) -> bool:
    """Whether a run was configured as asked; what the data and the starting weights settle is taken from the run."""
    if done.model.kind != asked.model.kind:
        return False
    settled = {name: getattr(done.model, name) for name in ("image_size", "channels", "num_classes")}
    model = done.model if asked.start.weights else asked.model.replace(**settled)
    return asked.replace(model=model) == done


def train_or_reuse(config: Config, path: Path, device: str, progress: bool) -> Run:
    """Trained now; a comparison that was interrupted goes on where it stopped."""
    if (path / CONFIG).exists():
        run = Run.open(path)
        if not same_training(run.config, config):
            raise RunError(f"{str(path)!r} holds a run with other settings: name another folder with -o")
        return run if run.is_done else fit(config, path, resume=True, device=device, progress=progress)
    return fit(config, path, device=device, progress=progress)
