"""Are strokes recognised wherever and however large they are drawn?

    python bench/strokes.py --run RUN [--digits 300] [--json FILE]

Test digits of all classes are traced to strokes (thinned to a line, which is then followed) and drawn by the page's
own code (raster.js and normalise.js, run in node): at their size, half and double, each at a random place on the sheet.
The accuracy is printed with the page's normalisation and without it; the exit code is 1 if it is below 95 % with it.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from vitreous.data.datasets import load_dataset
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.prediction import compute_logits
from vitreous.runs import open_run

SHEET = 224  # raster.js
BASE_HEIGHT = 100.0  # of the sheet; half of it is 50, double 200
SCALES = {"half": 0.5, "as it is": 1.0, "double": 2.0}
REQUIRED_ACCURACY = 0.95
Line = list[tuple[float, float]]  # (row, column)


@dataclass(frozen=True)
class Row:
    size: str
    drawings: int
    correct: int
    correct_without: int  # without normalisation


# --- from pixels to strokes -------------------------------------------------------------------------------------------


def thin(shape: np.ndarray) -> np.ndarray:
    """Thin a shape to a line one pixel wide with the same connections (Zhang and Suen, 1984)."""
    image = np.pad(shape.astype(np.uint8), 1)
    changed = True
    while changed:
        changed = False
        for odd in (0, 1):
            n = _neighbours(image)
            count = n.sum(axis=0)
            turns = ((n == 0) & (np.roll(n, -1, axis=0) == 1)).sum(axis=0)
            north, east, south, west = n[0], n[2], n[4], n[6]
            ends = (north * east * west == 0) & (north * south * west == 0)
            starts = (north * east * south == 0) & (east * south * west == 0)
            remove = (image == 1) & (count >= 2) & (count <= 6) & (turns == 1) & (ends if odd else starts)
            if remove.any():
                image[remove] = 0
                changed = True
    return image[1:-1, 1:-1].astype(bool)


def _neighbours(image: np.ndarray) -> np.ndarray:
    """Return the neighbours of each pixel, (8, H, W), clockwise from the north."""
    around = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
    return np.stack([np.roll(image, (-down, -right), axis=(0, 1)) for down, right in around])


def follow(line: np.ndarray) -> list[Line]:
    """Follow a thin line: from its ends and crossings along every edge once, then around the remaining loops."""
    pixels = {(int(r), int(c)) for r, c in np.argwhere(line)}

    def near(at: tuple[int, int]) -> list[tuple[int, int]]:
        r, c = at
        straight = [(r - 1, c), (r, c + 1), (r + 1, c), (r, c - 1)]
        diagonal = [(r - 1, c - 1), (r - 1, c + 1), (r + 1, c + 1), (r + 1, c - 1)]
        found = [other for other in straight if other in pixels]
        # skip a diagonal step that also goes through a corner pixel
        found += [(y, x) for y, x in diagonal if (y, x) in pixels and not ({(r, x), (y, c)} & pixels)]
        return found

    seen: set[frozenset[tuple[int, int]]] = set()
    strokes: list[Line] = []

    def walk(start: tuple[int, int], step: tuple[int, int]) -> None:
        path, at = [start], step
        seen.add(frozenset((start, step)))
        while True:
            path.append(at)
            ways = [other for other in near(at) if frozenset((at, other)) not in seen]
            if len(near(at)) != 2 or not ways:
                break
            seen.add(frozenset((at, ways[0])))
            at = ways[0]
        strokes.append([(float(r), float(c)) for r, c in path])

    knots = [at for at in sorted(pixels) if len(near(at)) != 2]
    for start in [*knots, *sorted(pixels)]:
        for step in near(start):
            if frozenset((start, step)) not in seen:
                walk(start, step)
    strokes += [[(float(r), float(c))] for r, c in pixels if not near((r, c))]  # single dots
    # thinning leaves spurs of a pixel or two at the ends of thick strokes
    return [stroke for stroke in strokes if len(stroke) > 2] or strokes


def trace(digit: np.ndarray) -> list[Line]:
    """Trace a digit (28, 28) to strokes in its own pixels; enlarged threefold first, for smoother lines."""
    enlarged = torch.nn.functional.interpolate(
        torch.from_numpy(digit.astype(np.float32))[None, None], scale_factor=3, mode="bilinear"
    )[0, 0].numpy()
    return [[(r / 3, c / 3) for r, c in stroke] for stroke in follow(thin(enlarged > 110))]


def place(strokes: list[Line], scale: float, rng: np.random.Generator) -> list[list[list[int]]]:
    """Place strokes at random on the sheet, at a size, in whole x, y as the page's pointer gives them."""
    points = np.array([point for stroke in strokes for point in stroke])
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    factor = scale * BASE_HEIGHT / max(float(extent.max()), 1.0)
    margin = 7
    room = np.maximum(SHEET - 2 * margin - factor * extent, 0)
    corner = margin + rng.random(2) * room
    drawn = []
    for stroke in strokes:
        rows_columns = np.rint((np.array(stroke) - low) * factor + corner).clip(0, SHEET).astype(int)
        xy = rows_columns[:, ::-1].tolist()
        kept = [xy[0]]
        for point in xy[1:]:  # as draw.js: points closer than three pixels are left out
            if np.hypot(point[0] - kept[-1][0], point[1] - kept[-1][1]) >= 3:
                kept.append(point)
        drawn.append(kept)
    return drawn


