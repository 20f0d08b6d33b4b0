"""The command line: results on stdout; for a mistake one sentence on stderr and exit code 2."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous.cli
from vitreous.checkpoints import save_model
from vitreous.checkpoints.convert import convert
from vitreous.config import DataConfig
from vitreous.data.datasets import DATASETS, load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError, DataError
from vitreous.runs import Run


@pytest.fixture
def vitreous_command(capsys, monkeypatch):
    """Run `vitreous …` in this process; returns (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, arguments)])
        try:
            vitreous.cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two small finished runs on digits: runs/vit and runs/cnn."""
    from vitreous.config import override
    from vitreous.config.presets import preset
    from vitreous.training.loop import fit

    root = tmp_path_factory.mktemp("runs")
    small = {"vit": ["model.depth=1"], "cnn": ["model.conv_channels=[8, 8]"]}
    for name in ("vit", "cnn"):
        settings = ["data.name=digits", "train.epochs=1", "train.threads=1", *small[name]]
        fit(override(preset(name), settings), root / name, progress=False)
    return root


def test_a_locale_without_our_letters_gets_question_marks(monkeypatch):
    """Not a traceback after minutes of training: "–", "→" and "…" are not in ISO 8859-9, nor in Windows' code pages."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="iso8859-9"))
    monkeypatch.setattr(sys, "argv", ["vitreous", "shapes", "vit"])
    with pytest.raises(SystemExit, match=r"^0$"):
        vitreous.cli.main()
    sys.stdout.flush()
    assert b"?" in written.getvalue()


