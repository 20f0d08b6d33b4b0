"""Optimizers and schedules against independent computations."""

import copy
import itertools

import pytest
import torch

from vitreous import hardware
from vitreous.config import CNNConfig, TrainConfig, ViTConfig
from vitreous.models import build
from vitreous.training import muon
from vitreous.training.muon import Muon, orthogonalise
from vitreous.training.optimizers import AveragedWeights, lr_factor, make_optimizers


def test_newton_schulz_brings_singular_values_close_to_one():
    matrices = torch.randn(5, 48, 32, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonalise(matrices))
    assert singular.min() > 0.6
    assert singular.max() < 1.3
    tall = orthogonalise(matrices.mT.contiguous())
    torch.testing.assert_close(tall, orthogonalise(matrices).mT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 6, 48), (1, 48, 6), (1, 8, 500)])
def test_oblong_matrices_are_orthogonalised_by_their_gram_matrix(shape, monkeypatch):
    """The shorter way gives the same, also where most singular values are small."""
    matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = matrices * torch.logspace(0, -4, shape[-1], dtype=torch.float64)
    found, rough = orthogonalise(matrices), orthogonalise(matrices.float())
    monkeypatch.setattr(muon, "_OBLONG", 10_000)
    torch.testing.assert_close(found, orthogonalise(matrices))
    torch.testing.assert_close(rough, found.float(), rtol=0, atol=1e-3)


def test_a_stack_is_its_matrices_one_by_one():
    matrices = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.cat([orthogonalise(matrix[None]) for matrix in matrices])
    torch.testing.assert_close(orthogonalise(matrices), one_by_one)


def test_muon_step_by_hand():
    """Momentum 0.9 with Nesterov's look-ahead, q, k, v orthogonalised apart, decoupled weight decay."""
    torch.manual_seed(0)
    weight, gradient = torch.nn.Parameter(torch.randn(12, 4)), torch.randn(12, 4)
    before = weight.detach().clone()
    optimizer = Muon([(weight, 3)], lr=0.1, momentum=0.9, weight_decay=0.5)
    weight.grad = gradient.clone()
    optimizer.step()
    velocity = 0.1 * gradient
    ahead = 0.1 * gradient + 0.9 * velocity
    expected = before * (1 - 0.1 * 0.5) - 0.1 * torch.cat([orthogonalise(part[None])[0] for part in ahead.chunk(3)])
    torch.testing.assert_close(weight.detach(), expected)


def test_large_matrices_are_orthogonalised_in_the_chosen_precision(monkeypatch):
    """Small ones in their own: the same bits as without."""
    if not hardware.bfloat16_works():
        pytest.skip("no bfloat16 on this CPU")
    torch.manual_seed(0)
    gradient = torch.randn(24, 40)

    def moved(dtype: torch.dtype | None) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.zeros(24, 40))
        weight.grad = gradient.clone()
        Muon([(weight, 1)], lr=1.0, momentum=0.9, weight_decay=0.0, dtype=dtype).step()
        return weight.detach()

    exact = moved(None)
    assert torch.equal(moved(torch.bfloat16), exact)
    monkeypatch.setattr(muon, "_LARGE", 24 * 24 * 40)
    assert not torch.equal(moved(torch.bfloat16), exact)
    torch.testing.assert_close(moved(torch.bfloat16), exact, atol=0.02, rtol=0)


def test_every_parameter_is_optimised_once():
    model = build(ViTConfig(dim=32, depth=2, num_heads=2, mlp_dim=64))
    for name in ("adamw", "sgd", "muon"):
        made = make_optimizers(model, TrainConfig(optimizer=name))
        optimized = [id(p) for o in made for group in o.param_groups for p in group["params"]]
        assert sorted(optimized) == sorted(id(p) for p in model.parameters())


def test_decay_spares_biases_norms_class_token_and_positions():
    model = build(ViTConfig(dim=32, depth=1, num_heads=2, mlp_dim=64))
    (optimizer,) = make_optimizers(model, TrainConfig(weight_decay=0.3))
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert names == {
        "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight", "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight", "head.weight",
    }  # fmt: skip


