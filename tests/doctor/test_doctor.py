"""The diagnosis as such: the article's models, targets, outputs of all kinds, and a model left unchanged."""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitreous.config import ArticleViTConfig
from vitreous.doctor import CHECKS, Diagnosis, Finding, diagnose, model_under_test, plain_text, render, target_model
from vitreous.doctor.checks import fresh
from vitreous.doctor.curves import CURVE_CHECKS
from vitreous.doctor.findings import LEVELS, explanations, finding
from vitreous.errors import VitreousError
from vitreous.models.article import PatchesArticleViT
from vitreous.testing import TinyBlock, TinyViT

#: What `vitreous doctor post-vit` must find (issue 4/5).
POST_VIT = {
    "batch-dependence", "tokens-never-attend", "class-token-untrained", "state-lost-on-reload", "linear-after-linear",
    "log-probabilities",
}  # fmt: skip


def test_the_articles_vit(no_overfitting) -> None:
    model, arguments = target_model("post-vit")
    diagnosis = diagnose(model, **arguments)
    assert diagnosis.ids("broken", "warning") == POST_VIT | {"unregistered-tensors"}
    measured = {found.id: found.measured for found in diagnosis.findings}
    assert "`model.class_token`" in measured["state-lost-on-reload"]
    assert "position_indices" not in measured["state-lost-on-reload"], "the constructor rebuilds the indices"
    assert "`model.linear1` (64 → 250) feeds `model.linear2` (250 → 100)" in measured["linear-after-linear"]


def test_the_articles_own_class_on_patches(no_overfitting) -> None:
    """Without a constructor: the class vector looks random, so it would not be rebuilt."""
    diagnosis = diagnose(PatchesArticleViT(ArticleViTConfig()), input_shape=(16, 7, 7))
    assert diagnosis.ids("broken", "warning") == POST_VIT | {"unregistered-tensors"}


def test_the_design_table_ignores_the_order_and_normalises_the_skip(no_overfitting) -> None:
    model, arguments = target_model("post-design")
    assert diagnose(model, **arguments).ids() == {"log-probabilities", "patch-order-ignored", "skip-normalised"}


def test_the_articles_cnn_only_returns_log_probabilities(no_overfitting) -> None:
    model, arguments = target_model("post-cnn")
    assert diagnose(model, **arguments).ids() == {"log-probabilities"}


# --- the model is left unchanged -----------------------------------------------------------------------------


def snapshot(model: nn.Module) -> dict:
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "attributes": [set(vars(module)) for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad is None for parameter in model.parameters()],
    }


@pytest.mark.parametrize("copyable", [True, False])
def test_nothing_is_changed(tiny_vit, copyable: bool) -> None:
    class Remembers(tiny_vit):
        def forward(self, images: Tensor) -> Tensor:
            self.last_tokens = self.embed(images)  # an attribute that appears, a gradient graph with it
            return super().forward(images)

    model = Remembers().train()
    model.blocks[0].eval()
    if not copyable:
        model.lock = threading.Lock()
    before = snapshot(model)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    images = torch.randn(64, 1, 12, 12)
    kept = images.clone()
    torch.set_rng_state(states[0])
    diagnosis = diagnose(model, images)
    assert not diagnosis.findings
    after = snapshot(model)
    assert all(torch.equal(before["state"][name], after["state"][name]) for name in before["state"])
    del before["state"], after["state"]
    assert before == after
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    assert torch.equal(images, kept)


def test_the_number_of_threads_is_restored(tiny_vit, no_overfitting) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        diagnose(tiny_vit(), input_shape=(1, 12, 12))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_works_under_no_grad(tiny_vit) -> None:
    with torch.no_grad():
        assert not diagnose(tiny_vit(), input_shape=(1, 12, 12)).findings
        assert not torch.is_grad_enabled()


