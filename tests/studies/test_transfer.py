"""The transfer study: arms differ only in their starting weights, and the report agrees with the runs."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous.cli
from vitreous.data.datasets import duplicates_between, load_dataset
from vitreous.data.splits import keep_per_class
from vitreous.errors import ConfigError, DataError, RunError
from vitreous.evaluation.metrics import paired_t_test, seed_interval, welch_t_test
from vitreous.evaluation.prediction import evaluate_model
from vitreous.runs import Run
from vitreous.studies.transfer import Transfer, render_table, transfer
from vitreous.studies.transfer_report import (
    FINE_TUNED,
    HEAD_ONLY,
    SCRATCH,
    ArmResult,
    Row,
    gains_over_scratch,
    verdict,
    write_transfer,
)
from vitreous.training.setup import starting_weights

SETTINGS = [
    "model.dim=16", "model.depth=1", "model.num_heads=2", "model.mlp_dim=16", "model.patch_size=4", "train.threads=1",
]  # fmt: skip


def stripes(path: Path, classes: int, count: int, side: int, channels: int) -> str:
    """Noise with a bright column whose place is the class; a third as many test images as training images."""
    random, arrays = np.random.default_rng(classes), {}
    for prefix, number in (("", count), ("test_", count // 3)):
        labels = np.arange(number) % classes
        images = random.integers(0, 160, (number, side, side, channels), dtype=np.uint8)
        images[np.arange(number), :, (side // classes) * labels, :] = 255
        arrays |= {f"{prefix}images": images, f"{prefix}labels": labels}
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> tuple[str, str]:
    """Images to pre-train on (20×20, colour, 3 classes), and those to learn (28×28, gray, 4 classes)."""
    folder = tmp_path_factory.mktemp("data")
    return stripes(folder / "a & <b>.npz", 3, 120, 20, 3), stripes(folder / "target.npz", 4, 240, 28, 1)


def study(data: tuple[str, str], out: Path, **changes) -> Transfer:
    asked = {
        "per_class": (2, 6), "seeds": 2, "pretrain_epochs": 2, "epochs": 1, "fewest_steps": 6, "lr_factors": (0.3, 1),
        "settings": SETTINGS, "progress": False, **changes,
    }  # fmt: skip
    return transfer(*data, out=out, **asked)


@pytest.fixture(scope="module")
def result(data, tmp_path_factory) -> Transfer:
    return study(data, tmp_path_factory.mktemp("study"))


def test_fine_tuned_arm_starts_from_the_pretrained_weights(result):
    """Its first weights are the pre-trained run's, channels adapted; scratch starts from none."""
    run = Run.open(result.rows[0].arms[FINE_TUNED].runs[0])
    pretrained = Run.open(result.pretrained["run"]).load_model().state_dict()
    _, adapted = starting_weights(run.config, load_dataset(run.config.data))
    assert Path(run.config.start.weights) == Path(result.pretrained["run"])
    for name in ("blocks.0.attn.qkv.weight", "pos_embed", "norm.weight"):
        assert torch.equal(adapted.tensors[name], pretrained[name])
    assert torch.count_nonzero(adapted.tensors["head.weight"]) == 0
    assert any("channels 3 → 1" in change for change in result.pretrained["weights_fitted"])
    assert Run.open(result.rows[0].arms[SCRATCH].runs[0]).config.start.weights is None


def test_head_only_leaves_the_backbone_as_it_was(result):
    run = Run.open(result.rows[1].arms[HEAD_ONLY].runs[1])
    _, adapted = starting_weights(run.config, load_dataset(run.config.data))
    trained = run.load_model().state_dict()
    changed = {name for name, tensor in adapted.tensors.items() if not torch.equal(tensor, trained[name])}
    assert changed == {"head.weight", "head.bias"}


