"""`infer` gives the model's logits, and falls back to the model where it does not apply."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.nn.utils import prune

from vitreous.config import CNNConfig, ViTConfig
from vitreous.models import build
from vitreous.models.fast import inference
from vitreous.models.representations import represent, representations_in

VARIANTS = {
    "class token": {},
    "mean": {"pool": "mean"},
    "norm after the mean": {"pool": "mean", "norm_after_pool": True},
    "sequence pooling": {"pool": "seq"},
    "conv stem": {"patch_size": 1, "stem_channels": (4, 8, 16)},
    "mlp head": {"head": "mlp"},
    "learned 2-D positions": {"positions": "learned-2d"},
    "no positions": {"positions": "none"},
    "dropout": {"dropout": 0.3, "drop_path": 0.3},
    "tanh": {"gelu": "tanh"},
    "no qkv bias": {"qkv_bias": False},
    "relative": {"positions": "relative"},
    "odd heads": {"num_heads": 3, "dim": 48},
    "narrow heads": {"num_heads": 8},
    "one block": {"depth": 1},
    "many tokens": {"patch_size": 2},
    "padded": {"patch_size": 5, "fit": "pad"},
    "stretched": {"patch_size": 5, "fit": "resize"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("batch", [1, 5, 60])
def test_logits_are_the_models(changes, batch):
    torch.manual_seed(0)
    model = build(ViTConfig(**{"dim": 32, "depth": 3, "num_heads": 2, "mlp_dim": 48, **changes})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    images = torch.randn(batch, 1, 28, 28)
    with torch.inference_mode():
        torch.testing.assert_close(inference.infer(model, images), model(images), atol=2e-5, rtol=1e-4)
        taps: dict[str, torch.Tensor] = {}
        model(images, taps)
        logits, parts = inference.infer_and_represent(model, images)
        torch.testing.assert_close(logits, model(images), atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(parts, representations_in(model, taps), atol=2e-5, rtol=1e-4)
        plain_logits, plain_parts = represent(model, images)
        torch.testing.assert_close(plain_logits, logits, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(plain_parts, parts, atol=2e-5, rtol=1e-4)


def test_few_tokens_take_torchs_encoder_layer_and_many_take_ours(monkeypatch):
    taken = []
    for name in ("_encoder_layer", "_layer_of_many"):
        layer = getattr(inference, name)
        monkeypatch.setattr(
            inference, name, lambda x, block, name=name, layer=layer: taken.append(name) or layer(x, block)
        )
    vit = build(ViTConfig(depth=4)).eval()
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        inference.infer(vit, images)
        assert taken == ["_encoder_layer"] * 4
        taken.clear()
        inference.infer(vit, torch.randn(50, 1, 28, 28))
        assert taken == ["_layer_of_many"] * 3  # the last block computes the class token's row alone
        taken.clear()
        inference.infer(vit.train(), images)  # dropout and stochastic depth act in training
        inference.infer(build(ViTConfig(gelu="tanh")).eval(), images)
        inference.infer(build(CNNConfig()).eval(), images)
    assert not taken


@pytest.fixture
def threads():
    """Set the number of threads, and restore it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("number", "images", "parts", "workers"),
    [
        (1, 3, [3], 1),
        (1, 250, [250], 1),
        (1, 560, [187, 187, 186], 1),
        (2, 250, [250], 1),  # 17 tokens each: too few for two threads
        (2, 560, [94, 94, 92] * 2, 2),
        (3, 560, [187, 187, 186], 1),  # three cores cannot be split
    ],
)
def test_many_images_go_in_parts_that_stay_in_the_cache(monkeypatch, threads, number, images, parts, workers):
    threads(number)
    taken = []
    tokens = inference._infer_tokens

    def noted(model, x, represented):
        taken.append((threading.current_thread(), len(x)))
        time.sleep(0.05)  # so that one thread does not take both parts
        return tokens(model, x, represented)

    model, data = build(ViTConfig(zero_head=False)).eval(), torch.randn(images, 1, 28, 28)
    monkeypatch.setattr(inference, "_infer_tokens", noted)
    with torch.no_grad():
        logits = inference.infer(model, data)
        torch.testing.assert_close(logits, model(data), atol=2e-5, rtol=1e-4)  # and in their order
    assert sorted(size for _, size in taken) == sorted(parts)
    assert len({thread for thread, _ in taken}) == workers
    assert (threading.current_thread() in {thread for thread, _ in taken}) is (workers == 1)
    assert not logits.requires_grad


@pytest.mark.parametrize(("images", "expected"), [(1, 1), (3, 1), (60, 2)])
def test_few_products_run_on_one_thread(monkeypatch, threads, images, expected):
    threads(2)
    taken = []
    tokens = inference._infer_tokens

    def noted(*args):
        taken.append(torch.get_num_threads())
        return tokens(*args)

    monkeypatch.setattr(inference, "_infer_tokens", noted)
    with torch.no_grad():
        inference.infer(build(ViTConfig()).eval(), torch.randn(images, 1, 28, 28))
    assert taken == [expected]
    assert torch.get_num_threads() == 2  # restored


def test_a_pruned_model_computes_with_its_mask(randomise):
    """The weight is no parameter any more, but a product of two tensors."""
    model = randomise(build(ViTConfig(depth=2)).eval())
    prune.l1_unstructured(model.blocks[0].attn.qkv, "weight", amount=0.5)
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(inference.infer(model, images), model(images), rtol=1e-4, atol=1e-5)


def test_gradients_flow_when_they_are_wanted():
    images = torch.randn(2, 1, 28, 28, requires_grad=True)
    model = build(ViTConfig(zero_head=False)).eval()
    inference.infer(model, images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
