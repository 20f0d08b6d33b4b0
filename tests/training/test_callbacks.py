"""Callbacks and loggers: called with the lines of metrics.jsonl, in order, and never able to lose a training."""

from __future__ import annotations

import types

import pytest

from vitreous.config import configure
from vitreous.errors import ConfigError, MissingExtraError, VitreousError
from vitreous.runs import Run
from vitreous.training.callbacks import LOGGERS, Callback, TensorBoard, WandbStyle, as_callbacks
from vitreous.training.loop import fit

SETTINGS = ["model.depth=1", "model.dim=16", "train.epochs=2", "train.log_every=5", "train.threads=1"]


def train(folder, *callbacks, settings=()):
    config = configure("vit", data="digits", settings=[*SETTINGS, *settings])
    return fit(config, folder / "run", progress=False, callbacks=callbacks)


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, run):
        self.calls.append(("start", run.is_done))

    def on_step(self, metrics):
        self.calls.append(("train", metrics))

    def on_validation(self, metrics):
        self.calls.append(("val", metrics))

    def on_end(self, run):
        self.calls.append(("end", run.is_done))


def test_a_callback_sees_the_lines_of_metrics_jsonl(tmp_path):
    recorder = Recorder()
    run = train(tmp_path, recorder)
    assert recorder.calls[0] == ("start", False)
    assert recorder.calls[-1] == ("end", True)
    seen = [{"event": event, **metrics} for event, metrics in recorder.calls[1:-1]]
    assert seen == run.metrics()[:-1]  # the last line is the test set's
    assert {line["event"] for line in seen} == {"train", "val"}


def test_a_callback_changes_no_loss(tmp_path):
    plain, watched = train(tmp_path / "1"), train(tmp_path / "2", Recorder())
    assert [line["loss"] for line in plain.metrics()] == [line["loss"] for line in watched.metrics()]


@pytest.mark.parametrize("method", ["on_start", "on_step", "on_validation", "on_end"])
def test_a_callback_that_raises_is_left_out_and_the_training_goes_on(tmp_path, method):
    calls = []

    def fail(argument):
        calls.append(method)
        raise ConnectionError("no route to the server")

    broken, recorder = Callback(), Recorder()
    setattr(broken, method, fail)
    with pytest.warns(
        RuntimeWarning, match=rf"Callback raised ConnectionError in {method} \(.*test_callbacks.py, line"
    ):
        run = train(tmp_path, broken, recorder)
    assert run.is_done
    assert calls == [method]  # once
    assert recorder.calls[-1] == ("end", True)


def test_an_interrupted_training_ends_its_callbacks(tmp_path):
    class Stop(Recorder):
        def on_validation(self, metrics):
            raise KeyboardInterrupt  # not an Exception: the user's word

    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop)
    assert stop.calls[-1] == ("end", False)
    assert not Run.open(tmp_path / "run").is_done


def test_tensorboard_has_the_curves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path, "tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    lines = [line for line in run.metrics() if line["event"] == "val"]
    logged = [(scalar.step, pytest.approx(scalar.value)) for scalar in events.Scalars("val/loss")]
    assert [(line["step"], line["loss"]) for line in lines] == logged
    assert {"train/loss", "train/accuracy", "train/lr", "test/accuracy"} <= set(events.Tags()["scalars"])


class FakeModule(types.SimpleNamespace):
    """Like wandb and trackio: init, log, finish."""

    def __init__(self):
        self.calls = []
        super().__init__(
            init=lambda **arguments: self.calls.append(("init", arguments)),
            log=lambda values, step=None: self.calls.append(("log", step, values)),
            finish=lambda: self.calls.append(("finish",)),
        )


def test_wandb_style(tmp_path):
    module = FakeModule()
    run = train(tmp_path, WandbStyle(module, project="digits", mode="offline"))
    (_, arguments), *logged, last = module.calls
    assert arguments == {
        "project": "digits", "name": "run", "config": run.config.model_dump(mode="json"), "mode": "offline",
    }  # fmt: skip
    assert last == ("finish",)
    lines = run.metrics()
    assert [step for _, step, _ in logged] == [line["step"] for line in lines]
    test = run.test_results
    assert logged[-1] == ("log", lines[-1]["step"], {"test/loss": test.nll, "test/accuracy": test.accuracy})
    first = next(line for line in lines if line["event"] == "train")
    assert logged[0][2]["train/loss"] == first["loss"]
    assert logged[0][2]["train/lr"] == first["lr"]


def test_a_module_without_log_is_refused():
    with pytest.raises(ConfigError, match=r"has no log and no finish: expected a module like wandb or trackio"):
        WandbStyle(types.SimpleNamespace(init=print))


def test_a_logger_that_is_not_installed_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in LOGGERS:
        with pytest.raises(MissingExtraError, match=rf"(?i)logging to {name} needs .*\[{name}\]"):
            train(tmp_path, name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["tensorbord", 3, Callback])
def test_what_is_no_callback_is_refused(value, tmp_path):
    with pytest.raises(VitreousError, match="choose from tensorboard, wandb, trackio, or pass an object"):
        train(tmp_path, value)
    assert not (tmp_path / "run").exists()


def test_one_callback_needs_no_list():
    pytest.importorskip("tensorboard")
    assert isinstance(as_callbacks("tensorboard")[0], TensorBoard)
    recorder = Recorder()
    assert as_callbacks(recorder) == [recorder]


def test_a_module_that_cannot_be_imported_is_one_sentence():
    with pytest.raises(ConfigError, match=r"cannot log to 'nosuchlogger' .*: install it, or name another"):
        WandbStyle("nosuchlogger")
