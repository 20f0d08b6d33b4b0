"""Blank patches that become no tokens, windows larger than the patch, and a hidden layer in the embedding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.checkpoints import save_model
from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluation import blank as ink
from vitreous.inspection.examination import examine
from vitreous.models import ViT, blank, build
from vitreous.models.fast.inference import infer, infer_and_represent
from vitreous.models.representations import represent, representations_in
from vitreous.models.summary import count_flops, count_parameters_of, shapes
from vitreous.training.restart import same_training
from vitreous.training.setup import fit_to_data

VARIANTS = {
    "plain": {},
    "window": {"window": (8, 10)},
    "two layers": {"window": 12, "embed_hidden": 24},
    "stem": {"patch_size": 1, "stem_channels": (8, 8)},
    "stem and window": {"patch_size": 2, "window": 4, "stem_channels": (8,)},
    "mean": {"pool": "mean", "positions": "sincos-2d"},
    "sequence pooling": {"pool": "seq", "positions": "learned-2d"},
    "no positions": {"positions": "none"},
    "registers": {"registers": 2, "pre_norm": True},
    "padded": {"image_size": (27, 30), "fit": "pad"},
    "resized": {"image_size": (27, 30), "fit": "resize"},
    "colour": {"channels": 3, "window": 6},
}


def make(tokens: int | str = 20, **changes: object) -> ViTConfig:
    values = {"patch_size": 4, "dim": 16, "depth": 2, "mlp_dim": 32, "zero_head": False, "tokens": tokens}
    return ViTConfig.model_validate({**values, **changes})


def make_model(kind: type[ViT] | None, config: ViTConfig) -> ViT:
    torch.manual_seed(0)
    model = build(config) if kind is None else kind(config)
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
        if config.knows_background:
            model.background.fill_(-0.4)
    return model.double().eval()


def sketches(config: ViTConfig, count: int = 6) -> Tensor:
    """Strokes on a flat background, as normalised input."""
    generator = torch.Generator().manual_seed(1)
    images = torch.full((count, config.channels, *config.image_size), -0.4, dtype=torch.float64)
    for image in images:
        row, column = torch.randint(0, 16, (2,), generator=generator).tolist()
        image[:, row : row + 9, column + 2 : column + 5] = 2.0
        image[:, row + 3 : row + 5, column : column + 11] = 1.0
    return images


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_taking_tokens_out_equals_masking_them(changes) -> None:
    """The model that computes K tokens against the readable one that computes all and attends to K."""
    config = make(7, **changes)
    fast, readable, images = make_model(None, config), make_model(ViT, config), sketches(config)
    taps: dict[str, Tensor] = {}
    masked = readable(images, taps)
    assert taps["chosen"].shape == (6, 7)
    assert taps["kept"].sum(dim=1).tolist() == [7] * 6
    for logits in (fast(images), readable(images), fast(images, head_mask=torch.ones(2, 2))):
        torch.testing.assert_close(logits, masked)
    with torch.no_grad():
        torch.testing.assert_close(infer(fast, images), masked)
        torch.testing.assert_close(infer(fast, images[:1]), masked[:1])
        for parts in (represent(readable, images)[1], infer_and_represent(fast, images)[1]):
            for one, other in zip(parts, representations_in(readable, taps), strict=True):
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_gradients_are_equal_too(changes) -> None:
    config = make(7, **changes)
    fast, readable, images = make_model(None, config), make_model(ViT, config), sketches(config)
    fast(images).square().sum().backward()
    readable(images, {}).square().sum().backward()
    for (name, one), other in zip(fast.named_parameters(), readable.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_with_as_many_tokens_as_patches_it_is_the_full_model(changes) -> None:
    config = make("all", **changes)
    whole, images = make_model(None, config), sketches(config)
    same = make_model(None, config.replace(tokens=config.num_patches))
    assert same.choose_patches(images) is None
    torch.testing.assert_close(same(images), whole(images), rtol=0, atol=0)


def test_what_is_kept_and_what_is_not() -> None:
    """The patches with ink, in the order of the grid; pixels of a skipped patch do not matter."""
    config = make(3)
    model = make_model(None, config)
    images = torch.full((1, 1, 28, 28), -0.4, dtype=torch.float64)
    for patch in (40, 8, 23):
        row, column = divmod(patch, 7)
        images[0, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1.5
    assert model.choose_patches(images)[0].tolist() == [8, 23, 40]
    changed = images.clone()
    changed[0, 0, 0, 0] = 0.5
    torch.testing.assert_close(model(changed), model(images), rtol=0, atol=0)
    changed[0, 0, 5, 5] = 0.0  # of patch 8
    assert not torch.equal(model(changed), model(images))


def test_without_a_class_token_a_mask_cannot_remove_every_token() -> None:
    config = make(2, pool="mean")
    model, images = make_model(None, config), sketches(config)
    mask = torch.ones(len(images), 49, dtype=torch.bool)
    mask[0] = mask[0].scatter(0, model.choose_patches(images)[0], False)
    masked = model(images, patch_mask=mask)
    torch.testing.assert_close(masked, model(images))


def test_of_equal_patches_the_first_are_kept() -> None:
    scores = torch.tensor([[0.0, 5.0, 0.0, 5.0, 5.0, 0.0], [3e5, 3e5, 0.0, 0.0, 0.0, 3e5]])
    assert blank.largest(scores, 2).tolist() == [[1, 3], [0, 1]]
    assert blank.largest(scores, 4).tolist() == [[0, 1, 3, 4], [0, 1, 2, 5]]
    assert blank.largest_first(scores)[0].tolist() == [1, 3, 4, 0, 2, 5]


def test_a_window_beyond_the_border_sees_background() -> None:
    """So an empty image gives every token the same embedding, at the border too."""
    model = make_model(None, make("all", window=12, positions="none"))
    tokens = model.embed(torch.full((1, 1, 28, 28), -0.4, dtype=torch.float64))[0, 1:]
    torch.testing.assert_close(tokens, tokens[:1].expand_as(tokens))


def test_shapes_and_flops_count_the_kept_tokens() -> None:
    whole, some = make("all", window=8, embed_hidden=24), make(20, window=8, embed_hidden=24)
    assert count_parameters_of(some) == count_parameters_of(whole) == sum(p.numel() for p in build(some).parameters())
    assert 0.3 < count_flops(some) / count_flops(whole) < 21 / 50  # and fewer pairs of tokens
    kept = next(step for step in shapes(some) if step.name.startswith("keep"))
    assert kept.shape == ("B", 20, 64)


@pytest.fixture(scope="module")
def digits():
    return load_dataset(DataConfig(name="digits"))


def resolved(dataset, **changes: object) -> ViTConfig:
    model = fit_to_data(Config(name="x", model=make(**changes), data=DataConfig(name="digits")), dataset).model
    assert isinstance(model, ViTConfig)
    return model


def test_background_and_number_are_taken_from_the_data(digits) -> None:
    config = resolved(digits, tokens="auto")
    assert config.background == (0,)
    assert 10 < config.kept_patches < config.num_patches
    model = make_model(None, config).float()
    preprocessing = Preprocessing.for_dataset(digits)
    ink.set_background(model, preprocessing)
    empty = preprocessing.to_input(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    torch.testing.assert_close(model.background.expand(1, 28, 28), empty[0])
    lost = ink.lost_patches(model, digits.train, preprocessing)
    assert 0 < (lost > 0).float().mean() <= 0.05
    fewer = make_model(None, config.replace(tokens=config.kept_patches - 1)).float()
    ink.set_background(fewer, preprocessing)
    assert (ink.lost_patches(fewer, digits.train, preprocessing) > 0).float().mean() > 0.05


def test_a_given_background_is_kept(digits) -> None:
    assert resolved(digits, tokens=9, background=(7,)).background == (7,)


def test_lost_patches_are_counted_exactly(digits) -> None:
    """Against a plain loop over the patches of each image."""
    config = resolved(digits, tokens=12)
    model, preprocessing = make_model(None, config).float(), Preprocessing.for_dataset(digits)
    ink.set_background(model, preprocessing)
    split = digits.test.take(np.arange(20))
    expected = []
    for image in split.batch(torch.arange(20)):
        patches = [image[0, r : r + 4, c : c + 4].int() for r in range(0, 28, 4) for c in range(0, 28, 4)]
        order = sorted(range(49), key=lambda patch: (-int(patches[patch].sum()), patch))
        expected.append(sum(bool((patches[patch] > ink.INK).any()) for patch in order[12:]))
    assert ink.lost_patches(model, split, preprocessing).tolist() == expected
    assert sum(expected)


def test_look_crosses_out_the_skipped_patches() -> None:
    config = make(20)
    model = make_model(None, config)
    image = sketches(config, 1)[0]
    found = examine(model, image, integration_steps=2, random_orders=2)
    chosen = model.choose_patches(image[None])
    assert sorted((*found.cells.skipped, *chosen[0].tolist())) == list(range(49))
    assert "skips" in found.cells.note
    assert len(found.cells.crosses) == 2 * 29
    assert found.attention is not None
    readout = found.attention.readout.reshape(2, 2, 49)
    assert not readout[..., list(found.cells.skipped)].any()
    assert found.logit_lens is not None
    assert found.logit_lens[-1] == pytest.approx(found.probabilities)


@pytest.mark.parametrize("changes", [{"tokens": 20}, {"tokens": "all", "window": 8}, {"embed_hidden": 8}])
def test_other_libraries_cannot_express_it(changes, tmp_path) -> None:
    model = make_model(None, make(**changes))
    with pytest.raises(CheckpointError, match="timm cannot express"):
        save_model(model, tmp_path / "x.safetensors", "timm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "model.tokens=0: choose all, auto or the number of patches to keep"),
        ({"tokens": "most"}, "'most': choose all, auto"),
        ({"tokens": True}, "choose all, auto"),
        ({"window": 7}, "model.window=7×7 must exceed model.patch_size=4×4 by an even number"),
        ({"window": 2}, "must exceed"),
        ({"positions": "relative"}, "needs all of them"),
        ({"background": (1, 2)}, "has 2 values for 1 channels"),
        ({"background": (256,)}, "less than or equal to 255"),
    ],
)
def test_bad_settings_are_refused(changes, message) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        make(**{"tokens": 5, **changes}).check_geometry()


def test_what_the_data_decided_is_no_other_training(digits) -> None:
    """A comparison or a benchmark finds its finished run again."""
    asked = Config(name="x", model=make("auto", window=8), data=DataConfig(name="digits"))
    done = fit_to_data(asked, digits)
    assert done.model != asked.model
    assert same_training(done, asked)
    assert not same_training(done, asked.replace(model=asked.model.replace(tokens=5)))
    assert not same_training(done, asked.replace(model=asked.model.replace(background=(9,))))
