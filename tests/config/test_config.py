"""Configurations: a mistake gives one sentence with its value and a remedy; overrides and files merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest

from vitreous.config import (
    ArticleViTConfig,
    CNNConfig,
    Config,
    TrainConfig,
    ViTConfig,
    build_config,
    merge_toml,
    override,
)
from vitreous.config.presets import PRESETS, preset
from vitreous.errors import ConfigError, VitreousError


def one_sentence(error: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(error.value)
    assert isinstance(error.value, VitreousError)
    assert "\n" not in message
    assert "pydantic" not in message
    assert error.value.__cause__ is None
    assert (
        error.value.__context__ is None or error.value.__suppress_context__
    )  # a person sees the sentence, not the library's error below it
    return message


# --- values that do not fit: what must be in the sentence ----------------------------------------------------

WRONG_MODELS: list[tuple[dict[str, Any], list[str]]] = [
    ({"dim": 64, "num_heads": 3}, ["model.dim=64", "model.num_heads=3", "multiple"]),
    ({"dim": 33, "num_heads": 3, "positions": "learned-2d"}, ["model.dim=33", "even", "learned-2d"]),
    ({"dim": 66, "positions": "sincos-2d"}, ["model.dim=66", "multiple of 4", "sincos-2d"]),
    ({"patch_size": 5}, ["model.patch_size=5×5", "28×28", "2, 4, 7, 14, 28", "{'fit': 'pad'}", "{'fit': 'resize'}"]),
    ({"patch_size": (7, 5)}, ["7×5", "28×28", "model={'fit': 'pad'}"]),
    ({"stem_channels": (8,), "patch_size": 4}, ["4×4", "the conv stem's features of 14×14", "2, 7, 14"]),
    ({"image_size": (13, 17), "patch_size": 4}, ["4×4", "13×17", "image_size=[12, 16]"]),
    ({"depth": 0}, ["depth=0", "greater than or equal to 1"]),
    ({"depth": 2.5}, ["depth=2.5", "integer"]),
    ({"dropout": 1.0}, ["dropout=1.0", "less than 1"]),
    ({"dropout": -0.1}, ["dropout=-0.1"]),
    ({"norm_eps": 0.0}, ["norm_eps=0.0", "greater than 0"]),
    ({"norm_eps": float("nan")}, ["norm_eps=nan", "finite"]),
    ({"pool": "max"}, ["pool='max'", "'cls', 'mean' or 'seq'"]),
    ({"positions": "rotary"}, ["positions='rotary'", "sincos-2d"]),
    ({"widht": 3}, ["no setting 'widht'", "vitreous.preset(NAME)"]),
]


@pytest.mark.parametrize(("changes", "parts"), WRONG_MODELS, ids=[str(changes) for changes, _ in WRONG_MODELS])
def test_a_wrong_vit_names_value_and_remedy(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build_config(ViTConfig, changes).check_geometry()
    message = one_sentence(error)
    for part in parts:
        assert part in message, message


def test_other_models_wrong_values() -> None:
    with pytest.raises(ConfigError, match="the CNN needs images of at least 6×6 pixels, not 4×4"):
        build_config(CNNConfig, {"image_size": 4})
    with pytest.raises(ConfigError, match="28×28×1 images of 10 classes, not 28×28×3 of 10; `vit` and `cnn` take any"):
        build_config(ArticleViTConfig, {"channels": 3})


@pytest.mark.parametrize("field", ["epochs", "batch_size", "lr"])
def test_training_needs_positive_numbers(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}=0"):
        build_config(TrainConfig, {field: 0})


def test_a_model_of_an_unknown_kind_names_the_kinds() -> None:
    with pytest.raises(ConfigError) as error:
        build_config(Config, {"model": {"kind": "mlp"}})
    message = one_sentence(error)
    assert "mlp" in message
    assert "'vit'" in message


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Config().seed = 3


# --- what is derived -----------------------------------------------------------------------------------------


def test_derived_values_follow_an_override() -> None:
    config = ViTConfig(image_size=28, patch_size=7)
    assert (config.grid, config.num_patches, config.num_tokens, config.head_dim) == ((4, 4), 16, 17, 32)
    config = config.replace(patch_size=(4, 14), pool="mean", num_heads=4)
    assert (config.grid, config.num_patches, config.num_tokens, config.head_dim) == ((7, 2), 14, 14, 16)


@pytest.mark.parametrize("fit", ["pad", "resize"])
def test_fit_rounds_up_never_down(fit: str) -> None:
    config = ViTConfig(image_size=(29, 28), patch_size=7, fit=fit)
    assert config.fitted_size == (35, 28)
    assert config.grid == (5, 4)
    stem = ViTConfig(image_size=28, stem_channels=(8,), patch_size=4, fit=fit)
    assert (stem.feature_size, stem.fitted_size) == ((14, 14), (16, 16))


def test_a_number_is_a_square() -> None:
    assert ViTConfig(image_size=32, patch_size=8) == ViTConfig(image_size=(32, 32), patch_size=(8, 8))


# --- presets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_whole(name: str) -> None:
    config = preset(name)
    assert config.name == name
    assert PRESETS[name].__doc__
    assert Config.model_validate(config.model_dump()) == config
    assert Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("name", ["post-vit", "post-cnn", "post-design"])
def test_the_articles_models_train_as_written(name: str) -> None:
    """Batch 32, NLL, SGD, no augmentation, no EMA; evaluated in batches of 32."""
    config = preset(name)
    train, augment = config.train, config.data.augment
    assert (train.batch_size, train.loss, train.optimizer, train.eval_batch_size) == (32, "nll", "sgd", 32)
    assert (train.ema_decay, train.label_smoothing, train.weight_decay) == (0, 0, 0)
    assert not any(augment.model_dump().values())


def test_an_unknown_preset_suggests_one() -> None:
    with pytest.raises(ConfigError) as error:
        preset("vit-b61")
    message = one_sentence(error)
    assert "'vit-b61'" in message
    assert "did you mean 'vit-b16'?" in message
    assert "post-design" in message


# --- overrides -----------------------------------------------------------------------------------------------


def test_overrides_read_toml_values_and_bare_words() -> None:
    config = override(
        preset("vit"),
        ["model.depth=6", "model.patch_size=[4, 14]", "model.pool=mean", "train.lr=1e-4", "data.augment.flip=true",
         "data.name = fashion-mnist", "train.budget_seconds=none", "seed=7", 'name="mine"', "model.stem_channels=[]"],
    )  # fmt: skip
    assert config.model.depth == 6
    assert config.model.patch_size == (4, 14)
    assert config.model.pool == "mean"
    assert config.train.lr == 1e-4
    assert config.data.augment.flip is True
    assert config.data.name == "fashion-mnist"
    assert config.train.budget_seconds is None
    assert (config.seed, config.name) == (7, "mine")


def test_overrides_are_judged_together() -> None:
    """Neither setting would fit alone; the whole does."""
    assert override(preset("vit"), ["model.dim=96", "model.num_heads=3"]).model.head_dim == 32
    assert override(preset("vit"), ["model.num_heads=3", "model.dim=96"]).model.head_dim == 32


def test_an_override_may_change_the_kind_of_model() -> None:
    assert override(preset("vit"), ["model.kind=cnn", "model.hidden=32"]).model == CNNConfig(hidden=32)


def test_later_overrides_win_and_the_original_stays() -> None:
    base = preset("vit")
    assert override(base, ["model.depth=2", "model.depth=3"]).model.depth == 3
    assert base == preset("vit")


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("model.depth", ["'model.depth'", "section.field=value"]),
        ("=3", ["'=3'", "section.field=value"]),
        ("modle.depth=6", ["'modle.depth=6'", "no section 'modle'", "model, data, train"]),
        ("model.dpeth=6", ["'model.dpeth'", "choose from", "depth"]),
        ("model=vit", ["'model' is a section", "depth"]),
        ("seed.x=3", ["no section 'seed'"]),
        ("model.depth=six", ["model.depth='six'", "integer"]),
        ("model.patch_size=[4]", ["model.patch_size"]),
        ("train.optimizer=adam", ["optimizer='adam'", "'adamw'"]),
        ("seed=-1", ["seed=-1"]),
    ],
)
def test_a_wrong_override_says_what_to_write(setting: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        override(preset("vit"), [setting])
    message = one_sentence(error)
    for part in parts:
        assert part in message, message


# --- files ---------------------------------------------------------------------------------------------------


def test_toml_lays_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3\n[model]\ndepth = 2\n[data.augment]\nflip = true\n[train]\nlr = 0.5\n", encoding="utf-8")
    base = preset("vit")
    merged = merge_toml(base, path)
    assert merged == base.replace(
        seed=3,
        model=base.model.replace(depth=2),
        data=base.data.replace(augment=base.data.augment.replace(flip=True)),
        train=base.train.replace(lr=0.5),
    )


def test_toml_may_change_the_kind_of_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nkind = "cnn"\nhidden = 32\n', encoding="utf-8")
    assert merge_toml(preset("vit"), path).model == CNNConfig(hidden=32)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[model]\ndpeth = 2\n", ["no setting", "dpeth"]),
        ("[modle]\ndepth = 2\n", ["no setting 'modle'"]),
        ("[model\n", ["cannot read the configuration"]),
        ("model = 3\n", ["model"]),
    ],
)
def test_a_wrong_file_is_named(text: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        merge_toml(preset("vit"), path)
    message = one_sentence(error)
    for part in ["mine.toml", *parts]:
        assert part in message, message


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml"):
        merge_toml(preset("vit"), tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*binary\.toml"):
        merge_toml(preset("vit"), tmp_path / "binary.toml")


def test_a_patch_may_be_set_before_the_data_tell_the_image_size() -> None:
    """`--set model.patch_size=8` is for 32×32 images, and the preset's 28×28 must not stand in its way."""
    config = override(preset("vit"), ["model.patch_size=8"])
    with pytest.raises(ConfigError, match="does not divide"):
        config.model.check_geometry()
    config.model.replace(image_size=32).check_geometry()


def test_nll_is_refused_where_it_would_train_to_nothing():
    with pytest.raises(
        ConfigError, match=r"train.loss='nll' is for the article's models, which return log-probabilities"
    ):
        override(preset("vit"), ["train.loss=nll"])
    with pytest.raises(ConfigError, match=r"label_smoothing has no effect with train.loss='nll'"):
        override(preset("post-cnn"), ["train.label_smoothing=0.1"])


def test_none_is_a_word_where_a_field_has_it_for_a_choice():
    assert override(preset("vit"), ["model.positions=none"]).model.positions == "none"
    assert override(preset("vit"), ["train.freeze=none"]).train.freeze == "none"
    assert override(preset("vit"), ["train.threads=none", "start.weights=null"]).train.threads is None


def test_patches_that_do_not_fit_name_a_size_that_would():
    with pytest.raises(ConfigError, match=r"41×44 pixels: image_size=\[40, 48\], or model={'fit': 'pad'}"):
        ViTConfig(image_size=(41, 44), patch_size=8).check_geometry()
