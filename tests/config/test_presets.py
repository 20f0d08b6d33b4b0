"""Every preset builds; a recipe is the ViT it says it is."""

from __future__ import annotations

import pytest

from vitreous.config import Config, ViTConfig
from vitreous.config.presets import PRESETS, preset
from vitreous.errors import ConfigError
from vitreous.models.summary import count_flops, count_parameters_of

#: recipe → the most parameters it may have, and whether a conv stem is allowed
RECIPES = {
    "mnist-fast": (None, True),
    "mnist-vit": (200_000, False),
    "mnist-tiny": (50_000, True),
    "mnist-plain": (1_000_000, False),
    "mnist-best": (1_000_000, True),
    "fashion-best": (2_000_000, True),
    "cifar-fast": (1_000_000, True),
}
SHIPPED = [name for name in RECIPES if name in PRESETS]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_whole(name):
    config = preset(name)
    assert config.name == name
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert (PRESETS[name].__doc__ or "").strip()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_is_a_vit(name):
    """At least two blocks that hold at least half of the FLOPs; averaged weights at a fixed schedule's end."""
    config, (most_parameters, may_have_stem) = preset(name), RECIPES[name]
    model = config.model
    assert isinstance(model, ViTConfig)
    assert model.depth >= 2
    a_block = count_flops(model.replace(depth=2)) - count_flops(model.replace(depth=1))
    assert model.depth * a_block >= count_flops(model) / 2
    assert most_parameters is None or count_parameters_of(model) <= most_parameters
    assert may_have_stem or not model.stem_channels
    assert config.train.ema_decay > 0
    assert config.train.budget_seconds is None


def test_a_misspelled_preset_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mnist-fast'"):
        preset("mnist-fats")
