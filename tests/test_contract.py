"""One contract over every preset. The article's models break some of it by design: the test states exactly which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitreous.config import ModelConfig, ViTConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.models import ViT, build
from vitreous.models.summary import count_parameters_of

#: What each model breaks, on purpose (SPEC S3–S5); whatever is not listed here must hold.
BROKEN: dict[str, set[str]] = {
    # log-softmax inside; attention across the images of a batch; a class token and indices that are plain tensors
    "post-vit": {"returns logits", "a batch equals its images", "the state dict is whole"},
    "post-cnn": {"returns logits"},  # log-softmax inside
    # log-softmax inside; index 0 times its weights is nothing, so they never learn
    "post-design": {"returns logits", "every element gets a gradient"},
}
every_preset = pytest.mark.parametrize("name", PRESETS)
Randomise = Callable[..., nn.Module]


def model_config(name: str) -> ModelConfig:
    """The preset's model; above ten million parameters a smaller one of the same geometry."""
    config = preset(name).model
    if isinstance(config, ViTConfig) and count_parameters_of(config) > 10_000_000:
        return config.replace(depth=2, dim=64, num_heads=4, mlp_dim=256, num_classes=20)
    assert count_parameters_of(config) < 10_000_000
    return config


def images_for(config: ModelConfig, count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size, dtype=dtype)


def check(contract: str, name: str, holds: bool) -> None:
    broken = contract in BROKEN.get(name, set())
    assert holds is not broken, f"{name}: {contract!r} {'holds, but is listed as broken' if holds else 'is broken'}"


@pytest.fixture
def model(name: str, randomise: Randomise) -> nn.Module:
    """In float64 and with every parameter random, so that nothing hides behind zeros, ones or rounding."""
    return randomise(build(model_config(name)).double().eval(), scale=0.1)


@every_preset
def test_finite(name: str, model: nn.Module) -> None:
    config = model_config(name)
    fresh = build(config).eval()
    for network, dtype in ((model, torch.float64), (fresh, torch.float32)):
        output = network(images_for(config, dtype=dtype))
        assert output.shape == (2, config.num_classes)
        assert output.dtype == dtype
        assert output.isfinite().all()


@every_preset
def test_returns_logits(name: str, model: nn.Module) -> None:
    output = model(images_for(model_config(name)))
    check("returns logits", name, not torch.allclose(output.exp().sum(dim=1), torch.ones(2, dtype=torch.float64)))


@every_preset
def test_every_parameter_gets_a_gradient(name: str, model: nn.Module) -> None:
    output = model(images_for(model_config(name)))
    (output * torch.randn_like(output)).sum().backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    without = [key for key, gradient in gradients.items() if gradient is None or not gradient.any()]
    assert not without
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@every_preset
def test_every_element_gets_a_gradient(name: str, model: nn.Module) -> None:
    """But for ReLUs that are off, and the keys' biases, which softmax cannot see."""
    config = model_config(name)
    images = images_for(config)
    if config.kind in ("cnn", "post-cnn"):
        model = _without_relu(model)
    dead: set[str] = set()
    output = model(images)
    (output * torch.randn_like(output)).sum().backward()
    for key, parameter in model.named_parameters():
        gradient = parameter.grad
        if key.endswith(("qkv.bias", "in_proj_bias")):
            q, _, v = gradient.chunk(3)
            gradient = torch.cat([q, v])
        if key == "pos_embed" and isinstance(model, ViT) and (chosen := model.choose_patches(images)) is not None:
            gradient = gradient[:, [0, *(chosen.unique() + 1).tolist()]]  # skipped patches have none
        if (gradient == 0).any():
            dead.add(key)
    check("every element gets a gradient", name, not dead)
    assert dead <= {"position_projection.weight"}


def _without_relu(model: nn.Module) -> nn.Module:
    """All biases high enough that no ReLU is off for these images."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(parameter.abs() + (10 if key.endswith("bias") else 0))
    return model


@every_preset
def test_eval_is_deterministic(name: str, model: nn.Module) -> None:
    images = images_for(model_config(name))
    torch.testing.assert_close(model(images), model(images), rtol=0, atol=0)


@every_preset
def test_a_batch_equals_its_images_one_by_one(name: str, model: nn.Module) -> None:
    images = images_for(model_config(name), count=3)
    one_by_one = torch.cat([model(image[None]) for image in images])
    check("a batch equals its images", name, torch.allclose(model(images), one_by_one, rtol=1e-8, atol=1e-10))


@every_preset
def test_order_in_the_batch_does_not_matter(name: str, model: nn.Module) -> None:
    """Even for the article's ViT, whose attention mixes the batch: it has no positions there."""
    images, order = images_for(model_config(name), count=3), torch.tensor([2, 0, 1])
    torch.testing.assert_close(model(images[order]), model(images)[order])


@every_preset
def test_save_and_load_is_exact(name: str, randomise: Randomise, tmp_path: Path) -> None:
    config = model_config(name)
    saved = randomise(build(config).eval())
    save_file({key: tensor.contiguous() for key, tensor in saved.state_dict().items()}, tmp_path / "model.safetensors")
    loaded = build(config).eval()
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    images = images_for(config, dtype=torch.float32)
    torch.testing.assert_close(loaded(images), saved(images), rtol=0, atol=0)


@every_preset
def test_the_state_dict_is_whole(name: str, model: nn.Module) -> None:
    """No plain tensors: they would not be saved and would stay behind when the model moves to a device."""
    plain = {
        key for module in model.modules() for key, value in vars(module).items() if isinstance(value, torch.Tensor)
    }
    check("the state dict is whole", name, not plain)
    assert plain == ({"class_token", "position_indices"} if name == "post-vit" else set())


@every_preset
def test_same_seed_same_model(name: str) -> None:
    config, states = model_config(name), []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build(config).state_dict())
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_only_the_articles_models_break_the_contract() -> None:
    assert BROKEN.keys() == {name for name in PRESETS if name.startswith("post-")}
