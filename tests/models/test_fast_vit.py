"""The fast ViT equals the readable one: attention with its own backward pass, and the class-token-only last block."""

from __future__ import annotations

import pytest
import torch

from vitreous import hardware
from vitreous.config import ViTConfig
from vitreous.models import build
from vitreous.models.fast import vit as fast
from vitreous.models.fast.attention import PackedAttention, fused_attention_is_faster
from vitreous.models.vit import ViT


def spelled_out(qkv: torch.Tensor, num_heads: int) -> torch.Tensor:
    B, N, width = qkv.shape
    q, k, v = qkv.view(B, N, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).reshape(B, N, width // 3)


@pytest.mark.parametrize(("batch", "tokens", "heads", "width"), [(1, 1, 1, 1), (3, 17, 2, 8), (2, 50, 4, 5)])
def test_values_and_gradients(batch, tokens, heads, width):
    torch.manual_seed(0)
    qkv = torch.randn(batch, tokens, 3 * heads * width, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(batch, tokens, heads * width, dtype=torch.float64)
    ours, theirs = PackedAttention.apply(qkv, heads), spelled_out(qkv, heads)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    (our_grad,) = torch.autograd.grad(ours, qkv, direction)
    (their_grad,) = torch.autograd.grad(theirs, qkv, direction)
    torch.testing.assert_close(our_grad, their_grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("tokens", [17, 33])  # softmax in float32 and in bfloat16
def test_values_and_gradients_in_bfloat16(tokens):
    if not hardware.bfloat16_works():
        pytest.skip("no bfloat16 on this CPU")
    torch.manual_seed(0)
    exact = torch.randn(3, tokens, 48, requires_grad=True)
    direction = torch.randn(3, tokens, 16)
    rounded = exact.detach().bfloat16().requires_grad_()
    expected, found = spelled_out(exact, 2), PackedAttention.apply(rounded, 2)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)
    (expected_grad,) = torch.autograd.grad(expected, exact, direction)
    (found_grad,) = torch.autograd.grad(found, rounded, direction.bfloat16())
    torch.testing.assert_close(found_grad.float(), expected_grad, atol=0.06, rtol=0)


def test_a_gradient_that_is_not_contiguous():
    qkv = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: PackedAttention.apply(x, 2).transpose(0, 1).sum(0), (qkv,))


SMALL = ViTConfig(image_size=12, patch_size=4, channels=2, num_classes=5, dim=16, depth=3, num_heads=2, mlp_dim=24)
VARIANTS: dict[str, ViTConfig] = {
    "plain": SMALL,
    "one block": SMALL.replace(depth=1),
    "mean pooling": SMALL.replace(pool="mean"),
    "norm after the mean": SMALL.replace(pool="mean", norm_after_pool=True),
    "sequence pooling": SMALL.replace(pool="seq"),
    "relative positions": SMALL.replace(positions="relative"),
    "conv stem": SMALL.replace(stem_channels=(3, 6), stem_depth=2, patch_size=1),
    "mlp head": SMALL.replace(head="mlp", head_hidden=7),
    "no qkv bias": SMALL.replace(qkv_bias=False),
    "fused attention": SMALL.replace(image_size=24, num_heads=4),
    "padded": SMALL.replace(image_size=(11, 10), fit="pad"),
}


def test_the_variants_take_both_kernels() -> None:
    assert {fused_attention_is_faster(c.num_tokens, c.head_dim) for c in VARIANTS.values()} == {True, False}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_outputs_and_gradients_are_the_readable_models(config, randomise) -> None:
    quick = randomise(build(config).double().eval())
    readable = ViT(config).double().eval()
    readable.load_state_dict(quick.state_dict())
    images = torch.randn(3, config.channels, *config.image_size, dtype=torch.float64)
    direction = torch.randn(3, config.num_classes, dtype=torch.float64)
    results = []
    for model in (quick, readable):
        logits = model(images)
        gradients = torch.autograd.grad((logits * direction).sum(), list(model.parameters()))
        with torch.no_grad():
            results.append((logits, *gradients, model(images)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)


def test_a_fresh_model_has_the_readable_models_weights() -> None:
    torch.manual_seed(3)
    quick = build(SMALL).state_dict()
    torch.manual_seed(3)
    torch.testing.assert_close(quick, ViT(SMALL).state_dict(), rtol=0, atol=0)


def test_taps_and_masks_run_the_readable_code(randomise) -> None:
    quick = randomise(build(SMALL).eval())
    readable = ViT(SMALL).eval()
    readable.load_state_dict(quick.state_dict())
    images, heads, patches = torch.randn(2, 2, 12, 12), torch.rand(3, 2), torch.rand(1, 9) > 0.4
    taps: tuple[dict, dict] = ({}, {})
    for model, recorded in zip((quick, readable), taps, strict=True):
        model(images, recorded, head_mask=heads, patch_mask=patches)
    torch.testing.assert_close(taps[0], taps[1], rtol=0, atol=0)


def test_dropout_and_stochastic_depth_act_in_training() -> None:
    model = build(SMALL.replace(dropout=0.3, drop_path=0.3, zero_head=False)).train()
    images = torch.randn(4, 2, 12, 12)
    assert not torch.equal(model(images), model(images))


def test_training_uses_packed_attention_and_nothing_else_does(monkeypatch):
    taken = []
    packed = fast.packed_attention
    monkeypatch.setattr(fast, "packed_attention", lambda *args: taken.append(1) or packed(*args))
    model = build(ViTConfig(depth=3))
    images = torch.randn(2, 1, 28, 28)
    model(images).sum().backward()
    assert len(taken) == 2  # the last block computes the class token's row alone
    taken.clear()
    with torch.no_grad():
        model(images)
    model(images, {})
    model(images, head_mask=torch.ones(3, 2))
    model(images, patch_mask=torch.ones(1, 16, dtype=torch.bool))
    weights = dict(model.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(model, p, (images,)).sum())(weights)
    assert not taken