def optimized_by_muon(model: torch.nn.Module) -> set[str]:
    muon, _ = make_optimizers(model, TrainConfig(optimizer="muon"))
    assert isinstance(muon, Muon)
    optimized = {id(p) for group in muon.param_groups for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in optimized}


def test_muon_takes_the_matrices_inside_and_leaves_readout_and_positions():
    model = build(ViTConfig(dim=32, depth=1, num_heads=2, mlp_dim=64, positions="relative", head="mlp", pool="seq"))
    blocks = {f"blocks.0.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert optimized_by_muon(model) == {"patch_embed.proj.weight"} | blocks
    stemmed = build(ViTConfig(patch_size=1, dim=32, depth=1, num_heads=2, mlp_dim=64, stem_channels=(8, 16, 32)))
    assert optimized_by_muon(stemmed) >= {f"stem.{i}.weight" for i in (0, 2, 4)}
    assert optimized_by_muon(build(CNNConfig())) == {"conv1.weight", "conv2.weight", "fc1.weight"}


def test_muon_treats_a_kernel_as_the_matrix_of_its_rows():
    torch.manual_seed(0)
    kernel, gradient = torch.nn.Parameter(torch.zeros(8, 3, 2, 2)), torch.randn(8, 3, 2, 2)
    optimizer = Muon([(kernel, 1)], lr=1.0, momentum=0.9, weight_decay=0.0)
    kernel.grad = gradient.clone()
    optimizer.step()
    expected = -orthogonalise(gradient.view(1, 8, 12)).view(8, 3, 2, 2)
    torch.testing.assert_close(kernel.detach(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedules(schedule):
    config = TrainConfig(schedule=schedule, warmup_fraction=0.1, final_lr=0.05)
    factors = [lr_factor(step, 1000, config) for step in range(1000)]
    assert factors[0] == pytest.approx(0.01)
    assert factors[99] == pytest.approx(1.0)
    assert max(factors) <= 1.0
    rest = factors[100:]
    if schedule == "constant":
        assert set(rest) == {1.0}
    else:
        assert all(a >= b for a, b in itertools.pairwise(rest))
        assert rest[450] == pytest.approx(0.525, abs=1e-6)
        assert rest[-1] == pytest.approx(0.05, abs=2e-3)


def test_cosine_agrees_with_torch():
    config = TrainConfig(schedule="cosine", warmup_fraction=0.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    for step in range(50):
        assert lr_factor(step, 50, config) == pytest.approx(theirs.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        theirs.step()


def test_averaged_weights_follow_the_formula():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    average = AveragedWeights(model, copy.deepcopy(model), decay=0.5)
    expected = model.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.averaged.weight, expected)
    assert not any(p.requires_grad for p in average.averaged.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_layer_decay_slows_the_lower_layers(optimizer):
    model = build(ViTConfig(dim=32, depth=3, num_heads=2, mlp_dim=64))
    config = TrainConfig(optimizer=optimizer, layer_decay=0.5, lr=1.0, muon_lr=1.0)
    rates = {
        id(p): group["lr"] for o in make_optimizers(model, config) for group in o.param_groups for p in group["params"]
    }
    by_name = {name: rates[id(p)] for name, p in model.named_parameters()}
    assert by_name["head.weight"] == by_name["norm.weight"] == 1.0
    assert [by_name[f"blocks.{i}.attn.qkv.weight"] for i in range(3)] == [0.125, 0.25, 0.5]
    assert by_name["pos_embed"] == by_name["patch_embed.proj.weight"] == 0.0625


def test_muon_in_two_parts_is_muon():
    """The two threads of a split batch update every matrix once, to the same bits."""
    whole, parted = (build(ViTConfig(dim=32, depth=3, num_heads=2, mlp_dim=48)) for _ in range(2))
    parted.load_state_dict(whole.state_dict())
    for model in (whole, parted):
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    muons = [make_optimizers(model, TrainConfig(optimizer="muon", muon_steps=3))[0] for model in (whole, parted)]
    muons[0].step()
    parts = muons[1].parts()
    assert [bool(part) for part in parts] == [True, True]
    for part in parts:
        muons[1].update(part)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parted.parameters(), strict=True))
