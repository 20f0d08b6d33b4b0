"""What is written, what is refused, and that an interrupted write leaves the old file."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from vitreous.checkpoints import TARGETS, load_model, read_checkpoint, save_model
from vitreous.errors import CheckpointError

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
PATHS = {"timm": "timm", "hf": "hf", "torchvision": "tv.safetensors", "google": "g.npz"}

#: A change to the tiny model → the targets that cannot express it, and the words of the refusal.
REFUSALS = {
    "conv stem": ({"stem_channels": (8,), "patch_size": 3}, TARGETS, "conv stem"),
    "sequence pooling": ({"pool": "seq"}, TARGETS, "sequence pooling"),
    "mean pooling": ({"pool": "mean"}, ("hf", "torchvision"), "mean pooling"),
    "no positions": ({"positions": "none"}, TARGETS, r"model\.positions=none"),
    "learned-2d": ({"positions": "learned-2d"}, TARGETS, r"model\.positions=learned-2d"),
    "sincos-2d": ({"positions": "sincos-2d"}, TARGETS, r"model\.positions=sincos-2d"),
    "relative": ({"positions": "relative"}, TARGETS, r"model\.positions=relative"),
    "mlp head": ({"head": "mlp"}, ("timm", "hf"), "MLP head"),
    "gray": ({"channels": 1}, ("torchvision",), "1 input channel$"),
    "oblong images": ({"image_size": (24, 12)}, ("torchvision",), "only squares fit"),
    "oblong patches": ({"image_size": (24, 12), "patch_size": (6, 3)}, ("torchvision",), "only squares fit"),
    "padding": ({"image_size": 22, "fit": "pad"}, TARGETS, r"model\.fit=pad"),
    "tanh": ({"gelu": "tanh"}, ("torchvision",), "tanh GELU.*approximate=True"),
    "erf": ({"gelu": "erf"}, ("google",), "erf GELU.*approximate=True"),
    "epsilon": ({"norm_eps": 1e-12}, ("timm", "google"), r"ε 1e-12 \(it has 1e-06\)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_target_refuses_what_it_cannot_express_and_nothing_else(tiny, tmp_path, name):
    changes, refusing, words = REFUSALS[name]
    for layout in TARGETS:
        base = {"gelu": "tanh"} if layout == "google" else {}
        model = tiny(**{**base, **changes})
        mean = (0.5,) * model.config.channels
        path = tmp_path / PATHS[layout]
        if layout in refusing:
            with pytest.raises(CheckpointError, match=f"cannot express.*{words}"):
                save_model(model, path, layout, mean=mean, std=mean)
            assert not path.exists()
        else:
            save_model(model, path, layout, mean=mean, std=mean)
            again, _ = load_model(path, trained_size=model.config.image_size)
            for key, tensor in model.state_dict().items():
                assert torch.equal(again.state_dict()[key], tensor)


def test_approximate_writes_with_a_note(tiny, tmp_path):
    model = tiny(norm_eps=1e-12)
    notes = save_model(model, tmp_path / "g.npz", "google", approximate=True)
    assert sum(note.startswith("approximate:") for note in notes) == 2  # GELU and ε
    assert read_checkpoint(tmp_path / "g.npz").config.gelu == "tanh"
    save_model(tiny(gelu="tanh"), tmp_path / "tv.safetensors", "torchvision", approximate=True)
    assert read_checkpoint(tmp_path / "tv.safetensors").config.gelu == "erf"  # as torchvision computes it
    with pytest.raises(CheckpointError, match="mean pooling"):  # no amount of approximation makes another model
        save_model(tiny(pool="mean"), tmp_path / "hf", "hf", mean=MEAN, std=STD, approximate=True)


def test_a_timm_file_comes_with_the_call_that_builds_it(tiny, tmp_path, timm):
    model = tiny(norm_eps=1e-5, mlp_dim=49)
    notes = save_model(model, tmp_path / "w.safetensors", "timm")
    call = next(note for note in notes if note.startswith("build it with ")).removeprefix("build it with ")
    from functools import partial

    from safetensors.torch import load_file

    theirs = eval(call, {"VisionTransformer": timm.VisionTransformer, "partial": partial, "torch": torch})
    theirs.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=True)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", ["torchvision", "google"])
def test_missing_biases_are_written_as_zeros(tiny, tmp_path, logits_of, layout):
    model = tiny(qkv_bias=False, gelu="tanh" if layout == "google" else "erf")
    notes = save_model(model, tmp_path / PATHS[layout], layout)
    assert any("written as zeros" in note for note in notes)
    again, _ = load_model(tmp_path / PATHS[layout])
    assert again.config.qkv_bias
    torch.testing.assert_close(logits_of(again, again.config), logits_of(model, model.config))


@pytest.mark.parametrize("channels", [1, 3])
def test_hugging_faces_processor_prepares_images_as_we_do(tiny, tmp_path, transformers_vit, channels):
    from transformers import AutoImageProcessor

    model = tiny(channels=channels)
    mean, std = (0.1307, 0.2, 0.3)[:channels], (0.3081, 0.4, 0.5)[:channels]
    save_model(model, tmp_path / "hf", "hf", mean=mean, std=std)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24) if channels == 1 else (24, 24, 3), dtype=np.uint8)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "hf")
    images = [pixels[..., None]] if channels == 1 else [Image.fromarray(pixels)]
    data_format = {"input_data_format": "channels_last"} if channels == 1 else {}
    theirs = processor(images=images, return_tensors="pt", **data_format)["pixel_values"]
    preprocessing = read_checkpoint(tmp_path / "hf").preprocessing
    assert preprocessing is not None
    ours = preprocessing.to_input(torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1)[None])
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)


def test_class_names_travel(tiny, tmp_path, transformers_vit):
    from transformers import AutoConfig

    names = [f"Klasse {letter}" for letter in "äöüßéç–"]
    for layout in ("hf", "timm", "torchvision"):
        save_model(tiny(), tmp_path / PATHS[layout], layout, mean=MEAN, std=STD, class_names=names)
        assert read_checkpoint(tmp_path / PATHS[layout]).class_names == tuple(names)
    assert AutoConfig.from_pretrained(tmp_path / "hf").id2label[3] == "Klasse ß"


def test_mistakes_are_one_sentence(tiny, tmp_path):
    model = tiny()
    for arguments, match in (
        ({"layout": "keras"}, "unknown layout 'keras'"),
        ({"layout": "hf"}, r"give mean=… and std=…"),
        ({"layout": "hf", "mean": (0.5,), "std": STD}, r"mean=\(0\.5,\): expected 3 finite numbers"),
        ({"layout": "hf", "mean": MEAN, "std": STD, "class_names": ["a"]}, "1 class names were given for 7 classes"),
        ({"layout": "torchvision"}, r"written to a \.safetensors file"),
    ):
        with pytest.raises(CheckpointError, match=match):
            save_model(model, tmp_path / "out", **arguments)
        assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(tiny, tmp_path):
    folder = tmp_path / "hf"
    save_model(tiny(), folder, "hf", mean=MEAN, std=STD)
    save_model(tiny(), folder, "hf", mean=MEAN, std=STD)  # our own export may be replaced
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "config.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip
    (folder / "pytorch_model.bin").write_bytes(b"another model")
    with pytest.raises(CheckpointError, match=r"holds other files \('pytorch_model.bin'"):
        save_model(tiny(), folder, "hf", mean=MEAN, std=STD)


def test_an_interrupted_write_leaves_the_old_file(tiny, tmp_path, monkeypatch):
    path = tmp_path / "tv.safetensors"
    save_model(tiny(), path, "torchvision")
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_model(tiny(num_classes=3), path, "torchvision")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tv.safetensors"]


def test_the_header_carries_what_the_layout_cannot(tiny, tmp_path):
    save_model(tiny(), tmp_path / "w.safetensors", "timm", mean=MEAN, std=STD)
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["vitreous"])
    assert (facts["num_heads"], facts["gelu"], facts["mean"]) == (4, "erf", [0.5, 0.5, 0.5])
    checkpoint = read_checkpoint(tmp_path / "w.safetensors")  # nothing to ask
    assert checkpoint.config.num_heads == 4
    assert checkpoint.preprocessing is not None