# --- what a model may return, accept and do ------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap", [lambda y: {"logits": y}, lambda y: (y, None), lambda y: {"features": y[:, None], "out": y}]
)
def test_outputs_of_all_kinds(tiny_vit, wrap, no_overfitting) -> None:
    class Wrapped(tiny_vit):
        def forward(self, images: Tensor):
            return wrap(super().forward(images))

    assert not diagnose(Wrapped(), input_shape=(1, 12, 12)).findings


def test_a_crash_on_one_image_is_a_finding(tiny_vit, no_overfitting) -> None:
    class NeedsABatch(tiny_vit):
        def forward(self, images: Tensor) -> Tensor:
            if len(images) == 1:
                raise RuntimeError("one image is not a batch")
            return super().forward(images)

    diagnosis = diagnose(NeedsABatch(), input_shape=(1, 12, 12))
    assert diagnosis.ids() == {"batch-size"}
    assert "1 image: RuntimeError: one image is not a batch" in diagnosis.findings[0].measured
    reasons = {item.id: item.reason for item in diagnosis.not_measured}
    assert reasons["batch-dependence"] == "RuntimeError: one image is not a batch"
    assert "softmax-axis" in diagnosis.healthy


def test_cpu_time_is_limited_not_wall_time(tiny_vit, monkeypatch) -> None:
    monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 600.0)
    monkeypatch.setattr(model_under_test, "CPU_SECONDS", 0.01)
    diagnosis = diagnose(tiny_vit(), input_shape=(1, 12, 12))
    assert "cannot-overfit" in {item.id for item in diagnosis.not_measured}
    assert diagnosis.cpu_seconds > 0


def test_a_finding_names_file_and_line(no_overfitting) -> None:
    class Softmax(TinyViT):
        class block(TinyBlock):
            def weights(self, q: Tensor, k: Tensor) -> Tensor:
                return (q @ k.mT).softmax(dim=-1)

    (found,) = diagnose(Softmax(), input_shape=(1, 12, 12)).findings
    path, _, line = found.location.rpartition(":")
    assert path == __file__
    assert "class block(TinyBlock)" in Path(path).read_text().splitlines()[int(line) - 1]
    assert found.module == "blocks.0"
    assert "+        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)" in found.diff.splitlines()


def test_outputs_that_are_not_finite(tiny_vit, no_overfitting) -> None:
    class Exploded(tiny_vit):
        def classify(self, x: Tensor) -> Tensor:
            return super().classify(x) / 0

    assert "outputs-not-finite" in diagnose(Exploded(), input_shape=(1, 12, 12)).ids("broken")


def test_the_input_shape_is_found_or_required(tiny_vit) -> None:
    with pytest.raises(VitreousError, match="give its shape: images=…"):
        diagnose(tiny_vit())  # 12×12 is not a common shape, and the model does not declare it
    with pytest.raises(VitreousError, match=r"does not accept inputs of shape \(2, 3, 12, 12\)"):
        diagnose(tiny_vit(), input_shape=(3, 12, 12))
    with pytest.raises(VitreousError, match="64 images and 3 labels"):
        diagnose(tiny_vit(), torch.randn(64, 1, 12, 12), torch.zeros(3))
    with pytest.raises(VitreousError, match=r"takes an nn\.Module, not a str"):
        diagnose("vit")


def test_every_check_is_accounted_for(tiny_vit, no_overfitting) -> None:
    diagnosis = diagnose(tiny_vit(), input_shape=(1, 12, 12))
    assert set(CHECKS) == {*diagnosis.healthy, *(item.id for item in diagnosis.not_measured)}


def test_every_finding_is_explained() -> None:
    trends = {f"{what}-{verb}" for what in ("activations", "gradients") for verb in ("vanish", "explode")}
    names = {name for name in CHECKS if not name.endswith("-with-depth")}
    names |= {"dropout-on-logits", "learning-rate-low", "weights-too-small"}
    names |= set(CURVE_CHECKS)
    for id in trends | names:
        found = finding(id, "measured")
        assert found.level in LEVELS
        assert found.why.endswith(".")
        assert found.fix
    assert set(explanations()) == trends | names


