"""The learning-rate finder: its rule on known curves, its limits, and whether the rate it suggests is good."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from trainings import small

from vitreous.errors import ConfigError
from vitreous.training import lr_finder
from vitreous.training.loop import fit
from vitreous.training.lr_finder import LearningRateSweep, find_lr, halfway, moving_average
from vitreous.training.step import Stepper

LRS = np.logspace(-6, 1, 141)


def descent(centre: float) -> np.ndarray:
    """A loss that falls from 2.3 to 0.3 around 10 ** centre, and diverges above lr 1."""
    decades = np.log10(LRS)
    return 0.3 + 2 / (1 + np.exp(4 * (decades - centre))) + 50 * np.maximum(0, decades) ** 2


@pytest.mark.parametrize("centre", [-4.0, -2.5, -1.5])
def test_the_rate_is_where_a_known_curve_is_half_way_down(centre):
    losses = descent(centre)
    assert np.log10(halfway(LRS, losses, losses)) == pytest.approx(centre, abs=0.1)


def test_noise_moves_the_rate_by_little():
    rates = []
    for seed in range(20):
        losses = descent(-2.5) + np.random.default_rng(seed).normal(0, 0.1, len(LRS))
        rates.append(np.log10(halfway(LRS, losses, moving_average(losses, 0.9))))
    assert max(rates) - min(rates) < 0.3
    assert -2.5 <= np.mean(rates) <= -1.9, "smoothing lags by half a decade at most"


@pytest.mark.parametrize("fall", [0.0, 0.05])
def test_a_loss_that_only_varies_suggests_nothing(fall):
    losses = 2.3 - fall * (np.log10(LRS) > -3) + np.random.default_rng(0).normal(0, 0.1, len(LRS))
    with pytest.raises(ConfigError, match=r"did not fall at any learning rate from 1e-06 to 10 \(it stayed at 2\.[23]"):
        halfway(LRS, losses, moving_average(losses, 0.9))


def test_the_moving_average_has_no_bias_towards_zero():
    assert moving_average(np.full(5, 3.0), 0.9) == pytest.approx(np.full(5, 3.0))
    assert moving_average(np.array([1.0, 2.0]), 0.5) == pytest.approx([1.0, (0.25 * 1 + 0.5 * 2) / 0.75])


def test_fewer_steps_suggest_about_the_same():
    losses = descent(-2.5) + np.random.default_rng(0).normal(0, 0.05, len(LRS))
    sweeps = [LearningRateSweep(small(), "vit on digits", LRS[::n], losses[::n], len(LRS[::n])) for n in (1, 4)]
    assert 0.6 < sweeps[0].suggested / sweeps[1].suggested < 1.7


# --- on a model --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep() -> LearningRateSweep:
    return find_lr(small("train.epochs=3", "model.dropout=0", "model.drop_path=0"), progress=False)


def test_both_rates_of_muon_rise_together(sweep, monkeypatch):
    assert sweep.lrs[0] == pytest.approx(1e-6)
    assert np.diff(np.log10(sweep.lrs)) == pytest.approx(np.full(len(sweep.lrs) - 1, 7 / 139))
    train = sweep.config.train
    ratio = train.muon_lr / train.lr
    assert sweep.settings["train.muon_lr"] == pytest.approx(ratio * sweep.settings["train.lr"], rel=0.05)
    assert list(LearningRateSweep(small("train.optimizer=adamw"), "", LRS, descent(-3), 141).settings) == ["train.lr"]
    rates = []
    step = Stepper.step

    def step_and_look(stepper: Stepper, *arguments: object) -> tuple[float, int]:
        result = step(stepper, *arguments)
        rates.append([optimizer.param_groups[0]["lr"] for optimizer in stepper.optimizers])
        return result

    monkeypatch.setattr(Stepper, "step", step_and_look)
    monkeypatch.setattr(lr_finder, "_DIVERGED", 1.01)  # soon
    again = find_lr(sweep.config, progress=False)
    assert len(again.lrs) < len(sweep.lrs)
    assert [muon / adamw for muon, adamw in rates] == pytest.approx([ratio] * len(rates))


def test_the_suggested_rate_trains_better_than_much_larger_and_smaller_ones(sweep, tmp_path):
    losses = {}
    for factor in (1 / 30, 1, 30):
        rates = [f"{name}={value * factor}" for name, value in sweep.settings.items()]
        config = small("train.epochs=3", "model.dropout=0", "model.drop_path=0", "train.clip_norm=1", *rates)
        run = fit(config, tmp_path / f"{factor}", progress=False)
        losses[factor] = [line["loss"] for line in run.metrics() if line["event"] == "val"][-1]
    assert losses[1] < 0.8 * min(losses[1 / 30], losses[30])


def test_the_result_as_json_and_as_a_figure(sweep):
    values = sweep.as_json()
    assert values["suggested"]["train.lr"] == sweep.suggested
    assert values["configured"] == {"train.lr": 0.01, "train.muon_lr": 0.02}
    assert len(values["curve"]) == len(sweep.lrs)
    figure = sweep.figure()
    assert figure.png.startswith(b"\x89PNG")
    assert f"{sweep.suggested:g} is suggested" in figure.alt


def test_the_time_is_bounded(monkeypatch):
    """Slow steps make for fewer of them, and too slow ones for a sentence."""
    clock = iter(np.arange(10_000) * 0.5)  # half a second between two looks at it
    monkeypatch.setattr("vitreous.training.lr_finder.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(Stepper, "step", lambda self, step, epoch, indices, factor: (2.3 - 0.02 * step, 1))
    sweep = find_lr(small("train.budget_seconds=30"), progress=False)
    assert sweep.steps_planned == 60
    assert len(sweep.lrs) < 60, "looking at the clock took time as well"
    with pytest.raises(ConfigError, match=r"takes 0.5 s, .* at least 35 .* than 10 s: .* budget_seconds=27, or lower"):
        find_lr(small("train.budget_seconds=10"), progress=False)


def test_a_loss_that_is_not_finite_ends_the_search(monkeypatch):
    def step(self, step, epoch, indices, factor):
        if factor * 0.01 > 0.05:
            raise FloatingPointError("nan")
        return 2.3 - 2 * (factor * 0.01 > 1e-3), 1

    monkeypatch.setattr(Stepper, "step", step)
    sweep = find_lr(small(), progress=False)
    assert sweep.lrs[-1] <= 0.05
    assert 1e-3 < sweep.suggested < 1e-2


# --- the command -------------------------------------------------------------------------------------------

FLAGS = ["--set=train.batch_size=64", "--set=model.depth=1", "--set=model.dim=16", "--threads", "1"]


def test_the_command_prints_a_command_and_writes_a_plot_alone(tmp_path, processes):
    result = processes.run(
        "-m", "vitreous", "train", "vit", "--data", "digits", "--seed", "3", "--seconds", "60", *FLAGS, "--find-lr",
        "--set=train.lr=0.5", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    first, command, plot = result.stdout.splitlines()
    assert first.startswith("train.lr=")
    assert first.endswith("vit has 0.5")
    assert command.startswith("vitreous train vit --data digits --seed 3 --set train.batch_size=64 --set model.depth=1")
    assert "train.lr=0.5" not in command
    assert "seconds" not in command
    assert f"--set {first.split()[0]}" in command
    assert "--set train.muon_lr=" in command
    assert plot == "plot: runs/find-lr-digits-vit.png"
    assert [file.name for file in tmp_path.rglob("*")] == ["runs", "find-lr-digits-vit.png"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-o", "a-folder"], "name it with -o FILE.png, not 'a-folder'"),
        (["--processes", "2"], "leave out --resume and --processes"),
    ],
)
def test_what_the_command_refuses(flags, message, tmp_path, processes):
    result = processes.run("-m", "vitreous", "train", "vit", "--data", "digits", "--find-lr", *flags, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_nothing(tmp_path, processes):
    slow = ["--set=train.batch_size=1000", "--set=model.depth=12"]  # half a minute, if it is not stopped
    process = processes.vitreous("train", "vit", "--data", "digits", "--find-lr", *slow, cwd=tmp_path)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "vitreous: stopped"
    assert not list(tmp_path.iterdir())
