"""The conformance report: ViT-B/16 equals the paper's, and each row detects a change of its item."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from vitreous.checkpoints import positions
from vitreous.config import Config, ViTConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.conformance import ITEMS, Row, as_json, conformance, conformance_table
from vitreous.conformance.initialisation import initialisation_faults
from vitreous.conformance.rows import reduced
from vitreous.models import build
from vitreous.models.vit import Attention, Block, PatchEmbed, ViT

IDS = [item.id for item in ITEMS]


def report(config: Config, model: nn.Module | None = None) -> dict[str, Row]:
    return {row.id: row for row in conformance(config, model)}


def verdicts(rows: dict[str, Row]) -> dict[str, str]:
    return {id: row.verdict for id, row in rows.items()}


def small_b16(**changes: Any) -> Config:
    """ViT-B/16 at reduced size, with the paper's fine-tuning settings."""
    base = preset("vit-b16")
    return base.replace(model=reduced(base.model).replace(**changes))


# --- the paper's own model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit-b16", "vit-b32", "vit-l16", "vit-l32", "vit-h14"])
def test_the_papers_models(name: str) -> None:
    rows = report(preset(name))
    expected = dict.fromkeys(IDS, "same") | {
        "head-pretraining": "does not apply",  # these have the fine-tuning head
        "table3": "does not apply",  # and its settings
        "finetuning": "differs",  # but at 224 pixels
    }
    assert verdicts(rows) == expected
    assert rows["finetuning"].note == "resolution 224×224, paper 384×384"


def test_the_printed_count_of_large_is_noted() -> None:
    row = report(preset("vit-l16"))["table1-parameters"]
    assert row.here == "304,326,632"
    assert "prints 307M" in row.note
    assert "306,535,400" in row.paper
    assert "307M" in row.unconfirmed


def test_deits_models_are_not_in_table_1() -> None:
    rows = report(preset("vit-s16"))
    assert rows["table1-depth"].verdict == "same"
    assert rows["table1-dim"].verdict == rows["table1-num-heads"].verdict == "differs"


# --- each row detects changes of the model -------------------------------------------------------------------


class NormedPatches(PatchEmbed):
    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return F.layer_norm(tokens, tokens.shape[-1:])


class ColumnByColumn(PatchEmbed):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.mT.contiguous())


