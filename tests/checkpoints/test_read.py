"""Detection of the layout, inference of the configuration, and the account of every tensor."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vitreous.checkpoints import load_model, read_checkpoint, save_model
from vitreous.errors import CheckpointError
from vitreous.models.fast.vit import FastViT


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def write(tmp_path):
    def _write(tensors, name="w.safetensors", **metadata):
        path = tmp_path / name
        contiguous = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
        save_file(contiguous, path, metadata=metadata or None)
        return path

    return _write


# --- every tensor accounted for ----------------------------------------------------------------------------


def test_a_whole_model(tiny, write, logits_of):
    model = tiny()
    again, checkpoint = load_model(write(state_of(model)), num_heads=4)
    assert checkpoint.report == "32 of 32 tensors, none left over"
    assert again.config == model.config.replace(zero_head=True)
    assert isinstance(again, FastViT), "what build() returns"
    assert not again.training
    torch.testing.assert_close(state_of(again), state_of(model), rtol=0, atol=0)
    torch.testing.assert_close(logits_of(again, again.config), logits_of(model, model.config))


@pytest.mark.parametrize("allow_partial", [False, True])
def test_missing_unexpected_and_wrong_are_listed(tiny, write, allow_partial):
    state = state_of(tiny())
    del state["blocks.1.mlp.fc2.bias"]
    state["norm.bias"] = torch.zeros(31)
    state["decoder.weight"] = torch.zeros(3)
    path = write(state)
    lines = [
        "missing: blocks.1.mlp.fc2.bias",
        "unexpected: decoder.weight",
        "wrong shape: norm.bias: (31,) in the file, (32,) in the model",
    ]
    if not allow_partial:
        with pytest.raises(CheckpointError) as caught:
            load_model(path, num_heads=4)
        text = str(caught.value)
    else:
        model, checkpoint = load_model(path, num_heads=4, allow_partial=True)
        text = checkpoint.report
        assert torch.equal(model.norm.weight, state["norm.weight"])
        assert torch.equal(model.norm.bias, torch.zeros(32))  # as a fresh model has it
    assert "31 of 32 tensors; 1 missing, 1 left over, 1 of the wrong shape" in text
    for line in lines:
        assert line in text


def test_loading_leaves_the_random_generator_alone(tiny, write):
    path = write(state_of(tiny()))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_model(path, num_heads=4)
    assert torch.equal(torch.rand(2), expected)


def test_half_precision_is_noted(tiny, write):
    path = write({name: tensor.bfloat16() for name, tensor in state_of(tiny()).items()})
    checkpoint = read_checkpoint(path, num_heads=4)
    assert "stored as bfloat16, computed in float32" in checkpoint.notes
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {torch.float32}


# --- what the file does not state --------------------------------------------------------------------------


def test_heads_are_required_or_assumed_with_a_note(tiny, write):
    path = write(state_of(tiny()))
    with pytest.raises(CheckpointError, match=r"does not state its number of heads.*give num_heads"):
        read_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"must be a multiple of model\.num_heads=5"):
        read_checkpoint(path, num_heads=5)
    published = read_checkpoint(write(state_of(tiny(dim=192, num_heads=3, depth=1))))
    assert published.config.num_heads == 3
    assert any("3 heads, as models of this width usually have" in line for line in published.assumptions)


def test_invalid_facts_are_refused_by_name(tiny, write):
    facts = {"image_size": [24, -1], "norm_eps": "1e-6", "gelu": [], "mean": [float("nan")], "std": {"0": 1},
             "class_names": {"0": "a", "2": "b"}, "depth": 3, "rope": True}  # fmt: skip
    for name, value in facts.items():
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(write(state_of(tiny()), vitreous=json.dumps({"num_heads": 4, name: value})))
    for text in ("[1]", "{", "[" * 100_000):
        with pytest.raises(CheckpointError, match="should be a JSON object"):
            read_checkpoint(write(state_of(tiny()), vitreous=text), num_heads=4)
    for wrong in ({"trained_size": (24, "24")}, {"num_heads": 0}, {"pool": "max"}, {"gelu": "relu"}, {"norm_eps": 0}):
        with pytest.raises(CheckpointError, match=f"{next(iter(wrong))}=.*: expected"):
            read_checkpoint(write(state_of(tiny())), **wrong)


def test_an_oblong_grid_needs_its_size(tiny, write):
    path = write(state_of(tiny(image_size=(24, 18))))
    with pytest.raises(CheckpointError, match=r"12 patches of 6×6 pixels, which make no square: give trained_size"):
        read_checkpoint(path, num_heads=4)
    assert read_checkpoint(path, num_heads=4, trained_size=(24, 18)).config.grid == (4, 3)
    # 4 × 2 patches and a class token have as many positions as 3 × 3 patches alone (no_embed_class): the size decides
    path = write(state_of(tiny(image_size=(24, 12))))
    assert read_checkpoint(path, num_heads=4, trained_size=(24, 12)).config.grid == (4, 2)
    assert any("the class token has no position embedding" in note for note in read_checkpoint(path, num_heads=4).notes)
    with pytest.raises(CheckpointError, match="was not trained at 30×30 pixels"):
        read_checkpoint(path, num_heads=4, trained_size=30)


def test_unknown_normalisation_is_noted(tiny, write):
    checkpoint = read_checkpoint(write(state_of(tiny())), num_heads=4)
    assert checkpoint.preprocessing is None
    assert any("does not state its input's normalisation" in note for note in checkpoint.notes)


def test_a_backbone_needs_classes(tiny, write, logits_of):
    state = state_of(tiny())
    path = write({name: tensor for name, tensor in state.items() if not name.startswith("head")})
    checkpoint = read_checkpoint(path, num_heads=4)
    assert not checkpoint.has_head
    assert checkpoint.report == "30 of 30 tensors, none left over"
    with pytest.raises(CheckpointError, match="backbone without a classifier"):
        load_model(path, num_heads=4)
    model, checkpoint = load_model(path, num_heads=4, num_classes=5)
    assert logits_of(model, model.config).abs().max() == 0
    assert "a new classifier for 5 classes, starting at zero: the file had none" in checkpoint.notes


# --- prefixes and containers -------------------------------------------------------------------------------


PREFIXES = ("model.", "state_dict.", "module.", "backbone.", "state_dict.model.", "module.backbone.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes(tiny, write, prefix):
    path = write({prefix + name: tensor for name, tensor in state_of(tiny()).items()})
    checkpoint = read_checkpoint(path, num_heads=4)
    assert checkpoint.report == "32 of 32 tensors, none left over"
    assert f"weights taken from under the prefix {prefix!r}" in checkpoint.notes


def test_a_training_checkpoint(tiny, write):
    """Optimizer states are skipped; of two models one must be chosen."""
    state = state_of(tiny())
    tensors = {f"model.{name}": tensor for name, tensor in state.items()}
    tensors |= {f"optimizer.state.{i}.exp_avg": torch.zeros(2) for i in range(5)}
    checkpoint = read_checkpoint(write(tensors), num_heads=4)
    assert checkpoint.report == "32 of 32 tensors, none left over"
    assert any(note.startswith("5 tensors of the training's state") for note in checkpoint.notes)
    tensors |= {f"model_ema.{name}": tensor * 2 for name, tensor in state.items()}
    with pytest.raises(CheckpointError, match=r"2 models, under 'model\.', 'model_ema\.': choose one with prefix="):
        read_checkpoint(write(tensors), num_heads=4)
    averaged = read_checkpoint(write(tensors), num_heads=4, prefix="model_ema.")
    assert torch.equal(averaged.tensors["norm.bias"], state["norm.bias"] * 2)
    assert not averaged.problems


def test_tensors_outside_the_prefix_are_left_over(tiny, write):
    tensors = {f"backbone.{name}": tensor for name, tensor in state_of(tiny()).items()}
    path = write(tensors | {"head.mlp.0.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"unexpected: head\.mlp\.0\.weight"):
        read_checkpoint(path, num_heads=4)


# --- refused, naming the part ------------------------------------------------------------------------------

PARTS = {
    "dist_token": "DeiT's distillation token",
    "head_dist.weight": "DeiT's distillation token",
    "fc_norm.weight": "fc_norm",
    "blocks.0.mlp.w12.weight": "SwiGLU",
    "blocks.0.attn.lambda_q1": "differential attention",
    "blocks.0.in_proj.weight": "attention and MLP in parallel",
    "blocks.0.gamma_1": "rotary positions",
    "base_model.blocks.0.attn.qkv.lora_A.weight": "LoRA",
    "attn_pool.q.weight": "attention pooling",
    "blocks.0.attn.q_norm.weight": "normalised queries and keys",
    "patch_embed.backbone.conv.weight": "timm's hybrid",
    "blocks.0.attn.relative_position_bias_table": "relative or rotary positions",
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_the_paper_does_not_have(tiny, write, name):
    path = write(state_of(tiny()) | {name: torch.zeros(2)})
    for allow_partial in (False, True):
        with pytest.raises(CheckpointError, match=PARTS[name]):
            read_checkpoint(path, num_heads=4, allow_partial=allow_partial)


def test_current_vit_pytorch_is_refused(parity, write):
    state = dict(parity.OldVitPytorch(parity.TINY).state_dict())
    size = state["to_patch_embedding.1.weight"].shape[1]
    current = state | {
        "to_patch_embedding.1.weight": torch.ones(size),
        "to_patch_embedding.2.weight": state["to_patch_embedding.1.weight"],
        "to_patch_embedding.3.weight": torch.ones(32),
    }
    with pytest.raises(CheckpointError, match=r"current vit-pytorch.*LayerNorm.*to_patch_embedding\.1 and \.3"):
        read_checkpoint(write(current))


def test_vit_pytorch_with_wide_heads_is_refused(parity, write):
    state = dict(parity.OldVitPytorch(parity.TINY).state_dict())
    state |= {"transformer.layers.0.0.fn.to_qkv.weight": torch.zeros(3 * 64, 32)}
    with pytest.raises(CheckpointError, match="heads are 64 wide together and its tokens 32"):
        read_checkpoint(write(state))
    state |= {"transformer.layers.0.0.fn.to_qkv.weight": torch.zeros(0, 0)}
    with pytest.raises(CheckpointError, match="does not state its number of heads"):
        read_checkpoint(write(state))


GOOGLE_PARTS = {
    "conv_root/kernel": "hybrid",
    "params/MAPHead_0/probe": "attention pooling",
}


@pytest.mark.parametrize("name", GOOGLE_PARTS)
def test_google_files_that_cannot_be_expressed(parity, tmp_path, name):
    arrays = parity.google_arrays(parity.TINY) | {name: np.zeros(3, np.float32)}
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(CheckpointError, match=GOOGLE_PARTS[name]):
        read_checkpoint(tmp_path / "w.npz")


def test_big_vision_without_stored_positions(parity, tmp_path):
    arrays = parity.google_arrays(parity.TINY.replace(pool="mean"), big_vision=True)
    del arrays["pos_embedding"]
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(CheckpointError, match="sine-cosine"):
        read_checkpoint(tmp_path / "w.npz")


def test_google_facts(parity, tmp_path):
    arrays = {f"opt/target/{name}": array for name, array in parity.google_arrays(parity.TINY).items()}
    np.savez(tmp_path / "w.npz", **arrays, **{"opt/state/step": np.array(100)})
    checkpoint = read_checkpoint(tmp_path / "w.npz")
    assert (checkpoint.config.gelu, checkpoint.config.norm_eps, checkpoint.config.num_heads) == ("tanh", 1e-6, 4)
    assert checkpoint.position_rule == "google"
    assert checkpoint.preprocessing is not None
    assert checkpoint.preprocessing.mean == checkpoint.preprocessing.std == (0.5, 0.5, 0.5)
    with pytest.raises(CheckpointError, match="has 4 heads, not num_heads=2"):
        read_checkpoint(tmp_path / "w.npz", num_heads=2)


def test_google_shapes_that_do_not_fit_are_listed(parity, tmp_path):
    key = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/kernel"
    for name, shape, match in (
        (key, (32, 32), r"blocks\.1\.attn\.k\.weight'.*not 3 axes"),
        (key, (32, 2, 16), r"differ in \(heads, head width\): .*\(4, 8\) and .*\(2, 16\)"),
        (key, (31, 4, 8), r"missing: blocks\.1\.attn\.qkv\.weight"),
        ("head/kernel", (2, 3, 4, 5, 6), "not 2 axes"),
        ("embedding/kernel", (6, 6, 32), "not 4 axes"),
        ("embedding/kernel", (6, 6, 0, 32), r"has the shape \(32, 0, 6, 6\)"),
        ("cls", (32,), "not 3 axes"),
    ):
        np.savez(tmp_path / "w.npz", **parity.google_arrays(parity.TINY) | {name: np.zeros(shape, np.float32)})
        with pytest.raises(CheckpointError, match=match):
            read_checkpoint(tmp_path / "w.npz")


def test_no_layout_at_all(write, tmp_path):
    with pytest.raises(CheckpointError, match=r"its 1 tensors \(conv1\.weight …\) match no ViT's layout"):
        read_checkpoint(write({"conv1.weight": torch.zeros(3, 3)}))
    with pytest.raises(CheckpointError, match="holds neither model"):
        read_checkpoint(tmp_path / "..")


def test_a_run_folder_is_named(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"config": {}, "status": "done"}))
    with pytest.raises(CheckpointError, match="is a run of vitreous"):
        read_checkpoint(tmp_path)


# --- Hugging Face ------------------------------------------------------------------------------------------


@pytest.fixture
def hf_folder(tiny, tmp_path):
    names = ["zero", "one", "two", "three", "four", "five", "six"]
    model = tiny(norm_eps=1e-12, gelu="tanh")
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    save_model(model, tmp_path / "hf", "hf", mean=mean, std=std, class_names=names)
    return model, tmp_path / "hf"


def test_hugging_face_facts(hf_folder):
    _, folder = hf_folder
    for path in (folder, folder / "model.safetensors"):  # a file in its folder is read with its neighbours
        checkpoint = read_checkpoint(path)
        assert (checkpoint.config.norm_eps, checkpoint.config.gelu, checkpoint.config.num_heads) == (1e-12, "tanh", 4)
        assert checkpoint.class_names == ("zero", "one", "two", "three", "four", "five", "six")
        assert checkpoint.preprocessing is not None
        assert (checkpoint.preprocessing.mean, checkpoint.preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_hugging_face_file_alone_and_pooler(hf_folder, write):
    _, folder = hf_folder
    raw = read_checkpoint(folder).tensors
    tensors = load_file(folder / "model.safetensors")
    pooler = {"vit.pooler.dense.weight": torch.zeros(32, 32), "vit.pooler.dense.bias": torch.zeros(32)}
    with_both = read_checkpoint(write(tensors | pooler), num_heads=4)  # no config.json beside it
    assert with_both.config.head == "linear"
    assert with_both.config.norm_eps == 1e-12
    assert "42 of 42 tensors, none left over" in with_both.report
    assert any("the pooler is left out" in note for note in with_both.notes)
    assert torch.equal(with_both.tensors["blocks.1.attn.qkv.weight"], raw["blocks.1.attn.qkv.weight"])
    empty = {"vit.embeddings.patch_embeddings.projection.weight": torch.zeros(32, 0, 6, 6)}
    with pytest.raises(CheckpointError, match=r"has the shape \(32, 0, 6, 6\)"):
        read_checkpoint(write(tensors | empty), num_heads=4)
    backbone = {name.removeprefix("vit."): tensor for name, tensor in (tensors | pooler).items() if "class" not in name}
    alone = read_checkpoint(write(backbone), num_heads=4)  # what ViTModel saves: its pooler is the paper's MLP head
    assert (alone.has_head, alone.config.head) == (False, "mlp")


def test_tensors_under_two_names_or_unknown(hf_folder, write):
    tensors = load_file(hf_folder[1] / "model.safetensors")
    for second, shape in (("vit.classifier.weight", (7, 32)), ("vit.layers.1.attention.q_proj.weight", (32, 32))):
        with pytest.raises(CheckpointError, match=r"\(in our names\) under two names"):
            read_checkpoint(write(tensors | {second: torch.zeros(shape)}), num_heads=4)
    with pytest.raises(CheckpointError, match=r"40 of 41 tensors; 1 left over\n  unexpected: vit\.decoder"):
        read_checkpoint(write(tensors | {"vit.decoder": torch.zeros(2)}), num_heads=4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "beit"}, "'beit' model with relative position biases"),
        ({"model_type": "dinov3_vit"}, r"rotary positions \(rope\)"),
        ({"model_type": 3}, "3 model"),
        ({"architectures": ["MyViT"]}, "the class 'MyViT'"),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps='1e-5'"),
        ({"layer_norm_eps": None}, "layer_norm_eps is null"),
        ({"num_hidden_layers": 5}, "num_hidden_layers.*the weights have 2"),
        ({"qkv_bias": False}, "qkv_bias=False, and the weights have True"),
        ({"num_labels": 3}, "num_labels=3"),
        ({"image_size": 48}, "not trained at 48×48"),
        ({"head_dim": 16}, "head_dim=16"),
        ({"is_causal": True}, "causal attention"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"problem_type": "multi_label_classification"}, "several labels"),
        ({"rope_theta": 100.0}, "the field 'rope_theta'.*remove it"),
        ({"hidden_act": "relu"}, "'relu'.*is not GELU"),
        ({"hidden_act": []}, r"\[\].*is not GELU"),
    ],
)
def test_hugging_face_models_of_another_kind(hf_folder, change, match):
    _, folder = hf_folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=match):
        read_checkpoint(folder)


def test_a_neighbours_config_is_not_believed(hf_folder, tiny):
    """A timm file in a Hugging Face folder: ε and heads there are another model's."""
    _, folder = hf_folder
    save_file(state_of(tiny()), folder / "timm.safetensors")
    with pytest.raises(CheckpointError, match="does not state its number of heads"):
        read_checkpoint(folder / "timm.safetensors")
    checkpoint = read_checkpoint(folder / "timm.safetensors", num_heads=2)
    assert (checkpoint.config.norm_eps, checkpoint.config.gelu) == (1e-6, "erf")


def test_torchvision_facts(tiny, tmp_path):
    save_model(tiny(norm_eps=1e-5), tmp_path / "tv.safetensors", "torchvision")
    checkpoint = read_checkpoint(tmp_path / "tv.safetensors")
    assert checkpoint.mean == (0.485, 0.456, 0.406)
    assert checkpoint.config.norm_eps == 1e-5  # from the header we write: the layout itself has no place for it
    assert checkpoint.config.num_heads == 4