def test_help_does_not_import_torch():
    script = (
        "import sys; sys.argv = ['vitreous', '--help']\n"
        "try:\n    from vitreous.cli import main; main()\nfinally:\n    print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout.strip().endswith("False"), "torch was imported only to print the help"
    assert "train" in result.stdout


def test_data_list(vitreous_command):
    code, out, _ = vitreous_command("data", "list", "--json")
    assert code == 0
    assert set(DATASETS) == {row["name"] for row in json.loads(out)}
    code, out, _ = vitreous_command("data", "list")
    assert "60,000 + 10,000" in out


def test_data_show_draws_a_sheet(vitreous_command, tmp_path):
    path = tmp_path / "sheet.png"
    code, out, _ = vitreous_command("data", "show", "digits", "-o", path)
    assert code == 0
    with Image.open(path) as sheet:
        assert sheet.size[0] > 200
    assert "10 classes" in out


def test_presets_and_one_whole(vitreous_command):
    code, out, _ = vitreous_command("presets")
    assert code == 0
    assert "vit-b16" in out
    code, out, _ = vitreous_command("presets", "vit")
    assert json.loads(out)["model"]["patch_size"] == [7, 7]


def test_shapes(vitreous_command):
    code, out, _ = vitreous_command("shapes", "vit-b16", "--json")
    assert code == 0
    assert json.loads(out)["parameters"] == 86_567_656
    code, out, _ = vitreous_command("shapes", "vit", "--set", "model.depth=2")
    assert "Eq. 1" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "vitt"], "there is no preset 'vitt'; did you mean 'vit'?"),
        (["train"], "name your images"),
        (["train", "vit", "--data", "mnits"], "there is no data set 'mnits' (did you mean mnist"),
        (["train", "vit", "--data", "/nowhere/at/all"], "there is no file or folder '/nowhere/at/all'"),
        (["train", "vit", "--set", "model.depht=3"], "there is no setting 'model.depht'"),
        (["train", "vit", "--set", "model.depth"], "expected section.field=value"),
        (["train", "vit", "--set", "model.depth=zero"], "depth='zero'"),
        (["train", "vit", "--set", "model.num_heads=5"], "model.dim=64 must be a multiple of model.num_heads=5"),
        (["train", "vit", "--config", "/nowhere.toml"], "cannot read the configuration '/nowhere.toml'"),
        (["train", "--resume"], "--resume needs the run to continue"),
        (["train", "vit-b16"], "has no data of its own: name some with --data"),
        (["evaluate", "--run", "/nowhere"], "there is no run folder '/nowhere'"),
        (["compare", "vit"], "at least two models"),
        (["compare", "vit", "cnn", "--equal", "luck"], "--equal 'luck': choose epochs or seconds"),
        (["data", "fetch", "imagenet"], "there is no data set 'imagenet'"),
        (["presets", "resnet"], "there is no preset 'resnet'"),
    ],
)
def test_mistake_is_one_sentence(vitreous_command, arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, errors = vitreous_command(*arguments)
    assert code == 2, (out, errors)
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


def test_evaluate_and_predict(vitreous_command, runs, tmp_path):
    code, out, _ = vitreous_command("evaluate", "--run", runs / "vit", "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures["count"] == 359
    assert figures["accuracy"] == pytest.approx(figures["correct"] / 359)
    assert figures["accuracy_interval"][0] < figures["accuracy"] < figures["accuracy_interval"][1]
    drawing = np.full((100, 80), 250, dtype=np.uint8)  # a dark "1" on light paper, off-centre
    drawing[20:70, 50:56] = 10
    Image.fromarray(drawing).save(tmp_path / "one.png")
    code, out, _ = vitreous_command("predict", tmp_path / "one.png", "--run", runs / "cnn", "--json")
    (prediction,) = json.loads(out)
    assert code == 0
    assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert any("inverted" in note for note in prediction["notes"])
    code, out, _ = vitreous_command("predict", tmp_path / "one.png", "--run", runs / "cnn")
    assert "one.png: " in out
    assert "inverted" in out


def test_predict_rejects_files_that_are_no_images(vitreous_command, runs, tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    code, _, errors = vitreous_command("predict", tmp_path / "notes.png", "--run", runs / "vit")
    assert code == 2
    assert "notes.png" in errors
    code, _, errors = vitreous_command("predict", tmp_path / "missing.png", "--run", runs / "vit")
    assert code == 2
    assert "missing.png" in errors


def test_compare_runs_writes_the_report(vitreous_command, runs, tmp_path):
    code, out, _ = vitreous_command("compare", runs / "vit", runs / "cnn", "-o", tmp_path / "out")
    assert code == 0
    assert "Test accuracy" in out
    assert str(tmp_path / "out" / "report.html") in out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [model["name"] for model in results["models"]] == ["vit", "cnn"]
    for model in results["models"]:
        assert 0 <= model["accuracy"] <= 1
        assert model["flops"] > 0
        assert model["train_seconds"] > 0


def test_compare_trains_presets_with_equal_epochs_and_seeds(vitreous_command, tmp_path):
    code, out, _ = vitreous_command(
        "compare", "vit", "cnn", "--data", "digits", "--seeds", "2", "--equal", "epochs", "--epochs", "0.5",
        "--set", "model.depth=1", "--set", "train.threads=1", "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    assert code == 0
    results = json.loads(out)
    assert [len(model["seeds"]) for model in results["models"]] == [2, 2]
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == [
        "cnn-seed0", "cnn-seed1", "vit-seed0", "vit-seed1",
    ]  # fmt: skip


def test_compare_of_the_article_models_shows_both_evaluations(vitreous_command, tmp_path):
    code, out, _ = vitreous_command(
        "compare", "post-vit", "post-cnn", "--data", "digits", "--epochs", "0.1", "-o", tmp_path / "out", "--json"
    )
    assert code == 0
    results = json.loads(out)
    vit = results["models"][0]
    assert vit["published"]["accuracy"] == 0.9038
    assert set(vit["seeds"][0]["extra_evaluations"]) == {"batches of 32", "one image at a time"}
    html = (tmp_path / "out" / "report.html").read_text()
    assert "90.38" in html
    assert "97.55" in html


def test_runs_on_other_data_are_not_compared(vitreous_command, runs, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (60, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", images=images, labels=np.arange(60) % 10)
    code, _, errors = vitreous_command(
        "train", "vit", "--data", tmp_path / "other.npz", "--epochs", "1", "-o", tmp_path / "other"
    )
    assert code == 0, errors
    code, _, errors = vitreous_command("compare", runs / "vit", tmp_path / "other", "-o", tmp_path / "out")
    assert code == 2
    assert "models are compared on the same test images" in errors


def test_convert_there_and_back(vitreous_command, runs, tmp_path):
    code, out, _ = vitreous_command("convert", runs / "vit", tmp_path / "hf", "--to", "hf")
    assert code == 0
    assert "tensors written" in out
    code, out, _ = vitreous_command("convert", tmp_path / "hf", tmp_path / "back", "--to", "vitreous")
    assert code == 0
    assert "none left over" in out
    first = json.loads(vitreous_command("evaluate", "--run", runs / "vit", "--json")[1])
    again = json.loads(vitreous_command("evaluate", "--run", tmp_path / "back", "--data", "digits", "--json")[1])
    assert again["raw_nll"] == pytest.approx(first["nll"], rel=1e-4)  # the temperature went into the head
    code, _, errors = vitreous_command("evaluate", "--run", tmp_path / "back")
    assert code == 2
    assert "name some with --data" in errors
    code, _, errors = vitreous_command("convert", runs / "cnn", tmp_path / "x", "--to", "hf")
    assert code == 2
    assert "holds a cnn" in errors
    code, _, errors = vitreous_command("convert", runs / "vit", tmp_path / "x", "--to", "onnx")
    assert code == 2
    assert "choose from timm, hf, torchvision, google, vitreous" in errors
    before = sorted((file.name, file.stat().st_mtime_ns) for file in (tmp_path / "hf").iterdir())
    code, _, errors = vitreous_command("convert", runs / "vit", tmp_path / "hf", "--to", "hf")
    assert code == 2
    assert "exists already" in errors
    assert sorted((file.name, file.stat().st_mtime_ns) for file in (tmp_path / "hf").iterdir()) == before


def test_converted_class_names_are_unique(runs, tmp_path):
    model = Run.open(runs / "vit").load_model()
    cranes = (*"abcdefgh", "crane", "crane")
    save_model(model, tmp_path / "hf", "hf", mean=(0.5,), std=(0.5,), class_names=cranes)
    convert(tmp_path / "hf", tmp_path / "run", "vitreous")
    assert Run.open(tmp_path / "run").class_names[-2:] == ("crane (8)", "crane (9)")
    file = tmp_path / "hf" / "config.json"
    settings = json.loads(file.read_text())
    del settings["id2label"]["9"]
    file.write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"num_classes=9 \(num_labels, id2label\), and the weights have 10"):
        convert(tmp_path / "hf", tmp_path / "numbered", "vitreous")
    settings["id2label"]["9"] = "crane"
    file.write_text(json.dumps(settings))
    lines = convert(tmp_path / "hf", tmp_path / "numbered", "vitreous", num_classes=3)
    assert any("names 10 classes and the model has 3" in line for line in lines)
    assert Run.open(tmp_path / "numbered").class_names == tuple("012")


def test_model_with_four_channels_takes_no_image_file():
    four = Preprocessing(
        image_size=(8, 8), channels=4, mean=(0.0,) * 4, std=(1.0,) * 4, resize="bilinear", polarity="as-is"
    )
    with pytest.raises(DataError, match="takes 4 channels"):
        four.prepare(np.zeros((8, 8, 3), dtype=np.uint8))


def test_brackets_in_paths_are_no_markup(vitreous_command, runs, tmp_path):
    code, out, _ = vitreous_command("compare", runs / "vit", runs / "cnn", "-o", tmp_path / "out[v2]")
    assert code == 0
    assert "out[v2]" in out


def test_paper(vitreous_command, runs):
    code, out, _ = vitreous_command("paper", "vit-b16", "--json")
    assert code == 0
    assert json.loads(out)["summary"]["same"] > 10
    code, out, _ = vitreous_command("paper", "--run", runs / "vit")
    assert "Eq. 1" in out


def test_resume_refuses_other_settings(vitreous_command, runs):
    code, _, errors = vitreous_command("train", "cnn", "--resume", "-o", runs / "vit")
    assert code == 2
    assert "--resume keeps the run's configuration" in errors


def test_env_prints_nothing_private(vitreous_command):
    code, out, _ = vitreous_command("env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["torch"]
    assert "bf16 matrix product" in facts
    assert str(Path.home()) not in out
    assert os.uname().nodename not in out


def test_pipe_that_closes_early_is_no_error(runs):
    process = subprocess.Popen(
        [sys.executable, "-m", "vitreous", "presets", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert "Traceback" not in errors


def test_demo_falls_back_to_digits_without_network(vitreous_command, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    monkeypatch.setattr("vitreous.studies.compare._DIGITS_EPOCHS", 1)
    code, out, errors = vitreous_command("demo", "-o", tmp_path / "out")
    assert code == 0
    assert "this runs on digits" in errors
    assert "on digits" in out
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ImportError, RecursionError])
def test_ctrl_c_prints_one_word_whatever_it_interrupts(vitreous_command, monkeypatch, raised):
    """An import that is interrupted may fail in any way."""

    def interrupted(*_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise raised

    monkeypatch.setattr("vitreous.hardware.describe_environment", interrupted)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = vitreous_command("env")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (done[0], done[2]) == (130, "vitreous: stopped\n")


def test_reports_do_not_go_into_runs(vitreous_command, runs):
    code, _, errors = vitreous_command("compare", "bundled:vit", "bundled:cnn", "-o", runs / "vit")
    assert code == 2
    assert "is a run, and reports do not go into runs: name another folder with -o" in errors


def test_preset_named_twice_is_reported_before_training(vitreous_command):
    code, _, errors = vitreous_command("compare", "vit", "vit", "--data", "digits")
    assert code == 2
    assert "'vit' was named twice: --seeds 2" in errors


def test_other_class_names_are_noted(vitreous_command, runs, tmp_path):
    digits = load_dataset(DataConfig(name="digits"))
    names = np.array([f"no. {i}" for i in range(10)])
    np.savez(tmp_path / "named.npz", images=digits.test.images[:, 0].numpy(), labels=digits.test.labels.numpy(),
             test_images=digits.test.images[:50, 0].numpy(), test_labels=digits.test.labels[:50].numpy(),
             class_names=names)  # fmt: skip
    code, out, errors = vitreous_command("evaluate", "--run", runs / "vit", "--data", tmp_path / "named.npz")
    assert code == 0, errors
    assert "of 50 test images" in out
    assert "have other names (no. 0, no. 1, no. 2, …)" in errors


@pytest.mark.parametrize("verb", ["shapes", "paper"])
def test_shapes_and_paper_reject_settings_beside_a_run(vitreous_command, runs, verb):
    for extra in (["vit"], ["--set", "model.depth=3"]):
        code, _, errors = vitreous_command(verb, "--run", runs / "vit", *extra)
        assert code == 2
        assert f"--run has its own settings: leave out {extra[0]}" in errors
