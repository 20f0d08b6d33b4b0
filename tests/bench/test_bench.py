"""The benchmarks' arithmetic, and that their candidates compute the same function. Nothing here is timed."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import attention
import common
import novelty
import numpy as np
import outlier_images
import peers
import pytest
import scaling
import serve
import time_to_accuracy
import torch
import worker
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vitreous.config import ViTConfig
from vitreous.runs import Run
from vitreous.serving.limits import Limits
from vitreous.serving.reading import parse_predict

TINY = ViTConfig(image_size=8, patch_size=4, dim=16, depth=2, num_heads=2, mlp_dim=24, num_classes=5)


def test_candidates_take_turns() -> None:
    turns: list[str] = []
    times = common.interleave({name: lambda name=name: float(turns.append(name) or 1) for name in "ABC"}, rounds=3)
    assert "".join(turns) == "ABCABCABC"
    assert times == {name: [1.0] * 3 for name in "ABC"}


def test_spent_budget_leaves_two_rounds() -> None:
    assert len(common.interleave({"A": lambda: 1.0}, rounds=9, budget_seconds=0)["A"]) == 2


def test_ratio_is_taken_within_the_rounds() -> None:
    times = {"ours": [1.0, 10.0, 2.0], "theirs": [2.0, 20.0, 4.0]}  # a busy second round affects both
    assert common.ratio(times, "theirs", "ours") == 2
    assert common.fastest(times, ["theirs", "ours"]) == "ours"
    assert common.spread([1.0, 1.0, 1.0]) == 0


def test_sections_are_rewritten_in_place(tmp_path: Path) -> None:
    file = tmp_path / "docs" / "benchmarks.md"
    for name, text in (("one", "first"), ("two", "second"), ("one", "again")):
        common.write_section(file, name, text)
    text = file.read_text()
    assert text.startswith("# Benchmarks")
    assert "first" not in text
    assert text.index("again") < text.index("second")
    assert text.count("<!-- bench:one -->") == 1


def test_report_has_ratios_and_rows(tmp_path: Path) -> None:
    report = common.Report("tiny", "Tiny", ratios={"speed": 2.0}, gflops=[1.0])
    report.tables.append(common.Table("T", [common.Column("x", "x", "{:.1f}"), common.Column("y", "y")], [{"x": 1.0}]))
    report.finish(common.parser("").parse_args(["--json", str(tmp_path / "r.json"), "--docs", str(tmp_path / "d.md")]))
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["ratios"] == {"speed": 2.0}
    assert written["rows"] == [{"table": "T", "x": 1.0}]
    assert "| 1.0 | – |" in (tmp_path / "d.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    peers.write_weights(TINY, folder)
    return folder


def _logits(name: str, weights: Path) -> Tensor:
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return peers.logits_of(peers.build_peer(name, TINY, weights).eval()(images))


@pytest.mark.parametrize("name", [name for name in peers.SAME_FUNCTION if name != "vitreous"])
@pytest.mark.filterwarnings("ignore")
def test_peers_compute_our_function(name: str, weights: Path) -> None:
    torch.testing.assert_close(_logits(name, weights), _logits("vitreous", weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["vitreous", "timm"])
def test_worker_trains_and_infers(name: str, weights: Path) -> None:
    with worker.Worker(worker.Candidate(name, TINY.model_dump(), str(weights), threads=1)) as process:
        torch.testing.assert_close(
            torch.tensor(process.ask("logits", batch=2)), torch.tensor(process.ask("logits", batch=3))[:2]
        )
        assert process.ask("train", batch=2, steps=1) > 0
        assert process.ask("peak_memory") > 10
        with pytest.raises(worker.WorkerError, match="AttributeError"):
            process.ask("fly")


def test_both_attention_paths_are_compared_on_the_same_function() -> None:
    geometry = attention.Geometry(tokens=9, head_dim=8)
    layer = geometry.attention().double()
    x = torch.randn(2, 9, 8 * attention.NUM_HEADS, dtype=torch.float64)
    outputs = []
    for fused in (True, False):
        layer.fused = fused
        outputs.append(layer(x))
    torch.testing.assert_close(*outputs)


def test_correct_choice_costs_nothing() -> None:
    assert attention.cost_over_best({"fused_over_products": 0.5, "rule": "fused"}) == 1
    assert attention.cost_over_best({"fused_over_products": 0.5, "rule": "products"}) == 2


def test_exponents() -> None:
    values = [1, 2, 4, 8]
    assert math.isclose(scaling.exponent(values, [3 * value**2 for value in values]), 2)


def test_every_axis_is_a_model() -> None:
    for axis in scaling.AXES:
        for value in axis.values:
            config = axis.config(value).check_geometry()
            if axis.key == "tokens":
                assert config.num_tokens == value


def outcome(reached_after: float | None, train_seconds: float) -> time_to_accuracy.Outcome:
    return time_to_accuracy.Outcome(reached_after, 0.99, train_seconds, 100.0, 0.99, gflops=110.0)


@pytest.mark.parametrize(("reached_after", "times_faster"), [(600.0, 10.0), (None, 20.0)])
def test_missed_target_gives_a_lower_bound(reached_after: float | None, times_faster: float) -> None:
    report = common.Report("name", "title")
    outcomes = {
        "mnist-fast": outcome(60.0, 80.0), "mnist-vit": outcome(None, 90.0),
        time_to_accuracy.STANDARD: outcome(reached_after, 1200.0),
    }  # fmt: skip
    rows = [time_to_accuracy.row_of(recipe, [one], timed=False) for recipe, one in outcomes.items()]
    time_to_accuracy.add_ratios(report, rows, quick=False, standard_epochs=None)
    assert report.ratios["time_to_accuracy"] == report.ratios["time_to_accuracy_mnist-fast"] == times_faster
    assert "time_to_accuracy_mnist-vit" not in report.ratios, "it did not reach the target"
    assert any("lower bounds" in note for note in report.notes) is (reached_after is None)
    assert rows[0]["scaled_seconds"] == 30.0, "a machine half as fast as the reference"


# --- serving ----------------------------------------------------------------------------------------------------------


def test_bodies_of_the_server_benchmark() -> None:
    """They are what the loads are named after, and the server's own parser reads them."""
    kind = f"multipart/form-data; boundary={serve.BOUNDARY}".encode()
    for load in serve.LOADS:
        _, uploads = parse_predict(serve.make_body(load.side, load.files), kind, b"", Limits())
        assert [upload.declared_pixels for upload in uploads] == [load.side**2] * load.files
        assert max(load.connections) * load.files <= Limits.queue_images
    assert {(load.side, load.files) for load in serve.LOADS} == {(28, 1), (280, 1), (28, 64)}