# --- targets -------------------------------------------------------------------------------------------------


def test_a_callable_in_the_current_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_vit_for_doctor.py").write_text(
        "from torch import nn\nSIZE = 3\nready = nn.Linear(4, 2)\ndef make():\n    return nn.Linear(4, 2)\n"
        "def needs(width):\n    return nn.Linear(width, 2)\ndef number():\n    return 3\n"
    )
    (tmp_path / "broken_for_doctor.py").write_text("import a_package_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    model, arguments = target_model("my_vit_for_doctor:make")
    assert isinstance(model, nn.Linear)
    assert arguments["constructor"][1] == {}
    assert isinstance(target_model("my_vit_for_doctor:ready")[0], nn.Linear)
    assert target_model("my_vit_for_doctor:needs", given={"width": 5})[0].in_features == 5
    for text, message in {
        "my_vit_for_doctor:mke": "has no 'mke'; it has make",
        "my_vit_for_doctor:number": "returned a int, not an nn.Module",
        "my_vit_for_doctor:SIZE": "does not name a callable",
        "my_vit_for_doctor:": "does not name a callable",
        "no_such_module_here:make": "there is no module 'no_such_module_here'",
        "broken_for_doctor:make": "the module 'a_package_nobody_has' is missing",
        "vti": "neither a preset",
    }.items():
        with pytest.raises(VitreousError, match=message):
            target_model(text)
    assert sys.path == path


def test_presets_bring_their_arguments() -> None:
    state = torch.get_rng_state()
    model, arguments = target_model("vit")
    factory = arguments.pop("factory")
    assert arguments == {"input_shape": (1, 28, 28), "num_classes": 10, "fresh": True}
    assert torch.equal(state, torch.get_rng_state())
    assert type(factory()) is type(model)


# --- output --------------------------------------------------------------------------------------------------


def test_a_diagnosis_as_text_and_as_json() -> None:
    note = Finding("a-note", "note", "2 things.", "Because.", "Do nothing.")
    broken = Finding("worse", "broken", "[1] of 3.", "It matters.", "Fix it.")
    diagnosis = Diagnosis((note, broken), (), ("some-check",), 1.234)
    text = plain_text(diagnosis, "vit")
    assert text.startswith("vit\nbroken worse: [1] of 3.\n  why: It matters.\n  fix: Fix it.\n")
    assert text.endswith("in order: some-check\n1 broken, 1 note; 1 check in order, 0 not measured, 1.2 s\n")
    assert json.loads(json.dumps(diagnosis.as_json()))["findings"][1]["id"] == "worse"
    assert "<code>worse</code>" in diagnosis._repr_html_()
    assert diagnosis.exit_code == 1
    assert Diagnosis((note,), (), (), 0.0).exit_code == 0

    plain = io.StringIO()
    render(diagnosis, "vit", plain)
    assert plain.getvalue() == text

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    render(diagnosis, "vit", terminal)
    assert "[1] of 3." in terminal.getvalue(), "brackets are text, not markup"


def test_what_a_model_prints_is_discarded(capsys: pytest.CaptureFixture[str]) -> None:
    class Talkative(TinyViT):
        def forward(self, images: Tensor) -> Tensor:
            print("shape", images.shape)
            return super().forward(images)

    diagnose(Talkative(), input_shape=(1, 12, 12))
    assert capsys.readouterr().out == ""


def test_logits_beside_features_are_found_by_their_name() -> None:
    class Named(TinyViT):
        def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            x = self.encode(self.embed(images))
            return {"features": self.norm(x[:, 0]), "tokens": x, "head_logits": self.classify(x)}

    diagnosis = diagnose(Named(), input_shape=(1, 12, 12), num_classes=10)
    assert not [found for found in diagnosis.findings if found.level != "note"]
