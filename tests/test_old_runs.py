"""Runs that vitreous 0.1.0 wrote open, predict and resume as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import vitreous

OLD = Path(__file__).parent / "fixtures" / "runs-0.1"


def test_a_finished_run_gives_the_same_logits_and_accuracy():
    expected = json.loads((OLD / "expected.json").read_text())
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    logits = vitreous.load(OLD / "finished")(images)
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), rtol=1e-4, atol=1e-5)
    assert vitreous.evaluate(OLD / "finished").accuracy == pytest.approx(expected["accuracy"], abs=1 / 359)


def test_an_unfinished_run_resumes_where_it_stopped(tmp_path):
    path = tmp_path / "unfinished"
    shutil.copytree(OLD / "unfinished", path)
    before = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    run = vitreous.Run.open(path)
    assert not run.is_done
    finished = vitreous.fit(run.config, out=path, resume=True, progress=False)
    assert finished.is_done
    assert finished.metrics()[: len(before)] == before
    assert [line["step"] for line in finished.metrics() if line["event"] == "train"] == list(range(10, 201, 10))
    assert vitreous.evaluate(finished).accuracy > 0.9
