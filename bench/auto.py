"""Compare `auto` with `vit` and its defaults on small sets of images.

    python bench/auto.py [SET …] [--seeds N] [--runs runs/auto] [--json FILE] [--docs]

The sets: 10, 100 and 1,000 training images per class of CIFAR-10, 100 of Fashion-MNIST, all of digits, and a synthetic
folder of coloured shapes in mixed sizes. Validation images are split from these, and the test set is the whole one of
the data set; it is read once per training. `vit` gets a patch that divides the image where 7×7 does not, and nothing
else. `vit, longer`, with the first seed alone, is `vit` with as many steps as `auto` takes: what is left is model,
augmentation and batch size.
Sets, models and seeds take turns; a finished training in `--runs` is reused, a stopped one continued.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Column, Report, Table, parser
from PIL import Image, ImageDraw

from vitreous.config import Config, DataConfig, configure
from vitreous.data.datasets import load_dataset
from vitreous.data.splits import keep_per_class
from vitreous.runs import Run
from vitreous.training.auto import AutoRequest
from vitreous.training.loop import fit
from vitreous.training.plan import steps_per_epoch

MODELS = ("vit", "vit, longer", "auto")
COLUMNS = (
    Column("set", "images"),
    Column("train", "training images", "{:,}"),
    Column("vit", "`vit`"),
    Column("vit, longer", "`vit`, longer"),
    Column("auto", "`auto`"),
    Column("gain", "`auto` − `vit`, points", "{:+.1f}"),
    Column("vit seconds", "`vit`, s", "{:.0f}"),
    Column("vit, longer seconds", "longer, s", "{:.0f}"),
    Column("auto seconds", "`auto`, s", "{:.0f}"),
)


# --- the sets ------------------------------------------------------------------------------------------------------


def subset(name: str, per_class: int, folder: Path) -> Path:
    """Write an .npz of so many training images per class and the whole test set."""
    path = folder / f"{name}-{per_class}.npz"
    if not path.exists():
        data = load_dataset(DataConfig(name=name, val_fraction=0))
        kept = keep_per_class(data.train.labels, per_class, seed=0)
        np.savez(
            path, images=data.train.images.numpy()[kept].transpose(0, 2, 3, 1), labels=data.train.labels.numpy()[kept],
            test_images=data.test.images.numpy().transpose(0, 2, 3, 1), test_labels=data.test.labels.numpy(),
            class_names=np.array(data.class_names),
        )  # fmt: skip
    return path


SHAPES: dict[str, Callable[[ImageDraw.ImageDraw, tuple[float, float, float], Any], None]] = {
    "circle": lambda draw, at, fill: draw.circle(at[:2], at[2], fill=fill),
    "square": lambda draw, at, fill: draw.regular_polygon(at, 4, fill=fill),
    "triangle": lambda draw, at, fill: draw.regular_polygon(at, 3, fill=fill),
    "hexagon": lambda draw, at, fill: draw.regular_polygon(at, 6, fill=fill),
    "ring": lambda draw, at, fill: draw.circle(at[:2], at[2], outline=fill, width=max(2, int(at[2] / 3))),
    "bar": lambda draw, at, fill: draw.rectangle(
        (at[0] - at[2], at[1] - at[2] / 4, at[0] + at[2], at[1] + at[2] / 4), fill=fill
    ),
}


def shapes(per_class: int, test_per_class: int, folder: Path) -> Path:
    """Write JPEGs of 40 to 120 pixels a side: one shape in any colour on a noisy background, turned by up to 20°."""
    root = folder / f"shapes-{per_class}"
    if root.exists():
        return root
    random = np.random.default_rng(0)
    for split, count in (("train", per_class), ("test", test_per_class)):
        for name, draw_shape in SHAPES.items():
            target = root / split / name
            target.mkdir(parents=True)
            for number in range(count):
                width, height = random.integers(40, 121, size=2).tolist()
                noise = random.normal(random.integers(40, 216, size=3), random.uniform(5, 40), (height, width, 3))
                image = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8))
                radius = min(width, height) * random.uniform(0.18, 0.36)
                at = (width / 2 + random.uniform(-4, 4), height / 2 + random.uniform(-4, 4), radius)
                layer = Image.new("RGBA", image.size)
                draw_shape(ImageDraw.Draw(layer), at, (*random.integers(0, 256, size=3).tolist(), 255))
                image.paste(turned := layer.rotate(random.uniform(-20, 20), center=at[:2]), mask=turned)
                image.save(target / f"{number:04}.jpg", quality=int(random.integers(50, 95)))
    return root


def sets(folder: Path) -> dict[str, Callable[[], str]]:
    named = {f"cifar10, {n} per class": lambda n=n: str(subset("cifar10", n, folder)) for n in (10, 100, 1000)}
    return named | {
        "fashion-mnist, 100 per class": lambda: str(subset("fashion-mnist", 100, folder)),
        "digits": lambda: "digits",
        "coloured shapes, 40 per class": lambda: str(shapes(40, 100, folder)),
    }


# --- the trainings -------------------------------------------------------------------------------------------------


def vit_for(data: str, seed: int) -> Config:
    """Return `vit` with its defaults, apart from a patch that divides 32×32 pixels."""
    settings = ["model.patch_size=8"] if "cifar10" in data else []
    return configure("vit", settings=settings, data=data, seed=seed)


def train(model: str, data: str, seed: int, path: Path) -> Run:
    if path.exists():
        return fit(Run.open(path).config, path, resume=True)
    if model == "auto":
        return fit(AutoRequest(data, seed=seed), path)
    config = vit_for(data, seed)
    if model == "vit, longer":
        auto = Run.open(path.with_name(path.name.replace("vit, longer", "auto")))
        epoch = steps_per_epoch(auto.record.data.images["train"], config.train.batch_size, config.train)
        config = config.replace(train=config.train.replace(epochs=auto.resolved.steps / epoch))
    return fit(config, path)


def row_of(name: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {"set": name, "train": runs["auto"][0].record.data.images["train"]}
    means = {}
    for model, trained in runs.items():
        accuracies = [run.test_results.accuracy for run in trained]
        means[model] = statistics.mean(accuracies)
        spread = f" ± {statistics.stdev(accuracies):.1%}" if len(accuracies) > 1 else ""
        row |= {model: f"{means[model]:.1%}{spread}", f"{model} accuracies": accuracies}
        row[f"{model} seconds"] = statistics.mean(run.test_results.train_seconds for run in trained)
    return row | {"gain": 100 * (means["auto"] - means["vit"])}


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("sets", nargs="*", help="some of the sets, by the beginning of their names; default: all")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--runs", type=Path, default=Path("runs/auto"), help="where sets and trainings are kept")
    args = options.parse_args()
    report = Report("auto", "`auto` beside `vit` with its defaults, on small sets")
    args.runs.mkdir(parents=True, exist_ok=True)
    chosen = {k: v for k, v in sets(args.runs).items() if not args.sets or k.startswith(tuple(args.sets))}
    seeds = 1 if args.quick else args.seeds
    runs: dict[str, dict[str, list[Run]]] = {name: {model: [] for model in MODELS} for name in chosen}
    for seed in range(seeds):
        for name, make in chosen.items():
            data = make()
            report.measure_peak()
            for model in ("auto", "vit", "vit, longer")[: 2 if seed else 3]:
                runs[name][model].append(train(model, data, seed, args.runs / f"{name}-{model}-seed{seed}"))
    rows = [row_of(name, found) for name, found in runs.items()]
    report.tables.append(Table(f"Test accuracy, mean of {seeds} seeds ± standard deviation", COLUMNS, rows))
    report.notes.append("Seconds are of training alone; the pilot of `auto` comes before them.")
    report.finish(args)


if __name__ == "__main__":
    main()