def test_arms_differ_in_the_start_and_the_learning_rate_alone(result):
    for row in result.rows:
        for place in range(result.seeds):
            runs = {arm: Run.open(row.arms[arm].runs[place]) for arm in (SCRATCH, FINE_TUNED)}
            plain = [
                run.config.replace(
                    start=run.config.start.replace(weights=None), train=run.config.train.replace(lr=1, muon_lr=1)
                )
                for run in runs.values()
            ]
            assert plain[0].data == plain[1].data
            assert plain[0] == plain[1]
            assert {run.resolved.steps for run in runs.values()} == {row.steps}
            assert runs[SCRATCH].record.data.images["train"] == row.images == 4 * row.per_class


def test_seeds_draw_other_labelled_images(result):
    first, second = (Run.open(path) for path in result.rows[0].arms[SCRATCH].runs)
    drawn = [load_dataset(run.config.data).train.images for run in (first, second)]
    assert not torch.equal(*drawn)
    tests = [load_dataset(run.config.data).test.images for run in (first, second)]
    assert torch.equal(*tests)


def test_target_is_brought_to_the_size_of_the_source(result):
    assert {Run.open(arm.runs[0]).preprocessing.image_size for row in result.rows for arm in row.arms.values()} == {
        (20, 20)
    }


def test_json_agrees_with_the_runs(result):
    stored = json.loads(result.results.read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(result.as_dict()))
    for row in stored["rows"]:
        of_arm = {}
        for arm in row["arms"]:
            runs = [Run.open(path) for path in arm["runs"]]
            of_arm[arm["arm"]] = accuracies = [run.test_results.accuracy for run in runs]
            assert arm["accuracies"] == accuracies
            assert arm["accuracy"] == pytest.approx(seed_interval(accuracies).value)
            assert all(f"-lr{arm['lr_factor']:g}-" in path for path in arm["runs"])
        for gain in row["gains"]:
            differences = np.subtract(of_arm[gain["arm"]], of_arm[SCRATCH])
            assert gain["gain"] == pytest.approx(differences.mean())
            assert gain["p_paired_over_seeds"] == pytest.approx(paired_t_test(differences))
            assert gain["p_welch_over_seeds"] == pytest.approx(welch_t_test(of_arm[gain["arm"]], of_arm[SCRATCH]))
            assert gain["p_paired_holm"] >= gain["p_paired_over_seeds"]


def test_learning_rate_is_chosen_on_images_that_no_arm_trains_on(result):
    """The best of the grid by (at most 100 per class of) the images that the first seed's trainings never see."""
    largest = Run.open(result.rows[-1].arms[SCRATCH].runs[0])
    everything = load_dataset(largest.config.data.replace(train_per_class=None)).train
    trained_on = keep_per_class(everything.labels, 6, largest.config.seed)
    held_out = everything.take(np.setdiff1d(np.arange(len(everything)), trained_on))  # 54 per class: all that is left
    assert not duplicates_between(load_dataset(largest.config.data).train, held_out)
    for row in result.rows:
        for arm in row.arms.values():
            assert arm.tried[arm.lr_factor] == max(arm.tried.values())
            for factor, accuracy in arm.tried.items():
                run = Run.open(arm.runs[0].replace(f"-lr{arm.lr_factor:g}-", f"-lr{factor:g}-"))
                assert evaluate_model(run.load_model(), held_out, run.preprocessing).accuracy == accuracy
    assert set(result.rows[0].arms[SCRATCH].tried) == set(result.rows[0].arms[FINE_TUNED].tried) == {0.3, 1.0}


def test_resumes_where_it_stopped(data, result):
    """Finished runs are reused unchanged; a missing one is trained again to the same numbers."""
    import shutil

    folder = result.report.parent
    lost = Path(result.rows[0].arms[SCRATCH].runs[1])
    shutil.rmtree(lost)
    kept = Path(result.rows[0].arms[FINE_TUNED].runs[0]) / "config.json"
    before = kept.stat().st_mtime_ns
    again = study(data, folder)
    assert kept.stat().st_mtime_ns == before
    assert lost.is_dir()
    accuracies = [[arm.accuracies for arm in row.arms.values()] for row in again.rows]
    assert accuracies == [[arm.accuracies for arm in row.arms.values()] for row in result.rows]
    with pytest.raises(RunError, match="other settings"):
        study(data, folder, pretrain_epochs=3)