class UnscaledAttention(Attention):
    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        D, scale = x.shape[-1], (x.shape[-1] // self.num_heads) ** 0.5
        factors = torch.cat([x.new_full((D,), scale), x.new_ones(2 * D)])  # on the queries, to undo 1 / √K
        hook = self.qkv.register_forward_hook(lambda _module, _inputs, qkv: qkv * factors)
        try:
            return super().forward(x, *rest)
        finally:
            hook.remove()


class PostNormBlock(Block):
    def forward(self, x: Tensor, taps: Any = None, head_mask: Any = None, key_mask: Any = None) -> Tensor:
        x = self.norm1(x + self.attn(x, taps))
        if taps is not None:
            taps["middle"] = x
        return self.norm2(x + self.mlp(x))


class NoResidual(Block):
    def forward(self, x: Tensor, taps: Any = None, head_mask: Any = None, key_mask: Any = None) -> Tensor:
        x = x + self.attn(self.norm1(x), taps)
        if taps is not None:
            taps["middle"] = x
        return self.mlp(self.norm2(x))


class ReadsTwoTokens(ViT):
    def classify(self, x: Tensor, key_mask: Tensor | None = None, taps: Any = None) -> Tensor:
        return super().classify(x[:, :1] + x[:, 1:2], key_mask, taps)


class ReluHead(ViT):
    def classify(self, x: Tensor, key_mask: Tensor | None = None, taps: Any = None) -> Tensor:
        assert self.pre_logits is not None
        return self.head(F.relu(self.pre_logits(self.norm(x[:, 0]))))


def _set(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.get_submodule(path), name, value)


def _become(kind: type[nn.Module], path: str = "") -> Callable[[Any], None]:
    """Replace the class of a submodule by a misbehaving subclass that keeps its parameters."""
    return _set(path, "__class__", kind)


#: name: (change of the model, of the configuration, every row that then differs, words of its note)
MODEL_CHANGES: dict[str, tuple[Callable[[Any], None], dict[str, Any], set[str], str]] = {
    "normalised patches": (_become(NormedPatches, "patch_embed"), {}, {"eq1"}, "not linear"),
    "patches column by column": (_become(ColumnByColumn, "patch_embed"), {}, {"eq1"}, "other tokens than its own"),
    "attention not scaled": (_become(UnscaledAttention, "blocks.1.attn"), {}, {"eq2"}, "by up to"),
    "post-norm": (_become(PostNormBlock, "blocks.1"), {}, {"eq2", "eq3"}, "the norm comes after the sum"),
    "no residual": (_become(NoResidual, "blocks.0"), {}, {"eq3"}, "there is no residual"),
    "two tokens read": (_become(ReadsTwoTokens), {}, {"eq4"}, "other tokens are read"),
    "fixed class token": (lambda model: model.cls_token.requires_grad_(False), {}, {"class-token"}, "not trained"),
    "ReLU": (_set("blocks.1.mlp", "act", nn.ReLU()), {}, {"gelu"}, "not a GELU"),
    "ε of one norm": (_set("blocks.0.norm2", "eps", 1e-5), {}, {"norm-eps"}, "not 1e-6"),
    "ReLU in the head": (_become(ReluHead), {"head": "mlp"}, {"head-pretraining"}, "another head"),
}


@pytest.mark.parametrize("name", MODEL_CHANGES)
def test_a_changed_model_changes_its_row(name: str) -> None:
    """The model itself is measured: its configuration is the same before and after."""
    change, settings, changed_rows, words = MODEL_CHANGES[name]
    config = small_b16(**settings)
    model = build(config.model)
    before = report(config, model)
    change(model)
    after = report(config, model)
    assert {id for id in IDS if after[id].verdict != before[id].verdict} == changed_rows
    assert {after[id].verdict for id in changed_rows} == {"differs"}
    assert words in " ".join(after[id].note for id in changed_rows)


# --- each row detects changes of the configuration -----------------------------------------------------------

CONFIG_CHANGES: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "mean pooling": ({"pool": "mean"}, {"eq1", "eq4", "class-token"}, "there is no class token"),
    "sequence pooling": ({"pool": "seq"}, {"eq1", "eq4", "class-token"}, "other tokens are read"),
    "no positions": ({"positions": "none"}, {"eq1", "positions"}, "no positions are added"),
    "2-D positions": ({"positions": "learned-2d"}, {"positions"}, "not the paper's default"),
    "sine-cosine": ({"positions": "sincos-2d"}, {"positions", "position-variants"}, "not among the appendix's"),
    "relative": ({"positions": "relative"}, {"eq1", "eq2", "positions"}, "relative positions"),
    "conv stem": ({"stem_channels": (8, 8), "patch_size": 4}, {"eq1"}, "a conv stem comes first"),
    "resized": ({"image_size": 60, "fit": "resize"}, {"eq1"}, "a patch reaches other tokens"),
    "ε": ({"norm_eps": 1e-12}, {"norm-eps"}, "not 1e-6"),
    "head not zero": ({"zero_head": False}, {"head-finetuning"}, "does not start at zero"),
}


@pytest.mark.parametrize("name", CONFIG_CHANGES)
def test_a_changed_configuration_changes_its_row(name: str) -> None:
    settings, changed_rows, words = CONFIG_CHANGES[name]
    before, after = report(small_b16()), report(small_b16(**settings))
    lost = {id for id in IDS if before[id].verdict == "same" and after[id].verdict == "differs"}
    assert lost == changed_rows
    assert words in " ".join(after[id].note for id in changed_rows)


@pytest.mark.parametrize("patch_size", [10, 16, 40])
def test_padded_patches_are_not_compared(patch_size: int) -> None:
    """28 × 28 pixels, padded: only patches entirely inside the image have as many pixels as the matrix has inputs."""
    base = preset("vit")
    row = report(base.replace(model=base.model.replace(patch_size=patch_size, fit="pad")))["eq1"]
    assert row.verdict == "same", row.note


@pytest.mark.parametrize(
    ("setting", "row"),
    [({"depth": 11}, "table1-depth"), ({"dim": 744}, "table1-dim"), ({"mlp_dim": 3000}, "table1-mlp-dim"),
     ({"num_heads": 8}, "table1-num-heads"), ({"qkv_bias": False}, "table1-parameters")],
    ids=lambda value: str(value),
)  # fmt: skip
def test_table_1_notices_each_size(setting: dict[str, Any], row: str) -> None:
    base = preset("vit-b16")
    before, after = report(base), report(base.replace(model=base.model.replace(**setting)))
    sizes = {id for id in IDS if id.startswith("table1") and after[id].verdict != before[id].verdict}
    assert sizes - {"table1-parameters"} == {row} - {"table1-parameters"}
    assert after[row].verdict == "differs"