# --- the measurement --------------------------------------------------------------------------------------------------


def draw(drawings: list[list[list[list[int]]]]) -> dict[str, np.ndarray]:
    node = shutil.which("node")
    if node is None:
        sys.exit("bench/strokes.py runs the page's own drawing code and needs node: apt-get install nodejs")
    script = Path(__file__).with_suffix(".mjs")
    result = subprocess.run([node, script], input=json.dumps(drawings), capture_output=True, text=True, check=True)
    pictures = json.loads(result.stdout)
    return {
        way: np.stack([np.frombuffer(base64.b64decode(one[way]), np.uint8).reshape(28, 28) for one in pictures])
        for way in ("normalised", "plain")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=None, help="a run trained on mnist (default: the bundled ViT)")
    parser.add_argument("--digits", type=int, default=300, help="how many test digits to trace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="also write the table here")
    options = parser.parse_args()

    run = open_run(options.run)
    test = load_dataset(run.config.data).test
    rng = np.random.default_rng(options.seed)
    each = max(1, -(-options.digits // 10))
    chosen = np.concatenate([rng.permutation(np.flatnonzero(test.labels.numpy() == c))[:each] for c in range(10)])
    labels = test.labels.numpy()[chosen]
    traced = [trace(test.images[int(i), 0].numpy()) for i in chosen]
    strokes = sum(len(one) for one in traced)
    model = run.load_model()

    rows: list[Row] = []
    for name, scale in SCALES.items():
        pictures = draw([place(one, scale, rng) for one in traced])
        correct = {}
        for way, pixels in pictures.items():
            logits = compute_logits(model, torch.from_numpy(pixels[:, None].copy()), run.preprocessing)
            correct[way] = int((logits.argmax(dim=1).numpy() == labels).sum())
        rows.append(Row(name, len(traced), correct["normalised"], correct["plain"]))
    whole = Row(
        "all", *(sum(getattr(row, part) for row in rows) for part in ("drawings", "correct", "correct_without"))
    )

    print(f"{run.path}: {len(traced)} test digits of 10 classes traced to {strokes} strokes, moved, three sizes")
    for row in (*rows, whole):
        rate, without = row.correct / row.drawings, row.correct_without / row.drawings
        print(f"  {row.size:8}  normalised {rate:6.1%}   as drawn {without:6.1%}")
    rate, interval = whole.correct / whole.drawings, wilson_interval(whole.correct, whole.drawings)
    print(f"  normalised, 95 % interval: {interval.low:.1%} to {interval.high:.1%}; required: {REQUIRED_ACCURACY:.0%}")
    if options.json:
        summary = {
            "run": str(run.path),
            "strokes": strokes,
            "required_accuracy": REQUIRED_ACCURACY,
            "rows": [asdict(row) for row in (*rows, whole)],
        }
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return 0 if rate >= REQUIRED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
