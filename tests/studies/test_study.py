"""Every study, extremely small; what its files contain; how it goes on, and runs several trainings at once."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from vitreous.errors import ConfigError, RunError
from vitreous.evaluation.prediction import evaluate_run
from vitreous.runs import Run
from vitreous.studies import pages
from vitreous.studies.definition import bundled_studies
from vitreous.studies.study import StudyResult, run_study
from vitreous.studies.transfer import Transfer
from vitreous.training.loop import TrainingInterrupted

GRIDS = [name for name in bundled_studies() if name != "transfer"]
TINY = [
    "train.epochs=0.2", "train.min_steps_per_epoch=4", "train.batch_size=16", "data.train_per_class=4", "model.depth=1",
    "train.budget_seconds=none", "data.val_fraction=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """28×28 images of ten classes, which the article's models need, with a test set of their own."""
    random, arrays = np.random.default_rng(0), {}
    for prefix, count in (("", 120), ("test_", 40)):
        labels = np.arange(count) % 10
        images = random.integers(0, 100, (count, 28, 28), dtype=np.uint8)
        images[np.arange(count), :, 2 * labels + 3] = 255
        arrays |= {f"{prefix}images": images, f"{prefix}labels": labels}
    file = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(file, **arrays)
    return str(file)


@pytest.fixture(scope="module")
def studied(data, tmp_path_factory) -> dict[str, StudyResult]:
    """All studies, quick and with one seed, trained in this process."""
    folder = tmp_path_factory.mktemp("studies")
    return {name: tiny(name, data, folder / name) for name in GRIDS}


def tiny(name: str | Path, data: str, out: Path, **changes) -> StudyResult:
    asked = {"quick": True, "seeds": 1, "jobs": 1, "settings": TINY, "progress": False, **changes}
    if name in ("article", "data-size", "order"):  # these have the CNN beside the ViT
        asked["settings"] = [*asked["settings"], "model.conv_channels=[4, 4]"]
    return run_study(name, data=data, out=out, **asked)


