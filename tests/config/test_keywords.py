"""Settings as Python writes them give the same configuration as `section.field=value`, and mistakes name themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitreous.config import CNNConfig, Config, TrainConfig, ViTConfig, override
from vitreous.config.keywords import as_config, change_model, configure_from_keywords
from vitreous.config.presets import preset
from vitreous.errors import ConfigError


def configured(base="vit", *, settings=(), model=None, train=None, augment=None, start=None, **keywords):
    sections = {"model": model, "train": train, "augment": augment, "start": start}
    return configure_from_keywords(base, sections=sections, settings=settings, keywords=keywords)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"depth": 6, "lr": 0.1}, ["model.depth=6", "train.lr=0.1"]),
        ({"train": {"lr": 0.1, "epochs": 5}}, ["train.lr=0.1", "train.epochs=5"]),
        ({"model": {"dim": 96}, "num_heads": 3}, ["model.dim=96", "model.num_heads=3"]),  # valid only together
        ({"augment": {"flip": True}, "shift": 2}, ["data.augment.flip=true", "data.augment.shift=2"]),
        ({"image_size": (16, 20), "channels": 3}, ["data.image_size=[16,20]", "data.channels=3"]),
        ({"weights": Path("runs/a"), "start": {"num_heads": 2}}, ['start.weights="runs/a"', "start.num_heads=2"]),
        ({"settings": {"train.lr": 0.1, "data.val_fraction": 0}}, ["train.lr=0.1", "data.val_fraction=0"]),
        ({"settings": ["train.lr=0.1"], "epochs": 3}, ["train.lr=0.1", "train.epochs=3"]),
        ({"settings": "train.lr=0.1"}, ["train.lr=0.1"]),
        ({"epochs": np.float32(2), "depth": np.int64(3)}, ["train.epochs=2", "model.depth=3"]),
        ({"teacher": None, "seed": 7, "name": "mine"}, ["seed=7", "name=mine"]),
        ({}, []),
    ],
)
def test_keywords_equal_settings(given, settings):
    assert configured(**given) == override(preset("vit"), settings)


def test_what_a_configuration_can_be(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nkind = "cnn"\nhidden = 32\n[train]\nepochs = 3\n', encoding="utf-8")
    same = {"model": {"kind": "cnn", "hidden": 32}, "train": {"epochs": 3}}
    expected = override(preset("cnn"), ["model.hidden=32", "train.epochs=3"])
    assert as_config(file) == as_config(str(file)) == as_config(expected) == expected
    assert as_config(same).model == CNNConfig(hidden=32)
    assert as_config(same).train.epochs == 3
    assert as_config({"train": TrainConfig(epochs=2)}).train == TrainConfig(epochs=2)
    assert as_config({}) == preset("vit")
    assert as_config(ViTConfig(depth=2)) == preset("vit").replace(model=ViTConfig(depth=2))
    assert as_config(CNNConfig()).train == preset("cnn").train


def test_a_section_can_be_replaced_whole():
    train = TrainConfig(epochs=2, batch_size=16)
    assert configured(train=train).train == train
    assert configured(model=CNNConfig(hidden=8)).model == CNNConfig(hidden=8)
    assert configured(model={"kind": "cnn", "hidden": 8}).model == CNNConfig(hidden=8)
    assert configured(train=train, lr=0.5).train == train.replace(lr=0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ephocs": 5}, r"fit\(\) has no setting 'ephocs'; did you mean epochs\?"),
        ({"zzz": 5}, r"fit\(\) has no setting 'zzz'; vitreous.preset\('vit'\) shows all of them"),
        ({"hidden": 5}, r"fit\(\) has no setting 'hidden' for a 'vit' model"),
        ({"num_classes": 5}, r"fit\(\) has no setting 'num_classes'"),
        ({"fit": "pad"}, r"fit\(\) has 2 settings 'fit': write model=\{'fit': …\} or settings=\{'data.fit': …\}"),
        ({"lr": "fast"}, r"train.lr='fast': input should be a valid number"),
        ({"depth": 2.5}, r"model.depth=2.5: input should be a valid integer"),
        ({"lr": 0.1, "train": {"lr": 0.2}}, "lr was given twice, as a keyword and in train: leave one out"),
        ({"train": {"lrr": 1}}, r"train has no setting 'lrr'; did you mean lr\?"),
        ({"augment": {"zoom": 1}}, "data.augment has no setting 'zoom'; choose from shift, rotate"),
        ({"settings": {"train.lrr": 1}}, r"train has no setting 'lrr'; did you mean lr\?"),
        ({"settings": {"trian.lr": 1}}, r"a configuration has no setting 'trian'; did you mean train\?"),
        ({"settings": ["lr"]}, r"the setting 'lr' is incomplete: expected section.field=value"),
        ({"model": 3}, r"model=3: expected a dictionary of settings, as in model=\{'depth': 6\}"),
        ({"model": TrainConfig()}, "model=TrainConfig.*expected a dictionary"),
        ({"model": {"kind": "rnn"}}, "rnn"),
        ({"dim": 65}, "model.dim=65 must be a multiple of model.num_heads=2"),
        ({"base": 3}, "config=3: expected the name of a preset, a Config, the configuration of a model"),
        ({"base": "vitt"}, "there is no preset 'vitt'; did you mean 'vit'"),
        ({"base": "none.toml"}, "cannot read the configuration 'none.toml'"),
        ({"base": {"modell": {}}}, "there is no setting 'modell'"),
    ],
)
def test_a_mistake_is_one_sentence(given, message):
    with pytest.raises(ConfigError, match=message):
        configured(**given)


def test_every_keyword_reaches_its_field():
    """No field can be set by a keyword that goes elsewhere, and only `fit` has two places."""
    config = Config()
    for section, holder in (("model", config.model), ("train", config.train), ("augment", config.data.augment)):
        for field, value in holder:
            if field in ("kind", "num_classes", "fit", "image_size", "channels"):
                continue
            assert configured(config, **{field: value}) == config, f"{section}.{field}"


def test_a_model_alone():
    assert change_model("vit", {"depth": 6, "num_classes": 26}, "create") == preset("vit").model.replace(
        depth=6, num_classes=26
    )
    with pytest.raises(ConfigError, match=r"create\(\) has no setting 'dept' of a 'vit' model; did you mean depth\?"):
        change_model("vit", {"dept": 6}, "create")
