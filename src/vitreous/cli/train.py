"""Train one model or several: `vitreous train`, `compare`, `demo` and `transfer`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from vitreous.cli.options import DataOption, DeviceOption, JsonOption, OutOption, SeedOption, SetOption
from vitreous.cli.output import log, print_result
from vitreous.errors import ConfigError


def train(
    preset: Annotated[str | None, Argument(help="A preset (`vitreous presets`).")] = None,
    data: DataOption = None,
    seed: SeedOption = None,
    epochs: Annotated[float | None, Option(help="Passes over the training data.")] = None,
    seconds: Annotated[float | None, Option(help="Train for about this long instead.")] = None,
    out: OutOption = None,
    settings: SetOption = None,
    config_file: Annotated[Path | None, Option("--config", help="A TOML file merged into the preset.")] = None,
    weights: Annotated[str | None, Option("--from", help="Fine-tune: start from this run or checkpoint.")] = None,
    teacher: Annotated[str | None, Option(help="Distil: a run, or bundled:cnn, to learn from as well.")] = None,
    head_only: Annotated[bool, Option("--head-only", help="Train the head alone (a linear probe).")] = False,
    resume: Annotated[bool, Option("--resume", help="Continue the run named by -o.")] = False,
    threads: Annotated[int | None, Option(help="CPU threads per process; default: share all cores.")] = None,
    processes: Annotated[int, Option(help="Data-parallel processes on this machine.", min=1)] = 1,
    compile_: Annotated[bool, Option("--compile", help="torch.compile the model.")] = False,
    device: DeviceOption = "auto",
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a preset into a run folder; Ctrl-C saves, --resume continues."""
    from vitreous.config.overrides import configure
    from vitreous.runs import Run
    from vitreous.training.launch import is_launched, run_in_processes
    from vitreous.training.loop import fit

    flags = {
        "train.epochs": epochs,
        "train.budget_seconds": seconds,
        "train.threads": threads,
        "train.compile": compile_ or None,
        "train.freeze": "backbone" if head_only else None,
        "start.weights": weights,
        "train.teacher": teacher,
    }
    # the value of a setting is TOML, whose strings, numbers and booleans JSON writes alike
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flags.items() if value is not None]
    settings = [*(settings or ()), *given]
    if resume:
        unused = {"the preset": preset, "--data": data, "--seed": seed, "--config": config_file, "settings": settings}
        if named := [name for name, value in unused.items() if value not in (None, [])]:
            raise ConfigError(f"--resume keeps the run's configuration: leave out {', '.join(named)}")
        if out is None:
            raise ConfigError("--resume needs the run to continue: name it with -o RUN")
        config = Run.open(out).config
    elif preset is None:
        raise ConfigError("name a preset, as in `vitreous train vit`; `vitreous presets` lists them")
    else:
        config = configure(preset, file=config_file, settings=settings, data=data, seed=seed)
    if processes > 1 and not is_launched(processes):
        raise Exit(run_in_processes(processes, sys.argv[1:]))
    run = fit(config, out, resume=resume, device=device, tensorboard=tensorboard)
    if os.environ.get("RANK", "0") == "0":
        test = run.test_results
        accuracy = f"{test.accuracy:.2%} on the test set ({test.correct} of {test.count})"
        print(f"{run.path}: {accuracy}, {test.train_seconds:.0f} s of training")


def compare(
    subjects: Annotated[list[str] | None, Argument(help="Presets (trained now) or runs; default: vit cnn.")] = None,
    data: DataOption = None,
    seeds: Annotated[int, Option(help="Trainings of each preset, with different seeds.", min=1)] = 1,
    equal: Annotated[str | None, Option(help="`epochs` or `seconds`: the same for all presets.")] = None,
    epochs: Annotated[float | None, Option(help="Train every preset for this many epochs.")] = None,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train presets (or take runs) and report which is better, by how much, and how certain that is."""
    from vitreous.comparison import render_table
    from vitreous.studies import compare as study

    settings = (settings or []) + ([f"train.epochs={epochs}"] if epochs is not None else [])
    result = study.compare(
        subjects or ["vit", "cnn"], data=data, seeds=seeds, equal=equal, out=out, settings=settings, device=device
    )
    table = render_table(result)
    print_result(table, result.verdict, f"Report: {result.report}", value=result.as_dict(), as_json=as_json)


def demo(out: OutOption = None, data: DataOption = None, device: DeviceOption = "auto") -> None:
    """Compare a ViT with a CNN on MNIST, the main job in one command; without network, on digits."""
    from vitreous.comparison import render_table
    from vitreous.studies import compare as study

    result = study.demo(out, data, device, log)
    print_result(render_table(result), result.verdict, f"Report: {result.report}")


def transfer(
    source: Annotated[str, Option("--from-data", help="Pre-train on these images.")] = "fashion-mnist",
    target: Annotated[str, Option("--to", help="Then learn these, from few labels.")] = "mnist",
    per_class: Annotated[str, Option(help="Labelled images per class, as in 10,100.")] = "10,100,1000",
    seeds: Annotated[int, Option(help="Trainings of each kind.", min=2)] = 3,
    preset: Annotated[str, Option(help="A ViT preset.")] = "vit",
    pretrain_epochs: Annotated[float, Option(help="Epochs of pre-training.")] = 5.0,
    epochs: Annotated[float, Option(help="Epochs on the target, but at least --fewest-steps.")] = 2.0,
    fewest_steps: Annotated[int, Option(help="Minimum number of steps on the target.", min=1)] = 300,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure what pre-training on other images gains when labels are few; with -o, a stopped command continues."""
    from vitreous.studies import transfer as study

    try:
        counts = [int(part) for part in per_class.split(",")]
    except ValueError:
        raise ConfigError(f"--per-class {per_class!r}: expected whole numbers, as in 10,100,1000") from None
    result = study.transfer(
        source, target, counts, seeds, preset, pretrain_epochs=pretrain_epochs, epochs=epochs,
        fewest_steps=fewest_steps, out=out, settings=settings or [], device=device,
    )  # fmt: skip
    table = study.render_table(result)
    print_result(table, result.verdict, f"Report: {result.report}", value=result.as_dict(), as_json=as_json)
