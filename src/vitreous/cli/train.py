"""`vitreous train`: train a run, by `vitreous.training`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from vitreous.cli.find_lr import suggest_lr
from vitreous.cli.options import (
    DataOption,
    DeviceOption,
    FitOption,
    JsonOption,
    OutOption,
    SeedOption,
    SetOption,
    SkipCorruptOption,
)
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def train(
    preset: Annotated[
        str | None, Argument(help="A preset (`vitreous presets`); default: chosen from the data.")
    ] = None,
    data: DataOption = None,
    fit_images: FitOption = None,
    skip_corrupt: SkipCorruptOption = False,
    seed: SeedOption = None,
    epochs: Annotated[float | None, Option(help="Passes over the training data; small sets: 10 steps each.")] = None,
    seconds: Annotated[float | None, Option(help="Train for about this long instead.")] = None,
    early_stopping: Annotated[
        int | None, Option(help="Stop after this many validations without improvement, and keep the best.")
    ] = None,
    keep: Annotated[str | None, Option(help="Which weights: last, or best on validation.")] = None,
    class_weights: Annotated[str | None, Option(help="auto: images of rare classes count more.")] = None,
    find_lr: Annotated[bool, Option("--find-lr", help="Train nothing: suggest a learning rate and plot why.")] = False,
    out: OutOption = None,
    settings: SetOption = None,
    config_file: Annotated[Path | None, Option("--config", help="A TOML file merged into the preset.")] = None,
    weights: Annotated[str | None, Option("--from", help="Fine-tune: start from this run or checkpoint.")] = None,
    teacher: Annotated[str | None, Option(help="Distil: a run, or bundled:cnn, to learn from as well.")] = None,
    head_only: Annotated[bool, Option("--head-only", help="Train the head alone (a linear probe).")] = False,
    resume: Annotated[bool, Option("--resume", help="Continue the run named by -o.")] = False,
    threads: Annotated[int | None, Option(help="CPU threads per process; default: share all cores.")] = None,
    processes: Annotated[int, Option(help="Data-parallel processes on this machine.", min=1)] = 1,
    shard: Annotated[bool, Option("--shard", help="Divide a ViT among the processes (FSDP), for memory.")] = False,
    compile_: Annotated[bool, Option("--compile", help="torch.compile the model.")] = False,
    device: DeviceOption = "auto",
    log: Annotated[list[str] | None, Option(help="Also log to tensorboard, wandb or trackio; repeatable.")] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="The same as --log tensorboard.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a preset into a run folder; Ctrl-C saves, --resume continues."""
    from vitreous.config import Config, configure
    from vitreous.runs import Run
    from vitreous.training.auto import AutoRequest
    from vitreous.training.launch import is_launched, run_in_processes
    from vitreous.training.loop import fit
    from vitreous.training.lost_ranks import RankLost

    flags = {
        "data.fit": fit_images,
        "data.skip_corrupt": skip_corrupt or None,
        "train.epochs": epochs,
        "train.budget_seconds": seconds,
        "train.early_stopping": early_stopping,
        "train.keep": keep,
        "train.class_weights": class_weights,
        "train.threads": threads,
        "train.compile": compile_ or None,
        "train.shard": shard or None,
        "train.freeze": "backbone" if head_only else None,
        "start.weights": weights,
        "train.teacher": teacher,
    }
    # the value of a setting is TOML, whose strings, numbers and booleans JSON writes alike
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flags.items() if value is not None]
    settings = [*(settings or ()), *given]
    if find_lr and (resume or processes > 1):
        raise ConfigError("--find-lr tries a new model in one process: leave out --resume and --processes")
    if resume:
        unused = {"the preset": preset, "--data": data, "--seed": seed, "--config": config_file, "settings": settings}
        if named := [name for name, value in unused.items() if value not in (None, [])]:
            raise ConfigError(f"--resume keeps the run's configuration: leave out {', '.join(named)}")
        if out is None:
            raise ConfigError("--resume needs the run to continue: name it with -o RUN")
        config: Config | AutoRequest = Run.open(out).config
    elif preset in (None, "auto"):
        if data is None:
            raise ConfigError(
                "name your images, as in `vitreous train --data photos/`, or a preset with data of its own, as in"
                " `vitreous train mnist-fast`; `vitreous presets` lists them"
            )
        config = AutoRequest(data, tuple(settings), config_file, seed)
    else:
        config = configure(preset, file=config_file, settings=settings, data=data, seed=seed)
    if find_lr:
        arguments = {"": preset, "--data": data, "--seed": seed, "--config": config_file}
        suggest_lr(config, settings, arguments, device, out, as_json)
        return
    loggers = dict.fromkeys([*(log or ()), *(["tensorboard"] if tensorboard else ())])
    if processes > 1 and not is_launched(processes):
        raise Exit(run_in_processes(processes, sys.argv[1:]))
    try:
        run = fit(config, out, resume=resume, device=device, callbacks=loggers)
    except RankLost as lost:
        if lost.is_reported:
            raise Exit(lost.exit_code) from None
        raise
    if os.environ.get("RANK", "0") == "0":
        test = run.record.results.test
        line = f"{run.path}: trained on all images, without a test set"  # data.test_fraction=0
        if test is not None:
            accuracy = f"{test.accuracy:.2%} on the test set ({test.correct} of {test.count})"
            early = "" if run.steps_trained == run.resolved.steps else f", stopped early at step {run.steps_trained}"
            line = f"{run.path}: {accuracy}, {test.train_seconds:.0f} s of training{early}"
        results = {} if test is None else test.model_dump(mode="json")
        print_result(line, value={"run": str(run.path), **results}, as_json=as_json)
