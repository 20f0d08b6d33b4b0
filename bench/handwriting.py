"""Are digits recognised however people draw them: European ones and sevens, open fours, small, narrow, slanted?

    python bench/handwriting.py [--run bundled:vit --run bundled:cnn] [--json FILE]

The strokes of bench/stroke_set.py are drawn by the page's own code (raster.js and normalise.js, run in node) and given
to the models. The tables count correct predictions by shape and by size.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable

import common
import numpy as np
import torch
from common import Column, Report, Table
from stroke_set import Drawing, drawings
from strokes import draw

from vitreous.evaluation.prediction import compute_logits
from vitreous.runs import Run

REQUIRED_ACCURACY = 0.80


def main() -> int:
    options = common.parser(__doc__ or "")
    options.add_argument("--run", action="append", help="a run of digits (default: both bundled models)")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    report = Report("handwriting", "Digits as people draw them")
    report.measure_peak()
    drawn = list(drawings(args.seed))
    if args.smoke:
        drawn = drawn[::40]
    pixels = torch.from_numpy(draw([one.strokes for one in drawn])["normalised"][:, None].copy())
    labels = np.array([one.digit for one in drawn])
    correct: dict[str, np.ndarray] = {}
    for name in args.run or ("bundled:vit", "bundled:cnn"):
        run = Run.open(name)
        predicted = compute_logits(run.load_model(), pixels, run.preprocessing).argmax(dim=1).numpy()
        correct[run.path.name] = predicted == labels
    by = {
        "shape": lambda one: f"{one.digit}, {one.shape}",
        "size": lambda one: one.size,
        "width": lambda one: one.width,
        "all": lambda one: "all",
    }
    for title, key in by.items():
        report.tables.append(_table(title, drawn, correct, key))
    report.finish(args)
    rates = [float(one.mean()) for one in correct.values()]
    return 0 if min(rates) >= REQUIRED_ACCURACY or args.smoke else 1


def _table(title: str, drawn: list[Drawing], correct: dict[str, np.ndarray], key: Callable[[Drawing], str]) -> Table:
    groups: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(drawn):
        groups[key(one)].append(i)
    columns = [Column(title, title), Column("drawings", "drawings"), *(Column(name, name) for name in correct)]
    rows = [
        {title: group, "drawings": len(chosen), **{name: int(one[chosen].sum()) for name, one in correct.items()}}
        for group, chosen in groups.items()
    ]
    return Table(f"Correct by {title}", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
