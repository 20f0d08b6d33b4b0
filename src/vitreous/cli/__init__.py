"""The command line: parse, import lazily, print. `vitreous VERB SUBJECT`; results on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous import __version__
from vitreous.errors import ConfigError, VitreousError

app = typer.Typer(
    name="vitreous",
    help="A Vision Transformer you can see through: train, compare, look inside, diagnose. Small images, no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Fetch, check and look at data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RunInsteadOption = Annotated[Path | None, typer.Option("--run", help="A run, instead of a preset.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="A run folder; left out: the model in the box.")]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; left out: a new folder in runs/.")]
DataOption = Annotated[
    str | None, typer.Option("--data", help="mnist, fashion-mnist, cifar10, digits, a folder or a FILE.npz.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Everything random follows from it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one setting, as in --set model.depth=6; repeatable.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _print(*what: Any) -> None:
    """Rich output on a terminal, the same as plain text in a pipe (wide enough that no table is cut)."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160, no_color=True)
    plain = all(isinstance(one, str) for one in what)  # where brackets are a person's, not rich's
    console.print(*what, highlight=False, markup=not plain, soft_wrap=plain)


def _version(show: bool) -> None:
    if show:
        print(f"vitreous {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# --- data --------------------------------------------------------------------------------------------------


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """The data sets known by name, and whether they are here already."""
    import dataclasses

    from vitreous.data.datasets import DATASETS, describe

    rows = [describe(name) for name in DATASETS]
    if as_json:
        _print_json([dataclasses.asdict(row) for row in rows])
        return
    from rich.table import Table

    table = Table("name", "what", "images", "size", "classes", "here", "licence", box=None, header_style="bold")
    for row in rows:
        size = f"{row.image_size[0]}×{row.image_size[1]}×{row.channels}"
        images = f"{row.train_images:,} + {row.test_images:,}"
        table.add_row(
            row.name, row.title, images, size, str(row.num_classes), "yes" if row.cached else "no", row.licence
        )
    _print(table)
    _print("Also: a folder with one sub-folder a class (or train/, val/, test/ above them), or a FILE.npz.")


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A name from `vitreous data list`.")]) -> None:
    """Bring a data set into the cache, verified by SHA-256."""
    from vitreous.data.datasets import fetch

    folder = fetch(name)
    print(f"{name}: {folder}" if folder else f"{name} comes with scikit-learn; nothing to fetch")


@data_app.command("verify")
def data_verify(name: Annotated[str, typer.Argument(help="A name from `vitreous data list`.")]) -> None:
    """Hash every cached file of a data set again; exit code 1 if one is missing or corrupt."""
    from vitreous.data.datasets import verify

    statuses = verify(name)
    for file, status in statuses.items():
        print(f"{status:8} {file}")
    if not statuses:
        print(f"{name} comes with scikit-learn; nothing to verify")
    if any(status != "ok" for status in statuses.values()):
        raise typer.Exit(1)


@data_app.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A data set's name, a folder or a FILE.npz.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture to write; left out: NAME-sheet.png.")
    ] = None,
) -> None:
    """Class balance, sizes, pictures that stand twice; and a labelled contact sheet (PNG)."""
    from vitreous.config import DataConfig
    from vitreous.data.checks import balance_remarks, class_counts, repeated_pictures
    from vitreous.data.contact_sheet import contact_sheet
    from vitreous.data.datasets import load_dataset

    dataset = load_dataset(DataConfig(name=name))
    path = out or Path(f"{Path(name).stem}-sheet.png")
    contact_sheet(dataset, path)
    sizes = f"{len(dataset.train):,} training, {len(dataset.val):,} validation, {len(dataset.test):,} test images"
    height, width = dataset.image_size
    print(f"{name}: {sizes} of {height}×{width}×{dataset.channels}, {dataset.num_classes} classes")
    widest = max(map(len, dataset.class_names))
    for class_name, *counts in class_counts(dataset):
        print(f"  {class_name:{widest}}  {' + '.join(f'{count:,}' for count in counts)}")
    for line in (*balance_remarks(dataset), *dataset.notes, *repeated_pictures(dataset)):
        print(f"  {line}")
    print(path)


# --- models ------------------------------------------------------------------------------------------------


