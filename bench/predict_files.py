"""`vitreous predict FOLDER -o FILE.csv` against `vitreous evaluate`: images per second on small PNG files.

    python bench/predict_files.py [--quick] [--docs] [--json FILE]

The same test images of MNIST: as the tensor that `evaluate` has (nothing is decoded), and as 28×28 PNG files in a
folder, which are listed, decoded in other processes, predicted, and written as rows of a CSV file. Both take turns, in
one process; loading the model is part of both, starting the decoding processes of one. `ratio` is predict's images per
second as a share of evaluate's.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from functools import partial
from pathlib import Path

from common import Column, Report, Row, Table, interleave, median, parser, spread
from PIL import Image

from vitreous import hardware
from vitreous.config import DataConfig
from vitreous.data.datasets import Split, load_dataset
from vitreous.data.image_files import find_images
from vitreous.evaluation.batch_prediction import predict_stream
from vitreous.evaluation.novelty import Novelty
from vitreous.evaluation.prediction import evaluate_model
from vitreous.evaluation.prediction_files import Layout, writing
from vitreous.runs import Run, open_run

RUNS = ("bundled:vit", "bundled:cnn")
COLUMNS = (
    Column("run", "run"),
    Column("images", "images", "{:,}"),
    Column("evaluate", "evaluate, images/s", "{:,.0f}"),
    Column("predict", "predict, images/s", "{:,.0f}"),
    Column("ratio", "ratio", "{:.2f}"),
    Column("lowest", "lowest", "{:.2f}"),
    Column("highest", "highest", "{:.2f}"),
    Column("spread", "±", "{:.0%}"),
    Column("rounds", "n"),
)


def write_images(split: Split, folder: Path) -> None:
    for index in range(len(split)):
        place = folder / f"{index // 1000:03}"
        place.mkdir(exist_ok=True)
        Image.fromarray(split.image(index)[0].numpy()).save(place / f"{index:06}.png")


def evaluate(run: Run, split: Split) -> float:
    start = time.perf_counter()
    evaluate_model(run.load_model(), split, run.preprocessing, run.config.train.eval_batch_size)
    return time.perf_counter() - start


def predict(run: Run, folder: Path, out: Path, count: int) -> float:
    start = time.perf_counter()
    files = find_images([folder])
    assert files.count() == count
    layout = Layout(run.class_names, files.columns, Novelty.of_run(run) is not None, top=None)
    with writing(out, layout) as file:
        results = predict_stream(run, files)
        while batch := list(itertools.islice(results, 256)):
            file.write(batch)
    seconds = time.perf_counter() - start
    assert sum(1 for _ in out.open()) == 1 + count
    return seconds


def measure(name: str, split: Split, folder: Path, rounds: int, report: Report) -> Row:
    run = open_run(name)
    out = folder.parent / "predictions.csv"
    turns = {
        "evaluate": partial(evaluate, run, split),
        "predict": partial(predict, run, folder, out, len(split)),
        "peak": report.measure_peak,
    }
    times = interleave(turns, rounds)
    ratios = [a / b for a, b in zip(times["evaluate"], times["predict"], strict=True)]
    return {
        "run": name, "images": len(split), "rounds": len(ratios), "ratio": median(ratios), "spread": spread(ratios),
        "lowest": min(ratios), "highest": max(ratios),
        **{key: len(split) / median(times[key]) for key in ("evaluate", "predict")},
    }  # fmt: skip


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    hardware.prepare()
    count, rounds = (4000, 5) if args.quick else (10_000, 9)
    if args.smoke:
        count, rounds = 100, 1
    data = "digits" if args.smoke else "mnist"
    test = load_dataset(DataConfig(name=data)).test
    split = Split(test.batch(slice(count)), test.labels[:count])
    report = Report("predict_files", "Predicting a folder of small PNG files")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        write_images(split, folder)
        rows = [measure(name, split, folder, rounds, report) for name in RUNS[: 1 if args.smoke else None]]
    report.tables.append(Table("Images per second", COLUMNS, rows))
    report.ratios["predict_over_evaluate"] = rows[0]["ratio"]
    report.finish(args)


if __name__ == "__main__":
    main()
