"""Models from files that are not installed: definitions only, sizes guessed, refusals in one sentence."""

from __future__ import annotations

import copy
import inspect
import json
import sys

import pytest
import torch
from torch import nn

from vitreous.doctor import as_sarif, diagnose, diagnose_target, model_file, target_model
from vitreous.doctor.guessing import Settings, guess, guess_arguments
from vitreous.errors import VitreousError
from vitreous.testing import TinyViT, assert_healthy

MODEL = """
import a_package_that_nobody_has as wandb
from torch import nn
from layers import Head

WIDTH = 24
raise_if_executed = open("/nowhere/at/all")
print("training ...")
for step in range(10**9):
    pass

class ViT(nn.Module):
    def __init__(self, img_size, in_chans, num_classes, depth=1, bias=True):
        super().__init__()
        self.depth, self.flatten = depth, nn.Flatten()
        self.head = Head(in_chans * img_size**2, num_classes)

    def forward(self, x):
        return self.head(self.flatten(x))

class Configured(ViT):
    def __init__(self, cfg):
        super().__init__(cfg.image_size, cfg["channels"], cfg.num_classes)

class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        wandb.init()

def number(mystery):
    return 3

if __name__ == "__main__":
    ViT(32, 3, 10)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "layers.py").write_text("import another_missing_one\nfrom torch import nn\nHead = nn.Linear\n")
    (tmp_path / "vit.py").write_text(MODEL)
    package = tmp_path / "package"
    package.mkdir()
    (package / "parts.py").write_text("from torch import nn\nPart = nn.Linear\n")
    (package / "model.py").write_text("from .parts import Part\ndef make(dim):\n    return Part(dim, 2)\n")
    return tmp_path


def test_definitions_only(folder) -> None:
    before = list(sys.path)
    model, arguments = target_model(f"{folder}/vit.py:ViT")
    assert model.head.in_features == 3 * 32 * 32
    assert arguments["input_shape"] == (3, 32, 32)
    assert target_model(f"{folder}/vit.py:ViT", input_shape=(1, 28, 28))[0].head.in_features == 784
    assert target_model(f"{folder}/vit.py:ViT", given={"depth": 4, "img_size": 8})[0].depth == 4
    assert target_model(f"{folder}/vit.py:Configured")[0].head.out_features == 10
    given = {"cfg": {"image_size": 8, "channels": 1, "num_classes": 4}}
    assert target_model(f"{folder}/vit.py:Configured", given=given)[1]["input_shape"] == (1, 8, 8)
    assert target_model(f"{folder}/package/model.py:make")[0].in_features == 48
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("vit.py:Vit", "defines no 'Vit'; it defines Configured, Logged, ViT and number"),
        ("vit.py", "name the model after a colon; it defines ViT, Configured and Logged"),
        ("vit.py:WIDTH", "is neither a class nor a function"),
        ("vit.py:Logged", "the module 'a_package_that_nobody_has' is missing: pip install a_package_that_nobody_has"),
        ("vit.py:number", "no value can be guessed for the argument 'mystery'"),
        ("nothing.py:ViT", "There is no file"),
        ("broken.py:ViT", "importing it failed: SyntaxError"),
        ("package/misspelt.py:make", "cannot import name 'Parts'"),
        ("uses_faulty.py:make", "importing 'faulty' fails here: RuntimeError: no such operator"),
    ],
)
def test_refusals(folder, target: str, message: str) -> None:
    (folder / "broken.py").write_text("class ViT(:\n")
    (folder / "package" / "misspelt.py").write_text(
        "from .parts import Parts\ndef make(dim):\n    return Parts(dim, 2)\n"
    )
    # installed, but broken on this machine, as a package is whose compiled part is missing
    (folder / "faulty").mkdir()
    (folder / "faulty" / "__init__.py").write_text(
        "def f():\n    raise RuntimeError('no such operator')\n\nclass C:\n    f()\n"
    )
    (folder / "uses_faulty.py").write_text("from faulty import crop\ndef make(dim):\n    return crop(dim)\n")
    with pytest.raises(VitreousError, match=message.replace("(", r"\(")):
        target_model(f"{folder}/{target}")


WHOLE = """
import time
from dataclasses import dataclass
from torch import nn

try:
    time.sleep(3600)  # stands for a training
finally:
    pass

@dataclass
class Config:
    image_size: int = 8
    channels: int = 1
    dim: int = 4
    depth: int = 2

class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.layer(x).relu()

class Model(nn.Module):
    def __init__(self, options: Config):
        super().__init__()
        self.options = options
        self.embed = nn.Linear(options.channels * options.image_size**2, options.dim)
        self.blocks = nn.Sequential(*[Block(options.dim) for _ in range(2)])

    def forward(self, x):
        return self.blocks(self.embed(x.flatten(1)))
