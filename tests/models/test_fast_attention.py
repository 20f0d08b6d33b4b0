"""Attention with a backward pass of its own, against autograd's."""

from __future__ import annotations

import pytest
import torch

from vitreous.config import ViTConfig
from vitreous.models import build
from vitreous.models import vit as vit_module
from vitreous.models.fast.attention import PackedAttention


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


def test_a_gradient_that_is_not_contiguous():
    qkv = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: PackedAttention.apply(x, 2).transpose(0, 1).sum(0), (qkv,))


def test_training_takes_it_and_everything_else_does_not(monkeypatch):
    taken = []
    packed = vit_module.packed_attention
    monkeypatch.setattr(vit_module, "packed_attention", lambda *args: taken.append(1) or packed(*args))
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


def test_a_training_step_is_autograds(monkeypatch):
    torch.manual_seed(0)
    model, images = build(ViTConfig(zero_head=False)).double(), torch.randn(4, 1, 28, 28, dtype=torch.float64)

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))

    ours = gradients()
    monkeypatch.setattr(vit_module, "_in_plain_training", lambda x: False)
    for mine, theirs in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-8)
