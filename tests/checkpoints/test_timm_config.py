"""timm's config.json: the rules for architectures' names against timm's own models; every argument accounted for."""

from __future__ import annotations

import inspect
import json

import families
import pytest
import torch

from vitreous.checkpoints import read_checkpoint
from vitreous.checkpoints.timm_config import TimmConfig
from vitreous.errors import CheckpointError

ACTIVATIONS = {"GELU": "erf", "GELUTanh": "tanh", "QuickGELU": "quick"}


def test_the_rules_agree_with_every_architecture_that_timm_registers(timm):
    """What the tensors do not show must be what timm builds, for each name that is not refused."""
    import timm as library

    names = [name for module in ("vision_transformer", "deit") for name in library.list_models(module=module)]
    accepted = []
    for name in names:
        try:
            config = TimmConfig({"architecture": name, "pretrained_cfg": {}})
        except CheckpointError:
            continue
        with torch.device("meta"):
            model = library.create_model(name, depth=1, weight_init="skip")
        block, facts = model.blocks[0], config.facts
        assert (type(block), type(block.attn), type(block.mlp)) == (timm.Block, timm.Attention, timm.Mlp), name
        assert type(model) is timm.VisionTransformer, name
        assert facts.num_heads == block.attn.num_heads, name
        assert facts.pre_norm == isinstance(model.norm_pre, torch.nn.LayerNorm), name
        assert facts.norm_eps == block.norm1.eps, name
        assert facts.gelu == ACTIVATIONS[type(block.mlp.act).__name__], name
        assert facts.pool == {"token": "cls", "avg": "mean"}[model.global_pool], name
        assert config.argument("class_token") == model.has_class_token, name
        assert not model.pool_include_prefix, name
        norms = [isinstance(norm, torch.nn.LayerNorm) for norm in (model.norm, model.fc_norm)]
        assert norms == [not facts.norm_after_pool, facts.norm_after_pool], name
        accepted.append(name)
    assert len(accepted) > len(names) / 2
    assert {"vit_base_patch16_224", "deit3_small_patch16_224", "vit_large_patch14_reg4_dinov2"} <= set(accepted)


def test_every_argument_of_timms_class_is_accounted_for(timm):
    """An argument that a later timm adds is refused until someone has looked at it."""
    arguments = inspect.signature(timm.VisionTransformer).parameters
    unknown = []
    for name in arguments.keys() - {"device", "dtype"}:
        try:
            TimmConfig({"architecture": "vit_tiny_patch16_224", "model_args": {name: "?"}})
        except CheckpointError as error:
            unknown += [name] if "which vitreous does not know and which may" in str(error) else []
    assert not unknown
    with pytest.raises(CheckpointError, match=r"model_args in config\.json has the field 'new_norm'.*remove it"):
        TimmConfig({"architecture": "vit_tiny_patch16_224", "model_args": {"new_norm": True}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("timm")
    families.parity.declare_torchvision_operators()
    families.save_timm(families.timm_model(), path)
    return path


REFUSALS = {
    "global_pool max": ({"global_pool": "max"}, {}, "global_pool='max': the maximum over the patches"),
    "global_pool avg": ({"global_pool": "avg"}, {}, "pool by 'token'"),
    "global_pool list": ({"global_pool": []}, {}, "not a pooling"),
    "architecture": ({"architecture": "convnext_tiny"}, {}, "'convnext_tiny', whose defaults vitreous does not know"),
    "rope": ({"architecture": "vit_small_patch16_rope_224"}, {}, "rope"),
    "classes": ({"num_classes": 3}, {"num_classes": None}, "num_classes=3"),
    "unknown field": ({"pool_type": "x"}, {}, "'pool_type'"),
    "label_offset": ({"pretrained_cfg": {"label_offset": 1}}, {}, "label_offset=1"),
    "classifier": ({"pretrained_cfg": {"classifier": ["head", "head_dist"]}}, {}, "distilled models have two"),
    "registers": ({}, {"reg_tokens": 4}, "reg_tokens=4, and the weights have 0"),
    "class token": ({}, {"class_token": False}, "class_token"),
    "depth": ({}, {"depth": 4}, "the weights have 3"),
    "image": ({}, {"img_size": 48}, "not trained at 48×48"),
    "layer scale": ({}, {"init_values": 0.1}, "init_values"),
    "positions": ({}, {"pos_embed": "none"}, "positions"),
    "pre_norm": ({}, {"pre_norm": True}, "pre_norm=True"),
    "CLIP": ({"architecture": "vit_base_patch16_clip_224"}, {}, "pre_norm=True"),
    "fc_norm": ({}, {"fc_norm": True}, "fc_norm=True"),
    "model_args": ({"model_args": []}, None, "model_args should be an object"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_name(folder, name):
    changes, arguments, words = REFUSALS[name]
    path = folder / "config.json"
    config = json.loads(path.read_text())
    try:
        changed = config | changes
        if arguments is not None:
            changed["model_args"] = config["model_args"] | arguments
        path.write_text(json.dumps(changed))
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(folder)
        assert words in str(caught.value)
    finally:
        path.write_text(json.dumps(config))


def test_a_backbone_that_returns_all_tokens(tmp_path, caplog):
    """`num_classes=0, global_pool=""`: what is pooled is up to the user, so an assumption is printed."""
    families.parity.declare_torchvision_operators()
    arguments = {"num_classes": 0, "global_pool": "", "reg_tokens": 2}
    model = families.timm_model(**arguments)
    families.save_timm(model, tmp_path, **arguments)
    (assumption,) = read_checkpoint(tmp_path).assumptions
    assert assumption == "the class token is pooled (pool)"
    images = families.images_for(families.TINY)
    ours, _ = families.load_model(tmp_path, num_classes=7)
    taps: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        ours(images, taps)
        torch.testing.assert_close(taps["pooled"], model.forward_features(images)[:, 0], rtol=0, atol=1e-5)