"""


def test_the_class_that_is_no_part_of_another(tmp_path, no_overfitting) -> None:
    """Its configuration has the author's values, and a field without effect is found."""
    (tmp_path / "whole.py").write_text(WHOLE)
    model, arguments = target_model(f"{tmp_path}/whole.py")
    assert type(model).__name__ == "Model"
    assert arguments["input_shape"] == (1, 8, 8)
    diagnosis = diagnose_target(f"{tmp_path}/whole.py")
    assert diagnosis.notes[0] == "examined Model; name another class after a colon"
    (found,) = [found for found in diagnosis.findings if found.id == "argument-without-effect"]
    assert "`options.depth`" in found.measured
    assert found.level == "warning"


@pytest.mark.parametrize("when", ["importing", "building"])
def test_code_that_does_not_end(tmp_path, monkeypatch, when: str) -> None:
    monkeypatch.setattr(model_file, "LOADING_SECONDS", 0.2)
    wait = "import time\nfrom torch import nn\n{}class ViT(nn.Module):\n    def __init__(self):\n        {}\n"
    waiting = (
        ("class A:\n    time.sleep(60)\n", "super().__init__()") if when == "importing" else ("", "time.sleep(60)")
    )
    (tmp_path / "waits.py").write_text(wait.format(*waiting))
    with pytest.raises(VitreousError, match=f"{when} .*waits.py.* took more than 0 s: does it train"):
        target_model(f"{tmp_path}/waits.py:ViT")


@pytest.mark.parametrize("current", ["", "elsewhere"])
def test_imports_from_the_root_of_a_repository(current: str, tmp_path, monkeypatch) -> None:
    """Also where the current folder has one of the same name."""
    deep = tmp_path / "source/vision/components/models"
    deep.mkdir(parents=True)
    (tmp_path / "elsewhere/source").mkdir(parents=True)
    (tmp_path / "source/vision/sizes.py").write_text("WIDTH = 24\n")
    (deep / "net.py").write_text(
        "from torch import nn\nfrom source.vision.sizes import WIDTH\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(WIDTH, 10)\n"
    )
    monkeypatch.chdir(tmp_path / current)
    monkeypatch.syspath_prepend(str(tmp_path / current))
    for name in [name for name in sys.modules if name.partition(".")[0] == "source"]:
        monkeypatch.delitem(sys.modules, name)
    model, _ = target_model(f"{deep}/net.py:Net")
    assert model.layer.in_features == 24


def test_a_guessed_configuration_can_be_copied() -> None:
    settings = Settings({}, (3, 32, 32))
    assert settings.embed_dim == copy.deepcopy(settings).embed_dim == 48


class ChannelsLast(TinyViT):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.permute(0, 3, 1, 2))


def test_images_with_the_channels_last(no_overfitting) -> None:
    diagnosis = diagnose(ChannelsLast(), input_shape=(12, 12, 1), constructor=(ChannelsLast, {}), fresh=True)
    assert not diagnosis.findings
    assert "patches-scrambled" in diagnosis.healthy


def test_wrong_arguments(folder) -> None:
    with pytest.raises(VitreousError, match="has no argument 'heads'; it has img_size"):
        target_model(f"{folder}/vit.py:ViT", given={"heads": 3})
    for text in ("{", "[1]"):
        with pytest.raises(VitreousError, match="is not"):
            diagnose_target(f"{folder}/vit.py:ViT", arguments=text)
    with pytest.raises(VitreousError, match="has its own configuration"):
        diagnose_target("vit", arguments='{"depth": 3}')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("img_size", 32), ("image_size", 32), ("patch_size", 4), ("in_chans", 3), ("n_channels", 3), ("classes", 10),
        ("out_d", 10), ("embed_dim", 48), ("d_model", 48), ("hidden_size", 48), ("depth", 3), ("num_layers", 3),
        ("n_blocks", 3), ("num_encoders", 3), ("num_heads", 4), ("nhead", 4), ("dim_head", 12), ("head_size", 12),
        ("mlp_dim", 96), ("mlp_ratio", 2), ("feedforward_dim", 96), ("dropout", 0.1), ("emb_dropout", 0.1),
        ("num_patches", 64), ("seq_len", 64), ("batch_size", 4), ("chw", (3, 32, 32)), ("device", "cpu"),
        ("numHeads", 4),
    ],
)  # fmt: skip
def test_guesses(name: str, value: object) -> None:
    assert guess(name, (3, 32, 32)) == value


def test_one_number_in_a_list_is_a_square() -> None:
    signature = inspect.signature(lambda img_size=(32,), in_chans=1: None)
    assert guess_arguments(signature, {"img_size": [28]}, None)[1] == (1, 28, 28)


