"""Dropout with its own mask: the rate, the scale, the gradient, and torch's own way where it is better."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitreous.models.fast.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.93])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_and_scale(p, dtype):
    torch.manual_seed(0)
    dropped = Dropout(p)(torch.ones(250, 1001, dtype=dtype))
    assert dropped.dtype == dtype
    count = dropped.numel()
    assert abs(float((dropped == 0).float().mean()) - p) < 5 * (p * (1 - p) / count) ** 0.5  # five standard deviations
    zero, kept = dropped.unique().tolist()
    assert zero == 0
    assert kept == pytest.approx(1 / (1 - p), rel=3e-4 if dtype == torch.float32 else 1e-2)


def test_neighbours_are_independent():
    """Four decisions come from one random number."""
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(400_000)) > 0).float().view(-1, 8)
    assert (torch.corrcoef(kept.T) - torch.eye(8)).abs().max() < 0.02


def test_the_gradient_is_that_of_what_was_kept():
    x = torch.randn(7, 13, requires_grad=True)
    out = Dropout(0.3)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, x * gradient)
    assert {0.0} < set(gradient.unique().tolist())


def test_it_follows_the_generator():
    """A checkpoint saves the generator's state: the same draws follow."""
    x, layer = torch.ones(1000), Dropout(0.5)
    state = torch.get_rng_state()
    first = layer(x)
    assert not torch.equal(layer(x), first)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True), (1.0, True)])
def test_it_is_torchs_layer_otherwise(p, training):
    x = torch.randn(5, 6)
    torch.testing.assert_close(Dropout(p).train(training)(x), nn.Dropout(p).train(training)(x))
