"""What a file alone cannot state is printed with every load, in Python and on the command line."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import save_file

import vitreous
from vitreous.checkpoints import load_model, read_checkpoint, save_model
from vitreous.checkpoints.convert import convert
from vitreous.errors import CheckpointError


@pytest.fixture
def file(tiny, tmp_path):
    """A bare timm file of a width that published models have."""
    model = tiny(dim=192, num_heads=3, depth=1)
    path = tmp_path / "bare.safetensors"
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, path)
    return path


ARGUMENTS = {"num_heads": 3, "pool": "cls", "gelu": "erf", "norm_eps": 1e-6}


def test_printed_every_time_in_python(file, caplog):
    for load in (read_checkpoint, load_model, load_model, vitreous.load):
        caplog.clear()
        load(file)
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("vitreous.checkpoints", logging.WARNING)
        for name in ARGUMENTS:
            assert f"({name})" in record.getMessage()
        assert "--num-heads" in record.getMessage()
        assert "start.num_heads" in record.getMessage()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_is_stated_is_not_assumed(file, caplog, name):
    assert len(read_checkpoint(file, **{name: ARGUMENTS[name]}).assumptions) == 3
    assert f"({name})" not in caplog.text
    caplog.clear()
    read_checkpoint(file, **ARGUMENTS)
    assert not caplog.records


def test_printed_by_convert(file, tmp_path, caplog):
    lines = convert(file, tmp_path / "run", "vitreous")
    assert sum("assumed, because the file does not state it: 3 heads" in line for line in lines) == 1
    assert not caplog.records  # once is enough
    assert not any("assumed" in line for line in convert(file, tmp_path / "stated", "vitreous", **ARGUMENTS))


def test_the_arguments_change_the_model(file, logits_of):
    plain, _ = load_model(file)
    before = logits_of(plain, plain.config)
    for name, value in {"num_heads": 4, "pool": "mean", "gelu": "quick", "norm_eps": 1e-3}.items():
        model, _ = load_model(file, **{name: value})
        assert (logits_of(model, model.config) - before).abs().max() > 1e-4, name
        assert model.config.registers == (name == "pool")  # the class token stays, unread


def test_a_class_token_that_is_not_there_is_not_pooled(tiny, tmp_path):
    state = {name: tensor.clone() for name, tensor in tiny(pool="mean").state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="the weights have none: give pool='mean'"):
        read_checkpoint(tmp_path / "w.safetensors", num_heads=4, pool="cls")


def test_no_positions_are_not_assumed(tiny, tmp_path):
    state = {name: tensor.clone() for name, tensor in tiny(positions="none").state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"no position embeddings: they may be rotary \(rope\)"):
        read_checkpoint(tmp_path / "w.safetensors", num_heads=4, trained_size=24)


def test_our_own_files_state_everything(tiny, tmp_path, caplog):
    save_model(tiny(registers=2, pool="mean"), tmp_path / "w.safetensors", "timm")
    checkpoint = read_checkpoint(tmp_path / "w.safetensors")
    assert not checkpoint.assumptions
    assert not caplog.records
    assert torch.equal(checkpoint.tensors["reg_token"], tiny(registers=2, pool="mean").reg_token)


def test_a_norm_after_the_pooling_is_taken_for_mean_pooling(tiny, tmp_path, logits_of):
    """As in MAE's fine-tuned files: a class token, fc_norm, and no norm."""
    model = tiny(pool="mean", norm_after_pool=True)
    state = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: tensor.clone()
             for name, tensor in model.state_dict().items()}  # fmt: skip
    save_file(state, tmp_path / "w.safetensors")
    read, checkpoint = load_model(tmp_path / "w.safetensors", num_heads=4, gelu="erf", norm_eps=1e-6)
    assert checkpoint.assumptions[0] == "the patches are averaged before the final LayerNorm (fc_norm) (pool)"
    assert "not after (vit_*_rpn_* do" in checkpoint.assumptions[1]  # the same tensors: nothing shows the difference
    torch.testing.assert_close(logits_of(read, read.config), logits_of(model, model.config))
    with_class_token = state | {"cls_token": torch.randn(1, 1, 32), "pos_embed": torch.randn(1, 17, 32)}
    save_file(with_class_token, tmp_path / "mae.safetensors")
    mae = read_checkpoint(tmp_path / "mae.safetensors", num_heads=4)
    assert (mae.config.pool, mae.config.norm_after_pool, mae.config.registers) == ("mean", True, 1)
    cls = read_checkpoint(tmp_path / "mae.safetensors", num_heads=4, pool="cls")
    assert (cls.config.pool, cls.config.norm_after_pool) == ("cls", False)


def test_two_final_norms_are_refused(tiny, tmp_path):
    state = {name: tensor.clone() for name, tensor in tiny().state_dict().items()}
    save_file(state | {"fc_norm.weight": torch.ones(32), "fc_norm.bias": torch.zeros(32)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="before the pooling and another after it"):
        read_checkpoint(tmp_path / "w.safetensors", num_heads=4)