def test_rounds_of_the_server_benchmark_are_summarised(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        serve.Row(load, server, 8, rate * speed, rate * speed, 1.0, 4.0 / speed, errors, 100)
        for load in ("28-px PNG", "64 files")
        for rate, errors in ((10.0, 0), (30.0, 1), (20.0, 2))
        for server, speed in (("ours", 4.0), ("plain", 1.0))
    ]
    best = serve.summarise(rows)
    assert [(row.load, row.server, row.requests_per_second, row.errors) for row in best] == [
        ("28-px PNG", "ours", 80.0, 3),
        ("28-px PNG", "plain", 20.0, 3),
        ("64 files", "ours", 80.0, 3),
        ("64 files", "plain", 20.0, 3),
    ]
    compared = serve.ratios(best)
    assert compared["64 files: throughput at 8"] == 4
    assert compared["28-px PNG: p99 at 8"] == 0.25
    rows_written = [asdict(row) for row in best]
    memory = {"requests": 1000, "before_mb": 200.0, "after_mb": 201.0, "errors": 0}
    found = {"model": "tiny", "ratios": compared, "rows": rows_written, "memory": memory, "client": "wrk"}
    serve.report(found, Namespace(json=tmp_path / "serve.json", docs=tmp_path / "docs.md"))
    written = json.loads((tmp_path / "serve.json").read_text())
    assert written["ratios"] == found["ratios"]
    assert [row["load"] for row in written["rows"]] == [row["load"] for row in found["rows"]]
    assert "| 28-px PNG | 8 | ours |" in (tmp_path / "docs.md").read_text()
    assert "200 MB before and 201 MB after 1,000 requests" in capsys.readouterr().out


# --- novelty.py --------------------------------------------------------------------------------------------------


def test_auroc_is_scikit_learns() -> None:
    random = np.random.default_rng(0)
    inside, outside = random.integers(0, 9, 40).astype(float), random.integers(3, 12, 25).astype(float)  # with ties
    expected = roc_auc_score([0] * 40 + [1] * 25, np.concatenate([inside, outside]))
    assert novelty.auroc(inside, outside) == pytest.approx(expected)


@pytest.mark.parametrize("picture", [outlier_images.letter, outlier_images.scribble, outlier_images.smiley])
def test_drawings_are_reproducible_and_differ(picture: Callable[[np.random.Generator], np.ndarray]) -> None:
    preprocessing = Run.open("bundled:vit").preprocessing
    first = outlier_images.drawn(picture, 4, preprocessing, seed=3)
    assert first.shape == (4, 1, 28, 28)
    assert torch.equal(first, outlier_images.drawn(picture, 4, preprocessing, seed=3))
    assert len({image.numpy().tobytes() for image in first}) == 4


def test_noise_has_every_shape() -> None:
    assert outlier_images.noise(3, (3, 8, 8)).shape == (3, 3, 8, 8)