@app.command("presets")
def presets_(
    name: Annotated[str | None, typer.Argument(help="Print this one whole, as JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The named configurations; with a NAME, every setting of it."""
    from vitreous.config.presets import PRESETS, preset

    if name is not None:
        _print_json(preset(name).model_dump(mode="json"))
        return
    if as_json:
        _print_json({key: function().model_dump(mode="json") for key, function in PRESETS.items()})
        return
    from rich.table import Table

    table = Table("preset", "what", box=None, header_style="bold")
    for key, function in PRESETS.items():
        table.add_row(key, (function.__doc__ or "").strip().splitlines()[0])
    _print(table)


def _config(
    preset_name: str | None, data: str | None, seed: int | None, settings: list[str] | None, file: Path | None = None
) -> Any:
    """A preset, then the TOML file, then --set, then the flags."""
    from vitreous.config import merge_toml, override
    from vitreous.config.presets import preset

    if preset_name is None:
        raise ConfigError("name a preset, as in `vitreous train vit`; `vitreous presets` lists them")
    config = preset(preset_name)
    if file is not None:
        config = merge_toml(config, file)
    config = override(config, settings or [])
    if data is not None:
        config = config.replace(data=config.data.replace(name=data))
    if seed is not None:
        config = config.replace(seed=seed)
    return config


def _preset_or_run(preset: str | None, path: Path | None, settings: list[str] | None) -> tuple[Any, Any]:
    """The configuration to speak of, and the run it is of, if it is of one."""
    if path is None:
        return _config(preset or "vit", None, None, settings), None
    if preset is not None or settings:
        raise ConfigError(f"--run has its own settings: leave out {preset or '--set'}")
    from vitreous.runs import Run

    run = Run.open(path)
    return run.config, run


@app.command()
def shapes(
    preset: Annotated[str | None, typer.Argument(help="A preset (left out: vit); or name a run with --run.")] = None,
    run: RunInsteadOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every step of a model: symbol, equation, numbers, output shape, parameters, FLOPs."""
    from vitreous.models import summary as steps

    model = _preset_or_run(preset, run, settings)[0].model
    if as_json:
        _print_json(steps.as_json(model))
    else:
        _print(steps.shapes_table(model))


# --- training ----------------------------------------------------------------------------------------------


@app.command()
def train(
    preset: Annotated[str | None, typer.Argument(help="A preset (`vitreous presets`).")] = None,
    data: DataOption = None,
    seed: SeedOption = None,
    epochs: Annotated[float | None, typer.Option(help="How often to go through the data.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Train for about so long instead.")] = None,
    out: OutOption = None,
    settings: SetOption = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="A TOML file laid over the preset.")] = None,
    weights: Annotated[
        str | None, typer.Option("--from", help="Fine-tune: a run, or a published checkpoint, to start from.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Distil: a run, or box:cnn, whose answers are a second label.")
    ] = None,
    head_only: Annotated[bool, typer.Option("--head-only", help="Train the head alone (a linear probe).")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run named by -o.")] = False,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each process; left out: all cores, shared by the processes.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Data-parallel processes on this machine.", min=1)] = 1,
    compile_: Annotated[bool, typer.Option("--compile", help="torch.compile the model.")] = False,
    device: DeviceOption = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a preset into a run folder; Ctrl-C saves, --resume goes on."""
    from vitreous.training.launch import is_launched, run_in_processes
    from vitreous.training.loop import fit

    flags = {"train.epochs": epochs, "train.budget_seconds": seconds, "train.threads": threads}
    settings = (settings or []) + [f"{key}={value}" for key, value in flags.items() if value is not None]
    settings += ["train.compile=true"] * compile_ + ["train.freeze=backbone"] * head_only
    settings += [
        f"{key}={json.dumps(run, ensure_ascii=False)}"
        for key, run in {"start.weights": weights, "train.teacher": teacher}.items()
        if run is not None
    ]
    if resume:
        asked = {"the preset": preset, "--data": data, "--seed": seed, "--config": config_file, "settings": settings}
        given = [word for word, value in asked.items() if value not in (None, [])]
        if given:
            raise ConfigError(f"--resume goes on as the run was configured: leave out {', '.join(given)}")
        if out is None:
            raise ConfigError("--resume needs the run to go on with: name it with -o RUN")
        from vitreous.runs import Run

        config = Run.open(out).config
    else:
        config = _config(preset, data, seed, settings, config_file)
    if processes > 1 and not is_launched(processes):
        raise typer.Exit(run_in_processes(processes, sys.argv[1:]))
    run = fit(config, out, resume=resume, device=device, tensorboard=tensorboard)
    if os.environ.get("RANK", "0") == "0":
        test = run.test_results
        print(
            f"{run.path}: {test.accuracy:.2%} on the test set ({test.correct} of {test.count}),"
            f" {test.train_seconds:.0f} s of training"
        )


@app.command()
def compare(
    subjects: Annotated[
        list[str] | None, typer.Argument(help="Presets (trained now) or runs; default: vit cnn.")
    ] = None,
    data: DataOption = None,
    seeds: Annotated[int, typer.Option(help="Train each preset so many times.", min=1)] = 1,
    equal: Annotated[str | None, typer.Option(help="`epochs` or `seconds`: give all presets the same.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Train every preset for so many epochs.")] = None,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train presets (or take runs) and say which is better, by how much, and how sure that is."""
    from vitreous.comparison import render_table
    from vitreous.studies.compare import compare as run_comparison

    settings = (settings or []) + ([f"train.epochs={epochs}"] if epochs is not None else [])
    result = run_comparison(
        subjects or ["vit", "cnn"], data=data, seeds=seeds, equal=equal, out=out, settings=settings, device=device
    )
    if as_json:
        _print_json(result.as_dict())
        return
    _print(render_table(result))
    _print(result.verdict)
    _print(f"Report: {result.report}")


@app.command()
def demo(
    out: OutOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
) -> None:
    """The main job in one command: a ViT against a CNN on MNIST; without network, on digits."""
    from vitreous.comparison import render_table
    from vitreous.studies.compare import demo as run_demo

    result = run_demo(out, data, device, log=lambda line: print(line, file=sys.stderr))
    _print(render_table(result))
    _print(result.verdict)
    _print(f"Report: {result.report}")


@app.command()
def transfer(
    source: Annotated[str, typer.Option("--from-data", help="Pre-train on these images.")] = "fashion-mnist",
    target: Annotated[str, typer.Option("--to", help="Then learn these, from few labels.")] = "mnist",
    per_class: Annotated[str, typer.Option(help="Labelled images a class, as in 10,100.")] = "10,100,1000",
    seeds: Annotated[int, typer.Option(help="Trainings of each kind.", min=2)] = 3,
    preset: Annotated[str, typer.Option(help="A ViT preset.")] = "vit",
    pretrain_epochs: Annotated[float, typer.Option(help="Epochs of pre-training.")] = 5.0,
    epochs: Annotated[float, typer.Option(help="Epochs on the target, but at least --fewest-steps.")] = 2.0,
    fewest_steps: Annotated[int, typer.Option(help="Steps on the target, however few its images.", min=1)] = 300,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """What pre-training on other images buys when labels are few; the same command goes on if stopped (-o)."""
    from vitreous.studies.transfer import render_table
    from vitreous.studies.transfer import transfer as run_transfer

    try:
        counts = [int(part) for part in per_class.split(",")]
    except ValueError:
        raise ConfigError(f"--per-class {per_class!r}: expected whole numbers, as in 10,100,1000") from None
    result = run_transfer(
        source, target, counts, seeds, preset,
        pretrain_epochs=pretrain_epochs, epochs=epochs, fewest_steps=fewest_steps, out=out, settings=settings or [],
        device=device,
    )  # fmt: skip
    if as_json:
        _print_json(result.as_dict())
        return
    _print(render_table(result))
    _print(result.verdict)
    _print(f"Report: {result.report}")


@app.command()
def mistakes(
    run: RunOption = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    most: Annotated[int, typer.Option(help="So many images.", min=1)] = 24,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """The images with the highest loss, with their files: find wrong labels, weak classes and confusions."""
    from vitreous.comparison.mistakes import find_mistakes, write_mistakes
    from vitreous.runs import open_run, report_folder

    found = find_mistakes(open_run(run), split, most)
    page = write_mistakes(found, report_folder(out, Path("runs") / f"mistakes-{Path(found.run).name}"))
    if as_json:
        _print_json(found.as_dict())
        return
    print(found.verdict)
    for image in found.worst[:5]:
        where = image.path or f"{split} image {image.index}"
        print(f"  {where}: labelled {image.label}, predicted {image.own.label} ({image.own.percent})")
    print(f"Gallery: {page}")


@app.command()
def evaluate(
    run: RunOption = None,
    data: Annotated[str | None, typer.Option("--data", help="Other data than the run's own.")] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    batch_size: Annotated[
        int | None, typer.Option(help="Images at a time; a sound model does not care.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Accuracy, NLL and calibration of a run on a split of its data."""
    from vitreous.evaluation.metrics import wilson_interval
    from vitreous.evaluation.prediction import evaluate_run
    from vitreous.runs import open_run

    opened = open_run(run)
    evaluation = evaluate_run(opened, split, batch_size, data, say=lambda note: print(note, file=sys.stderr))
    interval = wilson_interval(evaluation.correct, evaluation.count)
    if as_json:
        _print_json(
            {
                "run": str(opened.path),
                "split": split,
                **evaluation.summary(),
                "accuracy_interval": [interval.low, interval.high],
            }
        )
        return
    print(
        f"{opened.config.name}: {evaluation.accuracy:.2%} of {evaluation.count} {split} images"
        f" ({evaluation.correct} right; 95 % interval {interval.low:.2%} to {interval.high:.2%}),"
        f" NLL {evaluation.nll:.4f}, calibration error {evaluation.calibration_error:.2%}"
    )


@app.command()
def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files: PNG, JPEG, WebP or BMP, any size.")],
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a model answers for your own images, and what was done to them first."""
    from vitreous.evaluation.prediction import predict_images
    from vitreous.runs import open_run

    answers = predict_images(open_run(run), images)
    if as_json:
        _print_json([{"image": str(path), **answer.as_json()} for path, answer in zip(images, answers, strict=True)])
        return
    for path, answer in zip(images, answers, strict=True):
        others = sorted(answer.probabilities.items(), key=lambda item: -item[1])[1:3]
        rest = ", ".join(f"{name} {probability:.1%}" for name, probability in others)
        print(f"{path}: {answer.label}  {answer.probability:.1%}  (then {rest})")
        for note in answer.notes:
            print(f"  {note}")


@app.command()
def look(
    image: Annotated[Path | None, typer.Argument(help="An image file; left out: one of the test set.")] = None,
    test: Annotated[int | None, typer.Option("--test", help="Image INDEX of the test set.", min=0)] = None,
    run: RunOption = None,
    against: Annotated[Path | None, typer.Option("--against", help="A second run, laid beside the first.")] = None,
    target: Annotated[str | None, typer.Option("--class", help="Explain this class instead of the answer.")] = None,
    patch: Annotated[int | None, typer.Option("--patch", help="Also show attention from this patch.", min=0)] = None,
    without_heads: Annotated[
        list[str] | None, typer.Option("--without-head", help="Do without it: LAYER-HEAD, from 1; repeatable.")
    ] = None,
    without_patches: Annotated[
        list[int] | None, typer.Option("--without-patch", help="Do without it, from 0; repeatable.", min=0)
    ] = None,
    out: OutOption = None,
) -> None:
    """See through a model: attention, relevance, occlusion, logit lens, and whether the maps are true."""
    from vitreous.inspection.from_run import look_at_run
    from vitreous.runs import Run, open_run, report_folder

    opened = open_run(run)
    folder = report_folder(out, Path("runs") / f"look-{opened.config.name}")
    second = None if against is None else Run.open(against)
    found = look_at_run(
        opened,
        image,
        test_index=test,
        against=second,
        target=target,
        patch=patch,
        without_heads=[_head(named) for named in without_heads or ()],
        without_patches=without_patches or (),
        out=folder,
    )
    for line in (found.summary, *found.advice):
        _print(line)
    _print(f"Report: {found.report}")


def _head(named: str) -> tuple[int, int]:
    """`3-2` → layer 2, head 1, counted from 0."""
    layer, dash, head = named.partition("-")
    if not (dash and layer.isdecimal() and head.isdecimal() and int(layer) and int(head)):
        raise VitreousError(f"--without-head {named!r}: expected LAYER-HEAD, counted from 1, as in 3-2")
    return int(layer) - 1, int(head) - 1


@app.command()
def paper(
    preset: Annotated[str | None, typer.Argument(help="A preset (left out: vit); or name a run with --run.")] = None,
    run: RunInsteadOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Is this the paper's ViT? A sheet that measures a model item by item."""
    from vitreous import conformance

    config, opened = _preset_or_run(preset, run, settings)
    rows = conformance.conformance(config, None if opened is None else opened.load_model())
    if as_json:
        _print_json(conformance.as_json(rows))
    else:
        _print(conformance.conformance_table(rows, title=config.name))


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="A run, or a checkpoint of timm, Hugging Face, torchvision or Google.")
    ],
    target: Annotated[Path, typer.Argument(help="Where to write.")],
    to: Annotated[str, typer.Option("--to", help="timm, hf, torchvision, google, or vitreous (a run folder).")],
    num_heads: Annotated[int | None, typer.Option(help="Where the file does not say.", min=1)] = None,
    image_size: Annotated[int | None, typer.Option(help="Fit the positions to this size.", min=1)] = None,
    patch_size: Annotated[int | None, typer.Option(help="Fit the patch kernel to this size.", min=1)] = None,
    channels: Annotated[int | None, typer.Option(help="Fit the input to so many channels.", min=1)] = None,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Take what fits; list what does not.")] = False,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Write even if the target has another GELU or epsilon; says so.")
    ] = False,
) -> None:
    """Bring weights from one library's layout to another's; every tensor is accounted for."""
    from vitreous.checkpoints.convert import convert as run_conversion

    lines = run_conversion(
        source,
        target,
        to,
        num_heads=num_heads,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        allow_partial=allow_partial,
        approximate=approximate,
    )
    for line in lines:
        print(line)