def test_report_is_self_contained_and_escaped(result):
    page = result.report.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "http" not in page.replace("http-equiv", "")
    assert "<b>" not in page
    assert "a &amp; &lt;b&gt;.npz" in page
    assert (result.report.parent / "figure.png").stat().st_size > 5000
    assert "\\mathdefault" not in page  # default tick labels of a logarithmic axis


# --- verdicts --------------------------------------------------------------------------------------------------------


def made_up(*rows: tuple[list[float], list[float]]) -> list[Row]:
    """Return one row per pair of (scratch, fine-tuned) accuracies, with 10, 100, … labels per class."""
    tables = [
        {
            arm: ArmResult(arm, 1.0, {1.0: 0.5}, tuple(values), (1.0,) * len(values), ("run",) * len(values))
            for arm, values in zip((SCRATCH, FINE_TUNED), pair, strict=True)
        }
        for pair in rows
    ]
    return [
        Row(10 ** (place + 1), 10 ** (place + 2), 300, 64, table, gains)
        for place, (table, gains) in enumerate(zip(tables, gains_over_scratch(tables), strict=True))
    ]


def test_verdict_on_help_harm_and_neither():
    better, worse = [0.70, 0.71, 0.69], [0.60, 0.605, 0.595]
    rows = made_up((worse, better), (better, worse), ([0.9, 0.8, 0.85], [0.85, 0.9, 0.81]))
    sentence = verdict("shirts", "digits", rows, 3)
    assert "helps with 10 labelled images per class (+10.0 points)" in sentence
    assert "hurts with 100 labelled images per class (−10.0 points)" in sentence
    assert "makes no significant difference over 3 seeds with 1,000" in sentence
    assert [row.best_arm for row in rows] == [FINE_TUNED, SCRATCH, None]


def test_report_of_a_harm(result, tmp_path):
    """The page and the table also show a loss."""
    rows = tuple(made_up(([0.7, 0.71, 0.69], [0.6, 0.605, 0.595])))
    harm = replace(
        result, rows=rows, verdict=verdict("a", "b", rows, 3), report=tmp_path / "r.html", results=tmp_path / "r.json"
    )
    write_transfer(harm)
    page = harm.report.read_text(encoding="utf-8")
    assert re.search(r'class="best">70\.0', page)
    assert "hurts with 10" in page
    assert render_table(harm).row_count == 1


# --- user errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"seeds": 1}, ConfigError, "at least 2"),
        ({"per_class": ()}, ConfigError, "per_class="),
        ({"per_class": (0, 5)}, ConfigError, "per_class="),
        ({"lr_factors": (0.0,)}, ConfigError, "lr_factors"),
        ({"preset": "cnn", "settings": []}, ConfigError, "ViTs"),
    ],
)
def test_user_errors_are_raised_before_any_training(data, tmp_path, changes, error, sentence):
    with pytest.raises(error, match=sentence):
        study(data, tmp_path / "study", **changes)
    assert not (tmp_path / "study").exists()


def test_too_few_images_in_a_class(data, result):
    with pytest.raises(DataError, match=r"smallest class of .* has 60 training images, and 10 are kept"):
        study(data, result.report.parent, per_class=(2, 51))


def test_source_and_target_must_differ():
    with pytest.raises(ConfigError, match="both 'digits'"):
        transfer("digits", "digits")


def test_command_line(result, capsys, monkeypatch):
    def vitreous_command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vitreous", "transfer", *arguments])
        code = 0
        try:
            vitreous.cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, _, err = vitreous_command("--per-class", "ten")
    assert code == 2
    assert "--per-class 'ten'" in err
    monkeypatch.setattr("vitreous.studies.transfer.transfer", lambda *a, **k: result)
    code, out, _ = vitreous_command("--to", "digits")
    assert code == 0
    assert result.verdict in " ".join(out.split())
    code, out, _ = vitreous_command("--to", "digits", "--json")
    assert json.loads(out)["verdict"] == result.verdict
