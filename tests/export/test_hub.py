"""`run.push(folder)`: transformers loads it with the same logits, the run is whole, and the card has the figures."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import vitreous
import vitreous.cli
from vitreous.errors import ExportError
from vitreous.export.hub import push_run

TINY = {"depth": 1, "dim": 16, "epochs": 1, "threads": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Gray digits, which vitreous inverts and centres."""
    return vitreous.fit("vit", data="digits", out=tmp_path_factory.mktemp("hub") / "run", progress=False, **TINY)


@pytest.fixture(scope="module")
def colour_run(tmp_path_factory):
    images = np.random.default_rng(0).integers(0, 256, (60, 12, 20, 3), dtype=np.uint8)
    labels = np.array(["cat", "dog"])[np.arange(60) % 2]
    out = tmp_path_factory.mktemp("hub") / "colour"
    return vitreous.fit("vit", data=(images, labels), out=out, patch_size=4, progress=False, **TINY)


def front_matter(folder) -> dict:
    lines = (folder / "README.md").read_text(encoding="utf-8").split("---\n")[1].splitlines()
    return {key: json.loads(value) for key, value in (line.split(": ", 1) for line in lines)}


def test_transformers_loads_it_with_the_same_logits(run, tmp_path, transformers_vit):
    pushed = run.push(tmp_path / "repository", license="mit")
    theirs = transformers_vit.ViTForImageClassification.from_pretrained(pushed.folder).eval()
    pixels = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    inputs = run.preprocessing.to_input(pixels)
    assert run.temperature != 1  # it is in the head, so that softmax gives the calibrated probabilities
    with torch.inference_mode():
        torch.testing.assert_close(theirs(inputs).logits, run.model(inputs) / run.temperature, rtol=1e-4, atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(run.class_names))
    assert pushed.for_transformers


#: height, width, mode and suffix of image files
FILES = [
    (12, 20, "RGB", "png"), (40, 33, "RGB", "png"), (7, 9, "RGB", "png"), (12, 61, "RGB", "bmp"), (30, 50, "L", "png"),
    (25, 25, "P", "png"), (24, 40, "RGBA", "png"), (35, 70, "RGB", "jpg"), (12, 20, "L", "jpg"),
]  # fmt: skip


