"""Early stopping and the best weights: what is kept, what is recorded, and that a killed run ends the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainings import newest_step, small, timeless, wait_for_checkpoint

from vitreous.config import Config, TrainConfig
from vitreous.evaluation.prediction import Evaluation, evaluate_run
from vitreous.runs import ResumePoint, Run
from vitreous.training.best import BestValidation, score
from vitreous.training.loop import Trainer, TrainingInterrupted, fit

#: The learning rate is too high: the validation loss is least early, at step 20 on one machine, and stops at step 40.
SETTINGS = ("train.optimizer=adamw", "train.lr=0.1", "train.schedule=constant", "train.epochs=20",
            "train.early_stopping=2", "train.ema_decay=0.9", "data.train_per_class=20", "train.log_every=7",
            "train.checkpoint_seconds=0")  # fmt: skip


def stopping(*settings: str) -> Config:
    return small(*SETTINGS, *settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """A training that early stopping ended, never interrupted."""
    run = fit(stopping(), tmp_path_factory.mktemp("whole") / "run", progress=False)
    assert run.record.results.stopped_at_step is not None
    return run


def assert_equal_runs(ours: Run, theirs: Run) -> None:
    expected = load_file(theirs.path / "model.safetensors")
    weights = load_file(ours.path / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
    assert timeless(ours) == timeless(theirs)
    assert ours.record.results.stopped_at_step == theirs.record.results.stopped_at_step
    assert ours.record.results.best_step == theirs.record.results.best_step


# --- the best validation -----------------------------------------------------------------------------------


def evaluation(probability: float, num_correct: int = 3) -> Evaluation:
    """Four images of two classes, of which some are predicted correctly, all with this probability."""
    labels = np.array([0, 0, 0, 1])
    chosen = np.where(np.arange(4) < num_correct, labels, 1 - labels)
    probabilities = np.where(np.arange(2) == chosen[:, None], probability, 1 - probability)
    return Evaluation(np.log(probabilities), labels)


def test_a_score_is_the_loss_or_the_accuracy_that_is_monitored():
    loss = -(3 * np.log(0.8) + np.log(0.2)) / 4
    assert score(evaluation(0.8), TrainConfig()) == (pytest.approx(-loss),)
    assert -score(evaluation(0.8), TrainConfig())[0] == pytest.approx(evaluation(0.8).nll)
    by_accuracy = TrainConfig(monitor="accuracy")
    assert score(evaluation(0.8), by_accuracy) == (0.75, pytest.approx(-loss))
    assert score(evaluation(0.7), by_accuracy) > score(evaluation(0.8), by_accuracy), "the loss breaks ties"
    assert score(evaluation(0.99, 4), by_accuracy) > score(evaluation(0.7), by_accuracy)


def test_classes_count_in_validation_as_they_do_in_training():
    weights = (0.5, 2.5)
    loss = -(0.5 * 3 * np.log(0.8) + 2.5 * np.log(0.2)) / 4
    assert score(evaluation(0.8), TrainConfig(), weights) == (pytest.approx(-loss),)
    assert score(evaluation(0.8), TrainConfig(monitor="accuracy"), weights)[0] == pytest.approx(1.5 / 4)


def test_what_is_best_and_when_to_stop():
    best, model = BestValidation(TrainConfig(early_stopping=2)), torch.nn.Linear(1, 1)
    for step, (value, is_exhausted) in enumerate(
        [(-3.0, False), (-2.0, False), (float("nan"), False), (-1.0, False), (-1.0, False), (-1.5, True)], start=1
    ):
        with torch.no_grad():
            model.weight.fill_(step)
        best.update(step, (value,), model)
        assert best.is_exhausted == is_exhausted
    assert (best.step, best.score, best.since) == (4, (-1.0,), 2)
    assert best.load_into(model) == 4
    assert model.weight.item() == 4


def test_which_weights_are_kept():
    assert TrainConfig(early_stopping=3).keeps_best
    assert TrainConfig(keep="best").keeps_best
    assert not TrainConfig().keeps_best
    assert not TrainConfig(early_stopping=3, keep="last").keeps_best
    never_finite = BestValidation(TrainConfig(keep="best"))
    never_finite.update(1, (float("nan"),), torch.nn.Linear(1, 1))
    assert never_finite.load_into(torch.nn.Linear(1, 1)) is None
    assert not never_finite.is_exhausted, "without patience nothing stops"


# --- trainings ---------------------------------------------------------------------------------------------


def test_a_training_stops_and_keeps_its_best_weights(whole):
    results, validations = whole.record.results, {m["step"]: m["loss"] for m in whole.metrics() if m["event"] == "val"}
    stopped_at, best = results.stopped_at_step, results.best_step
    assert list(validations) == list(range(10, stopped_at + 1, 10))
    assert best == min(validations, key=lambda step: validations[step]) == stopped_at - 20
    assert stopped_at == whole.steps_trained < whole.resolved.steps == 200, "the plan is kept"
    assert evaluate_run(whole, "val").raw_nll == pytest.approx(validations[best], rel=1e-5)
    trained = [line["step"] for line in whole.metrics() if line["event"] == "train"]
    assert trained == sorted({*range(7, stopped_at, 7), stopped_at}), "the last steps are logged too"
    test = whole.metrics()[-1]
    assert (test["event"], test["step"], test["accuracy"]) == ("test", stopped_at, whole.test_results.accuracy)
    assert evaluate_run(whole).accuracy == pytest.approx(whole.test_results.accuracy, abs=1e-9)


def test_the_kept_weights_are_the_averaged_ones_of_the_best_step(whole, tmp_path, monkeypatch):
    averaged: dict[int, dict[str, torch.Tensor]] = {}
    update = BestValidation.update

    def update_and_copy(best: BestValidation, step: int, value: tuple[float, ...], model: torch.nn.Module) -> None:
        averaged[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        update(best, step, value, model)

    monkeypatch.setattr(BestValidation, "update", update_and_copy)
    last = fit(stopping("train.keep=last"), tmp_path / "last", progress=False)
    assert last.record.results.best_step is None
    for run, step in ((whole, whole.record.results.best_step), (last, last.record.results.stopped_at_step)):
        for name, tensor in load_file(run.path / "model.safetensors").items():
            assert torch.equal(tensor, averaged[step][name]), name


def test_the_best_weights_are_kept_without_stopping(whole, tmp_path, capsys):
    stopped_at = whole.record.results.stopped_at_step
    warmup = f"train.warmup_fraction={20 / stopped_at}"  # as many steps as in the longer plan
    config = stopping("train.early_stopping=null", "train.keep=best", f"train.epochs={stopped_at / 10}", warmup)
    run = fit(config, tmp_path / "run")
    assert run.record.results.stopped_at_step is None
    assert run.record.results.best_step == whole.record.results.best_step
    message = f"kept the weights of step {stopped_at - 20}, the best by validation loss"
    assert message in capsys.readouterr().err


def test_the_message_says_why_it_stopped(whole, tmp_path, capsys):
    fit(stopping(), tmp_path / "run")
    stopped_at = whole.record.results.stopped_at_step
    message = f"stopped at step {stopped_at} of 200: no better validation loss since step {stopped_at - 20}"
    assert message in capsys.readouterr().err


# --- exact resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_best", [-7, 0, 7, 19])
def test_a_run_stopped_at_any_step_ends_the_same(whole, after_best, tmp_path, monkeypatch):
    """Before the best step, at it, and after it: the best weights and the count are part of the checkpoint."""
    save, step = Trainer._save, whole.record.results.best_step + after_best

    def save_and_stop(trainer: Trainer, done: int) -> None:
        save(trainer, done)
        if done == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            fit(stopping(), tmp_path / "run", progress=False)
    assert newest_step(tmp_path / "run") == step
    assert_equal_runs(fit(stopping(), tmp_path / "run", resume=True, progress=False), whole)


def test_ctrl_c_at_the_last_step_ends_the_same(whole, tmp_path, monkeypatch):
    """The checkpoint says that the training has ended: resumed, it takes no step more."""
    update = BestValidation.update

    def update_and_interrupt(best: BestValidation, *arguments: object) -> None:
        update(best, *arguments)
        if best.is_exhausted:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(BestValidation, "update", update_and_interrupt)
        with pytest.raises(TrainingInterrupted, match=r"stopped at step \d+ of 200 and saved"):
            fit(stopping(), tmp_path / "run", progress=False)
    assert_equal_runs(fit(stopping(), tmp_path / "run", resume=True, progress=False), whole)


def test_a_killed_process_ends_the_same(whole, tmp_path, processes):
    path, file = tmp_path / "killed", tmp_path / "config.json"
    file.write_text(stopping().model_dump_json())
    script = (
        "from pathlib import Path; from vitreous.config import Config; from vitreous.training.loop import fit\n"
        f"fit(Config.model_validate_json(Path({str(file)!r}).read_text()), {str(path)!r}, progress=False)"
    )
    process = processes.start("-c", script)
    wait_for_checkpoint(path, 4, process)
    process.kill()
    process.wait()
    assert_equal_runs(fit(stopping(), path, resume=True, progress=False), whole)


def test_two_processes_stop_together(tmp_path, processes):
    """They validate a share of the images each, and take the same decisions."""
    path = tmp_path / "two"
    settings = ["data.name=digits", "train.threads=1", "train.batch_size=64", "model.depth=2", "model.dim=32",
                "model.mlp_dim=48", *SETTINGS, "train.class_weights=auto"]  # fmt: skip
    flags = [f"--set={setting}" for setting in settings]
    result = processes.run("-m", "vitreous", "train", "vit", *flags, "--processes", "2", "-o", str(path))
    assert result.returncode == 0, result.stderr
    run = Run.open(path)
    results = run.record.results
    assert results.stopped_at_step is not None
    assert results.best_step == results.stopped_at_step - 2 * run.resolved.validate_every
    assert run.resolved.class_weights is not None
    validations = {line["step"]: line["loss"] for line in run.metrics() if line["event"] == "val"}
    assert min(validations, key=lambda step: validations[step]) == results.best_step
    assert evaluate_run(run, "val").raw_nll == pytest.approx(validations[results.best_step], rel=1e-5)


def test_a_checkpoint_of_an_older_version_is_gone_on_with(tmp_path: Path):
    """It has no best validation: counting begins where it is."""
    run = fit(small("train.epochs=0.2"), tmp_path / "run", progress=False)
    run.save_resume_point(ResumePoint(3, {"x": torch.zeros(1)}, {"elapsed_seconds": 1.0}))
    point = run.resume_point()
    assert point is not None
    best = BestValidation(TrainConfig(early_stopping=3))
    best.restore(point.facts, {}, torch.nn.Linear(1, 1))
    assert (best.step, best.since, best.is_exhausted) == (None, 0, False)


def test_best_weights_that_a_checkpoint_lacks_are_noticed():
    best = BestValidation(TrainConfig(keep="best"))
    facts = {"best_step": 3, "best_score": [-1.0], "validations_since_best": 1}
    with pytest.raises(LookupError):
        best.restore(facts, {"weight": torch.zeros(1)}, torch.nn.Linear(1, 1))