def test_defaults_are_kept_unless_the_shape_is_given() -> None:
    def build(img_size=224, in_chans=3, embed_dim=768) -> None: ...

    assert guess_arguments(inspect.signature(build), {}, None) == ({}, (3, 224, 224))
    assert guess_arguments(inspect.signature(build), {}, (1, 28, 28)) == (
        {"img_size": 28, "in_chans": 1}, (1, 28, 28)
    )  # fmt: skip


def test_the_command_line(folder, processes) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = processes.run("-m", "vitreous", "doctor", *arguments, cwd=folder)
        return done.returncode, done.stdout + done.stderr

    code, printed = run("vit.py:ViT", "--input-shape", "1,8,8", "--sarif", "findings.sarif")
    assert code == 1, printed
    assert "argument-without-effect" in printed
    sarif = json.loads((folder / "findings.sarif").read_text())
    assert sarif["version"] == "2.1.0"
    (found,) = sarif["runs"]
    rules = {rule["id"] for rule in found["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in found["results"]} == rules
    assert found["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "vit.py"
    assert run("--explain", "skip-missing")[1].startswith("# skip-missing\n")
    assert run() == (2, run("vit", "--explain", "skip-missing")[1])
    assert run("--run", "bundled:vit")[0] == 0


def test_sarif_points_to_the_class(no_overfitting) -> None:
    class Broken(TinyViT):
        def classify(self, x: torch.Tensor) -> torch.Tensor:
            return super().classify(x).softmax(-1)

    sarif = as_sarif(diagnose(Broken(), input_shape=(1, 12, 12)), "Broken")
    (result,) = sarif["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("test_model_file.py")
    assert place["region"]["startLine"] == inspect.getsourcelines(Broken)[1]
    assert result["level"] == "error"


def test_assert_healthy(no_overfitting) -> None:
    class Broken(TinyViT):
        def classify(self, x: torch.Tensor) -> torch.Tensor:
            return super().classify(x).softmax(-1)

    assert_healthy(TinyViT(), input_shape=(1, 12, 12))
    with pytest.raises(AssertionError, match="found 1 in Broken:\nbroken probabilities-not-logits: "):
        assert_healthy(Broken(), input_shape=(1, 12, 12))
    assert_healthy(Broken(), input_shape=(1, 12, 12), ignore=["probabilities-not-logits"])
    assert isinstance(Broken(), nn.Module)


GREY = """
from torch import nn

class Grey(nn.Module):
    def __init__(self, img_size=28, dim=8):
        super().__init__()
        self.proj = nn.Conv2d(1, dim, 7, 7)
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        return self.head(self.proj(images).flatten(2).mean(-1))
"""


def test_the_channels_that_the_model_takes_where_no_argument_states_them(tmp_path) -> None:
    (tmp_path / "grey.py").write_text(GREY)
    _, known = target_model(f"{tmp_path / 'grey.py'}:Grey")
    assert known["input_shape"] == (1, 28, 28)


LATE = """
import os, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "code"))
sys.path.append(os.path.join(HERE, "lib"))
sys.exit("this call is executed")

def build(num_classes=10):
    from net import Net
    return Net(num_classes)
"""


def test_imports_in_a_constructor_and_in_forward_from_where_the_file_looks(tmp_path, no_overfitting) -> None:
    """Also for the instances with other arguments; afterwards other imports are as before."""
    for name in ("code", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "entry.py").write_text(LATE)
    (tmp_path / "lib" / "vitreous_test_helper.py").write_text("def flat(x): return x.flatten(1)\n1 / 0\n")
    (tmp_path / "code" / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(784, num_classes)\n"
        "    def forward(self, x):\n"
        "        from vitreous_test_helper import flat\n"
        "        return self.layer(flat(x))\n"
    )
    search_path, finders = list(sys.path), list(sys.meta_path)
    diagnosis = diagnose_target(f"{tmp_path / 'entry.py'}:build", input_shape="1,28,28")
    assert diagnosis.findings == ()
    assert "vitreous_test_helper" in sys.modules
    assert sys.path == search_path
    assert sys.meta_path == finders


def test_a_name_that_an_installed_package_lacks(tmp_path, no_overfitting) -> None:
    """Packages rename things: what the model does not use is no reason to give up, and the other names are imported."""
    (tmp_path / "net.py").write_text(
        "from json import dumps, NoSuchName\n"
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, uses_it=False, num_classes=10):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(784, num_classes))\n"
        "        self.text = dumps({})\n"
        "        if uses_it:\n"
        "            NoSuchName()\n"
    )
    target = f"{tmp_path / 'net.py'}:Net"
    assert diagnose_target(target, input_shape="1,28,28").findings == ()
    with pytest.raises(
        VitreousError, match="importing 'json' fails here: ImportError: cannot import name 'NoSuchName'"
    ):
        diagnose_target(target, input_shape="1,28,28", arguments='{"uses_it": true}')
