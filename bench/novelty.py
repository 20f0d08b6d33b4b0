"""How well does a score separate images that are unlike the training images from test images?

    python bench/novelty.py [--run RUN …] [--docs docs/calibration.md] [--json FILE]

Each candidate is fitted on the same training and validation images, with the same rule for its threshold. AUROC is the
probability that an outlier scores higher than a test image of the run; "flagged" is the share above the threshold. The
candidates were chosen with Fashion-MNIST's training images, noise, and drawings of other seeds than these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import outlier_images as outliers
import torch
from common import Column, Report, Row, Table, parser
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset
from vitreous.evaluation.calibration import fit_parts, statistics_sample
from vitreous.evaluation.novelty import Part, combine_parts, fit_part, threshold
from vitreous.evaluation.prediction import Reduce, compute_outputs
from vitreous.export.images import fit_to_model
from vitreous.models.representations import Representations, representation_names
from vitreous.runs import Run, load_run_data, open_run

Outputs = tuple[Tensor, Tensor]  # logits (n, classes), distances (n, parts)
SEED = 1  # of the drawings; seed 0 was used to choose the score
Scores = NDArray[np.float64]


def auroc(inside: Scores, outside: Scores) -> float:
    """Return the probability that an outlier scores higher than an inlier; ties count half."""
    ranks = stats.rankdata(np.concatenate([inside, outside]))
    above = ranks[len(inside) :].sum() - len(outside) * (len(outside) + 1) / 2
    return float(above / (len(inside) * len(outside)))


#: candidate → the representations it uses, by index; None: a function of the logits
CANDIDATES: dict[str, tuple[int, ...] | None] = {
    "largest probability": None,
    "energy (log-sum-exp of the logits)": None,
    "Mahalanobis: logits": (0,),
    "Mahalanobis: input of the head": (-1,),
    "Mahalanobis: early mean": (1,),
    "what vitreous stores": (),
}


def distances(parts: Sequence[Part], compute: Callable[[Reduce], tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    """Return the logits and the distances (n, parts); the logits are the first representation here."""

    def reduce(logits: Tensor, representations: Representations) -> tuple[Tensor, ...]:
        pairs = zip(parts, (logits, *representations), strict=True)
        return logits, *(part.distance(values.double()) for part, values in pairs)

    logits, *found = compute(reduce)
    return logits, torch.stack(found, dim=1)


def scores_of(name: str, parts: Sequence[Part], val: Outputs, other: Outputs) -> Scores:
    """Return the scores of `other`, above 0 where they exceed the threshold that validation images set."""
    (val_logits, val_distances), (logits, found) = val, other
    used = CANDIDATES[name]
    if used is None:
        raw = _largest_probability if name == "largest probability" else _energy
        return raw(logits) - threshold(raw(val_logits))[0]
    columns = list(used) or list(range(1, len(parts)))
    novelty, _ = combine_parts([parts[i] for i in columns], val_distances[:, columns])
    weights = np.array([float(part.weight) for part in novelty.parts])
    logs = [np.log(np.maximum(table[:, columns].numpy(), 1e-30)) @ weights for table in (val_distances, found)]
    return logs[1] - threshold(logs[0])[0]


def _largest_probability(logits: Tensor) -> Scores:
    return -special.softmax(logits.double().numpy(), axis=1).max(axis=1)


def _energy(logits: Tensor) -> Scores:
    return -special.logsumexp(logits.double().numpy(), axis=1)


def outlier_sets(run: Run, count: int) -> dict[str, Tensor]:
    """Return sets of uint8 images (n, C, H, W) in the model's size, which it was not trained on."""
    other = "fashion-mnist" if run.config.data.name == "mnist" else "mnist"
    images = fit_to_model(load_dataset(DataConfig(name=other)).test.images[: 2 * count], run)
    draw = {"letters": outliers.letter, "scribbles": outliers.scribble, "smileys": outliers.smiley}
    config = run.config.model
    return {
        f"{other} test": images,
        **{name: outliers.drawn(picture, count, run.preprocessing, SEED) for name, picture in draw.items()},
        "noise": outliers.noise(count, (config.channels, *config.image_size), SEED),
    }


def table_of(run: Run, count: int) -> tuple[Table, dict[str, float]]:
    """Return the table of one run, and the AUROC of what vitreous stores."""
    dataset, model = load_run_data(run), run.load_model()

    def compute(images: Tensor, reduce: Reduce) -> tuple[Tensor, ...]:
        return compute_outputs(model, images, run.preprocessing, reduce)

    sample = statistics_sample(dataset.train)
    (train_logits,) = compute(sample.images, lambda logits, _: (logits,))
    novelty = fit_parts(
        lambda split, reduce: compute(split.images, reduce), dataset.train, len(representation_names(model))
    )
    parts = [part for part in (fit_part(train_logits, sample.labels), *novelty) if part is not None]
    sets = outlier_sets(run, count)
    val, test, *outside = (
        distances(parts, partial(compute, images))
        for images in (dataset.val.images, dataset.test.images, *sets.values())
    )
    rows: list[Row] = []
    stored: dict[str, float] = {}
    for name in CANDIDATES:
        own = scores_of(name, parts, val, test)
        row: Row = {"score": name, "test": 100 * float((own > 0).mean())}
        for title, outputs in zip(sets, outside, strict=True):
            found = scores_of(name, parts, val, outputs)
            stored[title] = auroc(own, found)
            row[title] = f"{stored[title]:.4f} / {100 * float((found > 0).mean()):.0f} %"
        rows.append(row)
    columns = [Column("score", "score"), Column("test", "own test images flagged", "{:.1f} %")]
    columns += [Column(title, f"{title}: AUROC / flagged") for title in sets]
    bundled = f"bundled:{run.path.name}" if run.path.parent.name == "bundled" else run.path.name
    sizes = ", ".join(f"{len(images):,} {title}" for title, images in sets.items())
    title = (
        f"{bundled}: {run.config.name} on {run.config.data.name} ({len(dataset.val):,} validation and"
        f" {len(dataset.test):,} test images; {sizes})"
    )
    return Table(title, columns, rows), stored


def main(arguments: Sequence[str] | None = None) -> None:
    options: argparse.ArgumentParser = parser(__doc__ or "")
    options.add_argument("--run", action="append", type=Path, help="a run; repeatable; default: the bundled models")
    args = options.parse_args(arguments)
    report = Report("novelty", "Unlike the training images", threads=torch.get_num_threads())
    count = 20 if args.smoke else 300 if args.quick else 1000
    for path in args.run or ["bundled:vit", "bundled:cnn"]:
        report.measure_peak(0.1)
        table, found = table_of(open_run(path), count)
        report.tables.append(table)
        report.ratios |= {f"auroc_{Path(path).name}_{name}".replace(" ", "_"): value for name, value in found.items()}
    report.finish(args)


if __name__ == "__main__":
    main()