def test_table_1_counts_the_model_it_is_given() -> None:
    config = small_b16()
    model = build(config.model)
    model.blocks = model.blocks[:1]
    rows = report(config, model)
    assert rows["table1-depth"].here == "1"
    assert rows["table1-parameters"].here == f"{sum(p.numel() for p in model.parameters()):,}"


# --- initialisation and another resolution: changes of the package -------------------------------------------


def _normal_everywhere(model: ViT) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)


def _positions_forgotten(model: ViT) -> None:
    _INITIALISE(model)
    nn.init.zeros_(model.pos_embed)


def _qkv_as_one_matrix(model: ViT) -> None:
    _INITIALISE(model)
    for block in model.blocks:
        nn.init.xavier_uniform_(block.attn.qkv.weight)  # its bound is then that of a (3D × D) matrix


_INITIALISE = ViT.initialise


@pytest.mark.parametrize(
    ("initialise", "words"),
    [(_normal_everywhere, "class token is not zero"), (_positions_forgotten, "positions are not N(0, 0.02)"),
     (_qkv_as_one_matrix, "not Xavier-uniform")],
)  # fmt: skip
def test_another_initialisation_changes_the_row(
    initialise: Callable[[ViT], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report(small_b16())["initialisation"].verdict == "same"
    monkeypatch.setattr(ViT, "initialise", initialise)
    row = report(small_b16())["initialisation"]
    assert row.verdict == "differs"
    assert words in row.note


def test_the_initialisation_of_a_trained_model_is_that_of_a_fresh_one() -> None:
    config = small_b16()
    model = build(config.model)
    _normal_everywhere(model)  # as if trained
    assert report(config, model)["initialisation"] == report(config)["initialisation"]


def test_the_initialisation_is_recognised_whatever_the_seed() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        assert not initialisation_faults(build(small_b16().model)), seed


def _in_one_dimension(table: Tensor, old: Any, new: tuple[int, int], has_class_token: bool, rule: str) -> Tensor:
    patches = F.interpolate(table[:, has_class_token:].mT, size=new[0] * new[1], mode="linear", align_corners=True).mT
    return torch.cat([table[:, :has_class_token], patches], dim=1)


def _class_token_too(table: Tensor, old: Any, new: Any, has_class_token: bool, rule: str) -> Tensor:
    fitted = _RESIZE(table, old, new, has_class_token, rule)
    return fitted + (torch.arange(fitted.shape[1]) == 0)[None, :, None] * 0.01


_RESIZE = positions.resize_positions


@pytest.mark.parametrize("other", [_in_one_dimension, _class_token_too])
def test_another_interpolation_changes_the_row(other: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(small_b16())["interpolation"].verdict == "same"
    monkeypatch.setattr(positions, "resize_positions", other)
    assert report(small_b16())["interpolation"].verdict == "differs"


# --- training ------------------------------------------------------------------------------------------------


def from_scratch_on_imagenet() -> Config:
    """The last line of Table 3."""
    base = preset("vit-b16")
    return base.replace(
        model=base.model.replace(head="mlp", dropout=0.1),
        train=base.train.replace(
            optimizer="adamw", lr=3e-3, weight_decay=0.3, batch_size=4096, epochs=300, warmup_fraction=0.1067,
            schedule="cosine", clip_norm=1.0,
        ),
    )  # fmt: skip


def test_table_3_and_the_pretraining_head_can_be_met() -> None:
    rows = report(from_scratch_on_imagenet())
    assert rows["table3"].verdict == "same"
    assert "ImageNet" in rows["table3"].here
    assert rows["head-pretraining"].verdict == "same"
    assert rows["head-finetuning"].verdict == rows["finetuning"].verdict == "does not apply"


@pytest.mark.parametrize(
    "setting",
    [{"betas": (0.9, 0.95)}, {"batch_size": 1024}, {"warmup_fraction": 0.05}, {"schedule": "linear"}, {"epochs": 90},
     {"lr": 1e-3}, {"weight_decay": 0.1}, {"clip_norm": 0.0}, {"label_smoothing": 0.1}, {"ema_decay": 0.99},
     {"optimizer": "muon"}],
    ids=str,
)  # fmt: skip
def test_table_3_notices_each_setting(setting: dict[str, Any]) -> None:
    base = from_scratch_on_imagenet()
    row = report(base.replace(train=base.train.replace(**setting)))["table3"]
    assert row.verdict == "differs"
    assert row.note.count(", paper ") == 1


@pytest.mark.parametrize("setting", [{"dropout": 0.0}, {"image_size": 256}, {"drop_path": 0.1}], ids=str)
def test_table_3_notices_the_models_settings(setting: dict[str, Any]) -> None:
    base = from_scratch_on_imagenet()
    assert report(base.replace(model=base.model.replace(**setting)))["table3"].verdict == "differs"


def fine_tuned() -> Config:
    base = preset("vit-b16")
    return base.replace(model=base.model.replace(image_size=384))


def test_the_fine_tuning_settings_can_be_met() -> None:
    assert report(fine_tuned())["finetuning"].verdict == "same"


@pytest.mark.parametrize(
    "setting",
    [{"momentum": 0.0}, {"batch_size": 128}, {"schedule": "linear"}, {"lr": 0.5}, {"weight_decay": 0.1},
     {"clip_norm": 0.0}, {"label_smoothing": 0.1}],
    ids=str,
)  # fmt: skip
def test_fine_tuning_notices_each_setting(setting: dict[str, Any]) -> None:
    base = fine_tuned()
    row = report(base.replace(train=base.train.replace(**setting)))["finetuning"]
    assert row.verdict == "differs"
    assert row.note.count(", paper ") == 1


# --- the whole report ----------------------------------------------------------------------------------------


def test_every_row_has_a_change_that_makes_it_differ() -> None:
    """A new row needs a change above that makes it differ."""
    by_model = set().union(*(changed_rows for _, _, changed_rows, _ in MODEL_CHANGES.values()))
    by_config = set().union(*(changed_rows for _, changed_rows, _ in CONFIG_CHANGES.values()))
    elsewhere = {"initialisation", "interpolation", "table3", "finetuning", *(id for id in IDS if "table1" in id)}
    assert by_model | by_config | elsewhere == set(IDS)


@pytest.mark.parametrize("name", ["cnn", "post-cnn"])
def test_a_cnn_is_not_the_paper(name: str) -> None:
    rows = report(preset(name))
    assert "same" not in verdicts(rows).values()
    assert {id for id in IDS if id.startswith("eq") and rows[id].verdict == "differs"} == {"eq1", "eq2", "eq3", "eq4"}


def test_the_articles_vit_is_recognised() -> None:
    rows = report(preset("post-vit"))
    assert "L2-normalised" in rows["eq1"].note
    assert "across the images of a batch" in rows["eq2"].note
    assert "the norm comes after the sum" in rows["eq3"].note
    assert "no LayerNorm" in rows["eq4"].note
    assert "not trained" in rows["class-token"].note
    assert rows["positions"].verdict == "same"
    assert rows["norm-eps"].here.startswith("1e-05")
    assert rows["head-pretraining"].verdict == "differs"


def test_the_design_table_is_recognised() -> None:
    base = preset("post-design")
    rows = report(base)
    assert "one and the same position" in rows["eq1"].note
    assert "MSA(LN(z)) + LN(z)" in rows["eq2"].note
    assert "MLP(LN(z′)) + LN(z′)" in rows["eq3"].note
    fixed = report(base.replace(model=base.model.replace(residual="paper", positions="per-index")))
    assert fixed["eq2"].verdict == fixed["eq3"].verdict == fixed["eq4"].verdict == "same"
    assert fixed["positions"].here == "learned, but positions share parameters"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_complete_report(name: str) -> None:
    rows = conformance(preset(name))
    assert [row.id for row in rows] == IDS
    assert all(row.item and row.paper and row.here for row in rows)
    assert all(row.note for row in rows if row.verdict != "same")
    assert json.loads(json.dumps(as_json(rows)))["rows"][0]["id"] == "eq1"


def test_a_bare_model_configuration_has_no_training_settings() -> None:
    rows = {row.id: row for row in conformance(ViTConfig())}
    assert rows["table3"].verdict == rows["finetuning"].verdict == "does not apply"
    assert rows["eq1"].verdict == "same"


def test_measuring_changes_nothing() -> None:
    config = small_b16()
    model = build(config.model).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    conformance(config, model)
    assert model.training
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_table_shows_brackets_and_unconfirmed_items() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(conformance_table(conformance(preset("vit-b16")), title="vit-b16"))
    text = console.export_text()
    assert "[x_class; x_p¹E" in text
    assert "not confirmed: " in text
    assert "do not apply" in text
