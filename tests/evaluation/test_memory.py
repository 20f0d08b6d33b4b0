"""Training, evaluation, mistakes and comparisons do not hold a split in memory: their peak with ten times the data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from processes import Processes

from vitreous.data.prepared import Content, Manifest
from vitreous.data.shard_writer import write_manifest, writing_shard
from vitreous.data.splits import SplitName
from vitreous.evaluation import metrics
from vitreous.evaluation.calibration import fit_temperature

SIDE = 28
TRAIN = 6000  # more than the statistics of novelty are taken from, in both cases
MOST_GROWTH = 35  # MB; 50,000 test images are 39 MB as bytes and 157 MB as floats

CHILD = """
import json, sys
from pathlib import Path
import vitreous.data.mapped as mapped, vitreous.data.near_duplicates as near_duplicates
from vitreous.comparison.mistakes import find_mistakes, write_mistakes
from vitreous.config import configure
from vitreous.evaluation.prediction import evaluate_run
from vitreous.studies.compare import compare
from vitreous.training.loop import fit
mapped.KEPT_BYTES = 2**20  # the pages of the smaller set would not reach the bound
near_duplicates.MOST_IMAGES = 1000  # the search is quadratic, and has its own bound
def status(key):
    return next(int(line.split()[1]) / 1000 for line in open("/proc/self/status") if line.startswith(key))
peaks, before = {}, status("VmRSS")
settings = ["model.depth=1", "model.dim=8", "model.num_heads=1", "model.mlp_dim=8", "train.threads=1",
            "train.batch_size=20", "train.epochs=0.02", "train.min_steps_per_epoch=1", "train.validate_every=9"]
runs = []
for name in ("first", "second"):
    config = configure("vit", settings=[*settings, f"name={name}"], data=sys.argv[1])
    runs.append(fit(config, Path(sys.argv[2], name), progress=False))
peaks["train"] = status("VmHWM") - before
assert evaluate_run(runs[0]).count == int(sys.argv[3])
peaks["evaluate"] = status("VmHWM") - before
write_mistakes(find_mistakes(runs[0], most=3), Path(sys.argv[2], "mistakes"))
peaks["mistakes"] = status("VmHWM") - before
compare(runs, out=Path(sys.argv[2], "comparison"))
peaks["compare"] = status("VmHWM") - before
print(json.dumps(peaks))
"""


def write_images(folder: Path, test: int) -> Path:
    """Write images: `TRAIN` for training, and some for the test."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, 10_000 + SIDE**2, dtype=np.uint8)
    folder.mkdir()
    with writing_shard(folder, 0, (SIDE, SIDE)) as writer:
        for place, start in enumerate(random.integers(0, 10_000, TRAIN + test).tolist()):
            image = noise[start : start + SIDE**2].reshape(1, SIDE, SIDE)
            split: SplitName = "train" if place < TRAIN else "test"
            writer.append(image, f"{place}.png", place % 10, split, place.to_bytes(16, "big"), place, is_gray=True)
        shard = writer.finish(1)
    content = Content(tuple("abcdefghij"), source="noise")
    write_manifest(folder, Manifest(content, (SIDE, SIDE), (shard,), is_shuffled=True))
    return folder


def test_ten_times_the_test_images_take_hardly_more_memory(tmp_path: Path, processes: Processes) -> None:
    peaks = []
    for test in (5000, 50_000):
        data = write_images(tmp_path / f"data-{test}", test)
        result = processes.run("-c", CHILD, str(data), str(tmp_path / f"runs-{test}"), str(test))
        assert result.returncode == 0, result.stderr
        peaks.append(json.loads(result.stdout.splitlines()[-1]))
    for name, few in peaks[0].items():
        assert peaks[1][name] - few < MOST_GROWTH, (name, peaks)


@pytest.mark.parametrize("at_once", [1, 7, 64])
def test_metrics_of_some_images_at_a_time_are_the_same(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    logits, labels = random.normal(0, 3, (50, 4)).astype(np.float32), random.integers(0, 4, 50)
    table = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def measured() -> list[object]:
        return [
            metrics.accuracy(logits, labels), metrics.nll(logits, labels), metrics.calibration_error(table, labels),
            metrics.image_nll(table, labels).tolist(), metrics.confusion_matrix(logits, labels).tolist(),
            [values.tolist() for values in metrics.calibration_gaps(table, labels)], fit_temperature(logits, labels),
        ]  # fmt: skip

    whole = measured()
    monkeypatch.setattr(metrics, "_VALUES_AT_ONCE", 4 * at_once)
    monkeypatch.setattr("vitreous.evaluation.calibration.MOST_SCORES", 4 * at_once)
    assert measured() == whole