@app.command()
def doctor(
    target: Annotated[str, typer.Argument(help="A preset, a run folder, or package.module:callable (any nn.Module).")],
    data: DataOption = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", help="What one input looks like, as in 1,28,28.")
    ] = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why does my ViT get 90 %? Measures a model, says what is wrong and how to mend it; exit code 1 if anything is."""
    from vitreous.doctor.diagnosis import consult
    from vitreous.doctor.render import render

    diagnosis, name = consult(target, data=data, input_shape=input_shape, seed=seed or 0)
    if as_json:
        _print_json(diagnosis.as_json())
    else:
        render(diagnosis, name)
    raise typer.Exit(diagnosis.exit_code)


@app.command()
def export(
    to: Annotated[str, typer.Option("--to", help="onnx (one file) or page (a folder for any static host).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")],
    runs: Annotated[list[Path] | None, typer.Option("--run", help="A run folder; page: several.")] = None,
    lean: Annotated[bool, typer.Option("--lean", help="onnx: logits and probabilities alone, no insides.")] = False,
) -> None:
    """Take a model elsewhere: one checked ONNX file, or the drawing page with the model in the browser."""
    from vitreous.export import export_onnx
    from vitreous.runs import Run, open_run
    from vitreous.serving.static_page import export_page

    if to == "onnx":
        if runs is not None and len(runs) > 1:
            raise ConfigError(f"--to onnx takes one --run, not {len(runs)}")
        made = export_onnx(open_run(runs[0] if runs else None), out, full=not lean)
        print(f"{made.path}: {made.bytes:,} bytes; inputs {', '.join(made.inputs)}; outputs {', '.join(made.outputs)}")
        checked = made.parity
        print(
            f"  checked on {checked.images} {checked.image_source} in a fresh process: the same answers,"
            f" logits within {checked.max_difference:.1e}"
        )
    elif to == "page":
        chosen = [Run.open(run) for run in runs] if runs else [Run.open(name) for name in ("box:vit", "box:cnn")]
        page = export_page(chosen, out)
        print(
            f"{page.folder}: {len(page.files)} files, {page.bytes / 1e6:.1f} MB; serve it from any static host, as in"
        )
        print(f"  python -m http.server --bind 127.0.0.1 --directory {page.folder}")
    else:
        raise ConfigError(f"--to {to!r}: choose onnx or page")


@app.command()
def serve(
    runs: Annotated[list[Path] | None, typer.Option("--run", help="Runs to serve; left out: those in the box.")] = None,
    host: Annotated[
        str, typer.Option(help="Another host than loopback needs --token-file or --no-auth.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that clients must send.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve another host without a token.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; left out: a core each, at most two.", min=1)] = None,
) -> None:
    """Draw a digit and see the model think: the page and an HTTP API."""
    from vitreous.runs import Run
    from vitreous.serving.server import serve_runs

    chosen = [Run.open(run) for run in runs or []]
    serve_runs(chosen, host=host, port=port, token_file=token_file, no_auth=no_auth, workers=workers)


@app.command()
def env(as_json: JsonOption = False) -> None:
    """What a bug report needs: versions, CPU, threads, probes; nothing private."""
    from vitreous.hardware import describe_environment

    facts = describe_environment()
    if as_json:
        _print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key:22} {value}")


def main() -> None:
    """The entry point: a person's mistake is one line on stderr and exit code 2, never a traceback."""
    interrupted = _notice_ctrl_c()
    try:
        app()
    except VitreousError as error:
        print(f"vitreous: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    except BaseException:
        if not interrupted:
            raise
        print("vitreous: stopped", file=sys.stderr)  # whatever an interrupted import has made of it
        sys.exit(130)


def _notice_ctrl_c() -> list[int]:
    """Grows when Ctrl-C is pressed, which raises KeyboardInterrupt as ever; training takes over with its own way."""
    interrupted: list[int] = []

    def notice(number: int, _frame: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it otherwise
        signal.signal(signal.SIGINT, notice)
    return interrupted