def on_the_card(run, folder, file):
    """Return the probabilities of transformers for an image file by the code on the model card, and the pixels."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor = AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    with Image.open(file) as image, torch.inference_mode():
        upright = ImageOps.exif_transpose(image)
        inputs = processor(upright.convert("L") if run.preprocessing.channels == 1 else upright, return_tensors="pt")
        return model(**inputs).logits.softmax(dim=-1)[0], inputs["pixel_values"]


def check_file(run, folder, file):
    """The same probabilities if the image needs no resizing, otherwise pixels within one level, as the card says."""
    theirs, pixels = on_the_card(run, folder, file)
    prediction = run.predict(file)[0]
    ours = torch.tensor([prediction.probabilities[name] for name in run.class_names])
    inputs = run.preprocessing.to_input(torch.from_numpy(prediction.pixels)[None])
    levels = ((pixels - inputs).abs() * torch.tensor(run.preprocessing.std).view(1, -1, 1, 1)).max() * 255
    with Image.open(file) as image:
        same_size = (image.height, image.width) == run.preprocessing.image_size and not image.getexif()
    assert levels < (1e-3 if same_size else 1.01)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5 if same_size else 2e-3)


@pytest.mark.parametrize(("height", "width", "mode", "suffix"), FILES)
def test_their_probabilities_for_a_file_are_ours(colour_run, tmp_path, transformers_vit, height, width, mode, suffix):
    folder, file = colour_run.push(tmp_path / "repository").folder, tmp_path / f"image.{suffix}"
    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(noise[:, :, 0]))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a camera
    image.save(file, **({"exif": exif} if suffix == "jpg" else {}))
    check_file(colour_run, folder, file)


def test_gray_files_too(tmp_path, transformers_vit):
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    labels = np.array(["cat", "dog"])[np.arange(60) % 2]
    run = vitreous.fit("vit", data=(images, labels), out=tmp_path / "run", patch_size=7, progress=False, **TINY)
    folder, file = run.push(tmp_path / "repository").folder, tmp_path / "image.png"
    for size in ((28, 28), (50, 31), (14, 90)):
        Image.fromarray(np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)).save(file)
        check_file(run, folder, file)


def test_the_run_in_it_is_whole(run, tmp_path):
    pushed = run.push(tmp_path / "repository")
    again = vitreous.Run.open(pushed.folder / "vitreous")
    assert again.record == run.record
    assert again.history == run.history
    image = np.zeros((40, 40), dtype=np.uint8)
    image[8:32, 18:23] = 255
    assert again.predict(image)[0].probabilities == run.predict(image)[0].probabilities
    assert not any(file.startswith("vitreous/resume") for file in pushed.files)


def test_the_card_has_what_was_measured(run, tmp_path):
    folder = run.push(tmp_path / "repository", license="mit").folder
    facts, text = front_matter(folder), (folder / "README.md").read_text(encoding="utf-8")
    assert facts["license"] == "mit"
    assert facts["library_name"] == "transformers"
    assert facts["pipeline_tag"] == "image-classification"
    (result,) = facts["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == pytest.approx(run.accuracy, abs=1e-6)
    test = run.test_results
    assert f"({test.correct:,} of {test.count:,})" in text
    assert re.search(r"95 % interval \(Wilson\) \| \d+\.\d % to \d+\.\d %", text)
    for section in ("Intended use", "Data", "Preprocessing", "Results", "How to load it"):
        assert f"\n## {section}\n" in text


def test_what_their_processor_cannot_do_is_stated(run, colour_run, tmp_path):
    pushed = run.push(tmp_path / "gray")
    text = (pushed.folder / "README.md").read_text(encoding="utf-8")
    for words in ("inverts dark-on-light drawings", 'call image.convert("L") first', "within one of 255 levels"):
        assert any(words in note for note in pushed.notes)
        assert words in text
    assert any("states no licence" in note for note in pushed.notes)
    assert "licence" not in text
    colour = colour_run.push(tmp_path / "colour", license="mit")
    assert not any("inverts" in note or "gray" in note for note in colour.notes)


@pytest.mark.parametrize(
    ("base", "settings", "reason"),
    [
        ("cnn", {"conv_channels": (4, 4), "hidden": 8, "epochs": 1}, "transformers has no model like this cnn"),
        ("vit", {**TINY, "positions": "sincos-2d"}, "cannot express model.positions=sincos-2d"),
    ],
)
def test_a_model_that_transformers_has_not_is_there_as_a_run(base, settings, reason, tmp_path):
    run = vitreous.fit(base, data="digits", out=tmp_path / "run", progress=False, **settings)
    pushed = run.push(tmp_path / "repository", license="mit")
    assert not pushed.for_transformers
    assert set(pushed.files) >= {"README.md", "vitreous/config.json", "vitreous/model.safetensors"}
    assert "config.json" not in pushed.files
    assert any(reason in note for note in pushed.notes)
    text = (pushed.folder / "README.md").read_text(encoding="utf-8")
    assert reason in text
    assert "ViTForImageClassification" not in text
    assert front_matter(pushed.folder)["library_name"] == "vitreous"
    assert vitreous.Run.open(pushed.folder / "vitreous").accuracy == run.accuracy


def test_paths_of_this_machine_are_pointed_out(run, tmp_path):
    (tmp_path / "photos").mkdir()
    data = str(tmp_path / "photos")
    record = run.record.replace(
        config=run.config.replace(data=run.config.data.replace(name=data)),
        data=run.record.data.model_copy(update={"name": data}),
    )
    pushed = push_run(vitreous.Run(run.path, record), tmp_path / "repository")
    assert any(data in note for note in pushed.notes)
    text = (pushed.folder / "README.md").read_text(encoding="utf-8")
    assert "photos" in text
    assert str(tmp_path) not in text


def test_the_command_writes_the_same(run, tmp_path, monkeypatch, capsys):
    arguments = ["export", "--to", "hub", "--run", str(run.path), "-o", str(tmp_path / "repository"), "--json"]
    monkeypatch.setattr(sys, "argv", ["vitreous", *arguments])
    with pytest.raises(SystemExit) as exit_:
        vitreous.cli.main()
    assert exit_.value.code == 0
    written = json.loads(capsys.readouterr().out)
    assert tuple(written["files"]) == run.push(tmp_path / "other").files
    assert written["upload_command"].startswith("huggingface-cli upload USER/repository ")


def test_a_folder_that_holds_something_is_left_alone(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="exists and is not empty; name another folder"):
        run.push(tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_failed_push_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitreous.export.hub.shutil.copyfile", full)
    with pytest.raises(ExportError, match="No space left on device"):
        run.push(tmp_path / "parent" / "repository")
    assert not [*(tmp_path / "parent").iterdir()]


def test_the_bundled_model_can_be_pushed(tmp_path):
    pushed = vitreous.Run.of(None).push(tmp_path / "repository")
    assert not any(file.endswith(".onnx") for file in pushed.files)
    assert pushed.upload_command == f"huggingface-cli upload USER/repository {tmp_path / 'repository'}"