@pytest.mark.parametrize("name", GRIDS)
def test_every_study_runs_and_writes_its_files(studied, name):
    result = studied[name]
    files = {path.name for path in result.folder.iterdir() if path.is_file()}
    extra = {"positions.svg", "positions.png"} if name == "positions" else set()
    assert files == {"report.html", "results.json", "table.md", "figure.svg", "figure.png"} | extra
    stored = json.loads((result.folder / "results.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert {verdict.check.claim for verdict in result.verdicts} == {one["claim"] for one in stored["verdicts"]}
    assert all(len(cell["runs"]) == 1 for cell in stored["cells"])
    for cell in stored["cells"][:2]:
        run = Run.open(cell["runs"][0])
        assert evaluate_run(run, batch_size=cell["eval_batch_size"]).accuracy == pytest.approx(cell["accuracies"][0])
    page = result.report.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert 'role="img" aria-label="' in page
    assert "\\mathdefault" not in page
    for arm in result.study.arms:
        assert f"| {arm.name} |" in (result.folder / "table.md").read_text(encoding="utf-8")


def test_the_articles_model_is_evaluated_in_two_ways(studied):
    cells = studied["article"].cells
    together, alone = (cells[f"as written, {how}", None].runs[0] for how in ("batches of 32", "one image at a time"))
    assert together.run == alone.run
    assert (together.batch_size, alone.batch_size) == (32, 1)
    assert together.nll != alone.nll


def test_points_change_what_they_name(studied):
    cells = studied["order"].cells
    shuffled = {point: Run.open(cells["CNN", point].runs[0].run).config.data.shuffle_patches
                for point in ("none", "fixed", "each")}  # fmt: skip
    assert shuffled == {"none": "none", "fixed": "fixed", "each": "each"}
    # the mean of the patches and a class token without positions: the same logits, whatever the order
    unordered = [cells["ViT, no positions", point].runs[0].nll for point in ("none", "fixed", "each")]
    assert unordered == pytest.approx([unordered[0]] * 3, rel=1e-4)
    assert cells["CNN", "none"].runs[0].nll != pytest.approx(cells["CNN", "fixed"].runs[0].nll, rel=1e-4)


def test_page_for_the_documents(studied, tmp_path):
    for name in ("positions", "patch-size"):
        page = pages.write_page(studied[name], tmp_path)
        text = page.read_text(encoding="utf-8")
        assert studied[name].study.claim in text
        assert f"]({name}.svg)" in text
        assert all(verdict.sentence in text for verdict in studied[name].verdicts)
        assert "40 test images" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "positions.md", "positions.svg", "positions-positions.svg", "patch-size.md", "patch-size.svg"
    }  # fmt: skip


# --- going on ----------------------------------------------------------------------------------------------------

MINE = """
name = "mine"
title = "Is deeper better?"
claim = "Deeper is better."
source = "me"
[[arms]]
name = "ViT"
[points]
label = "layers"
values = [1, 2]
settings = ["model.depth={}"]
[[verdict]]
claim = "two layers are better than one"
arm = "ViT"
at = [2]
against_at = 1
expect = "better"
[quick]
how = "less of it"
"""
SHORT = [one for one in TINY if "depth" not in one]


@pytest.fixture
def mine(tmp_path) -> Path:
    (tmp_path / "mine.toml").write_text(MINE)
    return tmp_path / "mine.toml"


def test_finished_runs_are_reused_and_more_seeds_added(mine, data, tmp_path, capfd):
    first = tiny(mine, data, tmp_path / "out", settings=SHORT)
    record = tmp_path / "out" / "runs" / "vit-1-seed0" / "config.json"
    before = record.stat().st_mtime_ns
    more = tiny(mine, data, tmp_path / "out", settings=SHORT, seeds=2, progress=True)
    assert "mine: 2 of 4 runs are done already" in capfd.readouterr().err
    assert record.stat().st_mtime_ns == before
    assert [len(cell.runs) for cell in more.cells.all] == [2, 2]
    assert more.cells["ViT", 1].accuracies[0] == first.cells["ViT", 1].accuracies[0]
    with pytest.raises(RunError, match=r"ViT, 1, seed 0: .* holds a run with other settings: name another folder"):
        tiny(mine, data, tmp_path / "out", settings=[*SHORT, "model.dim=32"])


def test_a_damaged_evaluation_is_made_again(mine, data, tmp_path):
    first = tiny(mine, data, tmp_path / "out", settings=SHORT)
    (damaged,) = (tmp_path / "out" / "evaluations").glob("vit-2-*")
    damaged.write_bytes(damaged.read_bytes()[:50])
    again = tiny(mine, data, tmp_path / "out", settings=SHORT)
    assert [cell.accuracies for cell in again.cells.all] == [cell.accuracies for cell in first.cells.all]


def test_two_runs_at_once_give_the_same_and_a_stop_is_resumed(mine, data, tmp_path, monkeypatch):
    """SIGTERM to the study reaches its processes: their runs are saved, and the same call goes on to the same end."""
    longer = [*SHORT, "train.epochs=10", "train.log_every=1"]
    alone = tiny(mine, data, tmp_path / "alone", settings=longer)
    seen = []

    def stop(self, job, share):
        seen.append(job.point)
        if len(seen) == 6:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr("vitreous.studies.progress.GridProgress.update", stop)
        with pytest.raises(TrainingInterrupted, match=r"goes on where it stopped") as stopped:
            tiny(mine, data, tmp_path / "out", settings=longer, jobs=2)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    unfinished = [run for run in map(Run.open, (tmp_path / "out" / "runs").iterdir()) if not run.is_done]
    assert unfinished, "it was stopped in the middle"
    assert any(run.resume_point() is not None for run in unfinished)
    both = tiny(mine, data, tmp_path / "out", settings=longer, jobs=2)
    assert {cell.point: cell.accuracies for cell in both.cells.all} == {
        cell.point: cell.accuracies for cell in alone.cells.all
    }
    assert [cell.runs[0].nll for cell in both.cells.all] == pytest.approx([c.runs[0].nll for c in alone.cells.all])


def test_a_run_that_fails_in_its_process_is_named(mine, data, tmp_path):
    with pytest.raises(RunError, match=r"ViT, \d, seed 0: .*(NaN|loss became)"):
        tiny(mine, data, tmp_path / "out", settings=[*SHORT, "train.lr=1e30", "train.optimizer=sgd"], jobs=2)


def test_transfer_is_a_study_too(data, tmp_path):
    file = tmp_path / "mine.toml"
    other = tmp_path / "other.npz"
    shutil.copy(data, other)
    text = (bundled_studies()["transfer"]).read_text(encoding="utf-8")
    text = text.replace('"fashion-mnist"', f'"{other}"').replace('"mnist"', f'"{data}"')
    text = text.replace("per_class = [10, 100]", f'per_class = [2]\npretrain_on = "{other}"\ntarget = "{data}"')
    file.write_text(
        text.replace("fewest_steps = 300", "fewest_steps = 4").replace(
            "pretrain_epochs = 1\n", "pretrain_epochs = 0.1\n"
        )
    )
    result = run_study(file, quick=True, out=tmp_path / "out", settings=["model.depth=1"], progress=False)
    assert isinstance(result, Transfer)
    files = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert files == {"report.html", "results.json", "table.md", "figure.svg", "figure.png"}
    page = pages.write_page(result, tmp_path / "docs").read_text(encoding="utf-8")
    assert result.verdict in page
    assert "| 2 | 4 × " in page
    with pytest.raises(ConfigError, match=r"its data are in \[transfer\]"):
        run_study(file, quick=True, data="digits")


@pytest.mark.parametrize(
    ("changes", "sentence"), [({"seeds": 0}, "seeds=0: at least 1"), ({"jobs": 0}, "jobs=0: at least 1")]
)
def test_counts_below_one_are_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run_study("order", **changes)


def test_the_list_names_every_study():
    _, values = pages.list_table()
    assert [one["name"] for one in values] == list(bundled_studies())
    assert next(one for one in values if one["name"] == "order")["quick_runs"] == 27
