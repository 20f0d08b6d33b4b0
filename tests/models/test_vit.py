"""The ViT: equalities first (patches, attention, masks, positions), then properties, then shapes.

Shapes: B images, N tokens (the class token included), D width, H heads, K = D // H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import CNNConfig, ViTConfig
from vitreous.errors import ConfigError, DataError
from vitreous.models import build
from vitreous.models.fast.inference import infer
from vitreous.models.variants import sincos_2d
from vitreous.models.vit import Attention, ViT, patchify

Randomise = Callable[..., ViT]

#: Every kind of ViT that the configuration can name, small.
SMALL = ViTConfig(image_size=12, patch_size=4, channels=2, num_classes=5, dim=16, depth=2, num_heads=2, mlp_dim=24)
VARIANTS: dict[str, ViTConfig] = {
    "plain": SMALL,
    "mean pooling": SMALL.replace(pool="mean"),
    "sequence pooling": SMALL.replace(pool="seq"),
    "no positions": SMALL.replace(positions="none"),
    "learned-2d": SMALL.replace(positions="learned-2d"),
    "sincos-2d": SMALL.replace(positions="sincos-2d"),
    "relative": SMALL.replace(positions="relative"),
    "relative, mean": SMALL.replace(positions="relative", pool="mean"),
    "stem": SMALL.replace(stem_channels=(3, 6), patch_size=1),
    "deep stem": SMALL.replace(stem_channels=(3, 6), stem_depth=2, patch_size=1),
    "mlp head": SMALL.replace(head="mlp", head_hidden=7),
    "not square": SMALL.replace(image_size=(8, 12), patch_size=(4, 2)),
    "padded": SMALL.replace(image_size=(11, 10), fit="pad"),
    "resized": SMALL.replace(image_size=(11, 10), fit="resize"),
    "no qkv bias": SMALL.replace(qkv_bias=False),
    "tanh": SMALL.replace(gelu="tanh"),
    "registers": SMALL.replace(registers=2),
    "registers, mean": SMALL.replace(registers=2, pool="mean"),
    "registers, seq": SMALL.replace(registers=1, pool="seq"),
    "norm after the mean": SMALL.replace(pool="mean", registers=1, norm_after_pool=True),
    "CLIP": SMALL.replace(pre_norm=True, gelu="quick"),
    "many tokens": SMALL.replace(image_size=24, patch_size=4, num_heads=4, positions="learned-2d"),
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def make(randomise: Callable[..., nn.Module]) -> Callable[[ViTConfig], ViT]:
    """A model in float64 with every parameter randomised."""
    return lambda config: randomise(ViT(config).double().eval())


def images_for(config: ViTConfig, count: int = 3) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size, dtype=torch.float64)


# --- patches -------------------------------------------------------------------------------------------------


def test_patchify_reads_row_by_row() -> None:
    image = torch.arange(2 * 4 * 6).view(1, 2, 4, 6)  # 2 channels, 4×6 pixels, patches of 2×3
    patches = patchify(image, (2, 3))
    assert patches.shape == (1, 4, 12)
    for number, (top, left) in enumerate([(0, 0), (0, 3), (2, 0), (2, 3)]):
        torch.testing.assert_close(patches[0, number], image[0, :, top : top + 2, left : left + 3].flatten())


@pytest.mark.parametrize("config", [SMALL, VARIANTS["not square"]], ids=["square", "not square"])
def test_patchify_and_a_product_equal_the_convolution(config: ViTConfig, make: Callable[[ViTConfig], ViT]) -> None:
    """The paper's x_p E, written out, and the convolution that computes it: outputs and all gradients."""
    embed = make(config).patch_embed
    results = []
    for project in (
        embed,
        lambda x: F.linear(patchify(x, config.patch_size), embed.proj.weight.flatten(1), embed.proj.bias),
    ):
        embed.zero_grad()
        images = torch.ones(1, config.channels, *config.image_size, dtype=torch.float64).cumsum(-1).cumsum(-2)
        images.requires_grad_()
        tokens = project(images)
        (tokens * torch.linspace(-1, 1, tokens.numel(), dtype=torch.float64).view_as(tokens)).sum().backward()
        results.append((tokens, images.grad, embed.proj.weight.grad.clone(), embed.proj.bias.grad.clone()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)


# --- taps ----------------------------------------------------------------------------------------------------


@every_variant
def test_taps_have_the_documented_names_and_shapes(config: ViTConfig, make: Callable[[ViTConfig], ViT]) -> None:
    taps: dict[str, Tensor] = {}
    make(config)(images_for(config), taps)
    B, N, D, H, K = 3, config.num_tokens, config.dim, config.num_heads, config.head_dim
    expected = {"tokens": (B, N, D), "normed": (B, N, D), "pooled": (B, D), "logits": (B, config.num_classes)}
    if config.norm_after_pool:
        expected["mean"] = (B, D)
    for i in range(config.depth):
        expected |= {f"blocks.{i}.{name}": (B, H, N, K) for name in ("q", "k", "v", "heads")}
        expected |= {f"blocks.{i}.{name}": (B, H, N, N) for name in ("attention_logits", "attention")}
        expected |= {f"blocks.{i}.{name}": (B, N, D) for name in ("middle", "output")}
    assert {name: tuple(tensor.shape) for name, tensor in taps.items()} == expected


@every_variant
def test_taps_are_what_they_say(config: ViTConfig, make: Callable[[ViTConfig], ViT]) -> None:
    model, images, taps = make(config), images_for(config), {}
    logits = model(images, taps)
    torch.testing.assert_close(taps["logits"], logits)
    torch.testing.assert_close(taps["tokens"], model.embed(images))
    for i in range(config.depth):
        weights = taps[f"blocks.{i}.attention"]
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        torch.testing.assert_close(weights, taps[f"blocks.{i}.attention_logits"].softmax(-1))
        torch.testing.assert_close(weights @ taps[f"blocks.{i}.v"], taps[f"blocks.{i}.heads"])
    last = taps[f"blocks.{config.depth - 1}.output"]
    torch.testing.assert_close(last if config.norm_after_pool else model.norm(last), taps["normed"])
    if config.norm_after_pool:
        torch.testing.assert_close(model.norm(last[:, config.registers :].mean(dim=1)), taps["pooled"])
    torch.testing.assert_close(model.classify(last), logits)


# --- masks ---------------------------------------------------------------------------------------------------


@every_variant
def test_masks_of_ones_change_nothing(config: ViTConfig, make: Callable[[ViTConfig], ViT]) -> None:
    model, images = make(config), images_for(config)
    heads = torch.ones(config.depth, config.num_heads, dtype=torch.float64)
    patches = torch.ones(1, config.num_patches, dtype=torch.bool)
    torch.testing.assert_close(model(images, head_mask=heads, patch_mask=patches), model(images))


def test_a_removed_head_equals_zeroed_weights(make: Callable[[ViTConfig], ViT]) -> None:
    """Multiplying a head's output by 0 is the same as zeroing the rows of U_msa that read it."""
    model, images = make(SMALL), images_for(SMALL)
    mask = torch.ones(SMALL.depth, SMALL.num_heads, dtype=torch.float64)
    mask[1, 0] = 0
    masked = model(images, head_mask=mask)
    assert not torch.allclose(masked, model(images))
    with torch.no_grad():
        model.blocks[1].attn.proj.weight[:, : SMALL.head_dim] = 0
    torch.testing.assert_close(masked, model(images))


def test_a_head_mask_scales_its_head(make: Callable[[ViTConfig], ViT]) -> None:
    model, images = make(SMALL), images_for(SMALL)
    mask = torch.ones(SMALL.depth, SMALL.num_heads, dtype=torch.float64)
    mask[0, 1] = 0.5
    masked = model(images, head_mask=mask)
    with torch.no_grad():
        model.blocks[0].attn.proj.weight[:, SMALL.head_dim :] *= 0.5
    torch.testing.assert_close(masked, model(images))


@pytest.mark.parametrize("pool", ["cls", "mean", "seq"])
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_a_removed_patch_is_not_seen(pool: str, positions: str, make: Callable[[ViTConfig], ViT]) -> None:
    config = SMALL.replace(pool=pool, positions=positions)
    model, images = make(config), images_for(config)
    mask = torch.ones(3, config.num_patches, dtype=torch.bool)
    mask[0, 4], mask[2, 0], mask[2, 8] = False, False, False
    changed = images.clone()
    changed[0, :, 4:8, 4:8] = 9.0  # patch 4 of the first image
    changed[2, :, 0:4, 0:4], changed[2, :, 8:12, 8:12] = -3.0, 5.0  # patches 0 and 8 of the last
    assert not torch.allclose(model(images)[[0, 2]], model(changed)[[0, 2]])
    torch.testing.assert_close(model(images, patch_mask=mask), model(changed, patch_mask=mask))


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("pool", ["cls", "mean", "seq"])
def test_removing_patches_equals_a_model_that_never_had_them(
    pool: str, registers: int, make: Callable[[ViTConfig], ViT]
) -> None:
    config = SMALL.replace(pool=pool, registers=registers)
    model, images = make(config), images_for(config)
    kept = torch.tensor([True, False, True, True, False, True, False, True, True])
    tokens = torch.cat([torch.ones(config.num_prefix_tokens, dtype=torch.bool), kept])
    x = model.embed(images)[:, tokens]
    for block in model.blocks:
        x = block(x)
    torch.testing.assert_close(model(images, patch_mask=kept[None]), model.classify(x))


def test_a_removed_patch_has_no_attention(make: Callable[[ViTConfig], ViT]) -> None:
    model, images, taps = make(SMALL), images_for(SMALL), {}
    mask = torch.rand(1, SMALL.num_patches) > 0.3
    torch.testing.assert_close(model(images, patch_mask=mask), model(images, taps, patch_mask=mask))
    removed = taps["blocks.0.attention"][..., 1:][..., ~mask[0]]
    assert removed.numel()
    assert (removed == 0).all()


# --- positions -----------------------------------------------------------------------------------------------


def test_relative_positions_equal_a_naive_implementation(randomise: Callable[..., nn.Module]) -> None:
    """The appendix, loop by loop: logit(i, j) = (q_i · k_j + q_i · r_{i−j}) / √K."""
    config = SMALL.replace(positions="relative")
    attention = randomise(Attention(config).double())
    tokens, taps = torch.randn(1, config.num_tokens, config.dim, dtype=torch.float64), {}
    out = attention(tokens, taps)
    N, H, K = config.num_tokens, config.num_heads, config.head_dim
    q, k, v = attention.qkv(tokens)[0].view(N, 3, H, K).unbind(1)
    heads = torch.zeros(N, H, K, dtype=torch.float64)
    for head in range(H):
        for i in range(N):
            logits = [
                (q[i, head] @ k[j, head] + q[i, head] @ attention.rel_pos[i - j + N - 1]) / math.sqrt(K)
                for j in range(N)
            ]
            heads[i, head] = torch.stack(logits).softmax(0) @ v[:, head]
    torch.testing.assert_close(out[0], attention.proj(heads.flatten(1)))


def test_relative_positions_know_only_offsets(make: Callable[[ViTConfig], ViT]) -> None:
    """All tokens alike: what a token sees depends on its place only through the offsets, so the logits are Toeplitz."""
    config = SMALL.replace(positions="relative", pool="mean")
    taps: dict[str, Tensor] = {}
    make(config)(torch.ones(1, config.channels, *config.image_size, dtype=torch.float64), taps)
    logits = taps["blocks.0.attention_logits"]
    torch.testing.assert_close(logits[..., 1:, 1:], logits[..., :-1, :-1])
    assert logits.std() > 0


def test_learned_2d_positions_are_a_row_and_a_column(make: Callable[[ViTConfig], ViT]) -> None:
    config = SMALL.replace(positions="learned-2d", image_size=(8, 12), patch_size=4)
    model = make(config)
    positions = model.positions()
    assert positions is not None
    torch.testing.assert_close(positions[0, 0], torch.zeros_like(positions[0, 0]))  # the class token has none
    for row in range(2):
        for column in range(3):
            expected = torch.cat([model.pos_embed_row[row], model.pos_embed_column[column]])
            torch.testing.assert_close(positions[0, 1 + 3 * row + column], expected)


def test_no_positions_means_a_bag_of_patches(make: Callable[[ViTConfig], ViT]) -> None:
    order = torch.randperm(SMALL.num_patches)
    for positions, order_matters in [("none", False), ("learned", True), ("sincos-2d", True), ("relative", True)]:
        config = SMALL.replace(positions=positions)
        model, images = make(config), images_for(config)
        patches = F.unfold(images, config.patch_size, stride=config.patch_size)
        shuffled = F.fold(patches[..., order], config.image_size, config.patch_size, stride=config.patch_size)
        assert torch.allclose(model(images), model(shuffled)) is not order_matters, positions


def test_sincos_2d_properties() -> None:
    rows, columns, dim = 5, 7, 32
    grid = sincos_2d(rows, columns, dim).double().view(rows, columns, dim)
    torch.testing.assert_close(grid.square().sum(-1), torch.full((rows, columns), dim / 2, dtype=torch.float64))
    # the first half encodes the column, the second the row
    torch.testing.assert_close(grid[..., : dim // 2], grid[:1, :, : dim // 2].expand(rows, -1, -1))
    torch.testing.assert_close(grid[..., dim // 2 :], grid[:, :1, dim // 2 :].expand(-1, columns, -1))
    # a dot product depends on the distance alone, and nearness shows: the closest place to a place is itself
    flat = grid.flatten(0, 1)
    products = (flat @ flat.mT).view(rows, columns, rows, columns)
    torch.testing.assert_close(products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], rtol=1e-6, atol=1e-5)
    assert (products.flatten(2).argmax(-1) == torch.arange(rows * columns).view(rows, columns)).all()
    # sin² + cos² of the lowest frequency, 10000^-(1 - 1/8), by hand
    frequency = 10_000 ** -(7 / 8)
    assert grid[0, 3, 7].item() == pytest.approx(math.sin(3 * frequency), abs=1e-6)
    assert grid[2, 0, 31].item() == pytest.approx(math.cos(2 * frequency), abs=1e-6)


def test_sincos_positions_are_not_saved_and_not_trained() -> None:
    model = ViT(SMALL.replace(positions="sincos-2d"))
    assert not [name for name in [*model.state_dict(), *dict(model.named_parameters())] if "pos" in name]


# --- images that the patch does not divide -------------------------------------------------------------------


def test_padding_adds_zeros_at_the_right_and_the_bottom(make: Callable[[ViTConfig], ViT]) -> None:
    config = SMALL.replace(image_size=(11, 10), fit="pad")
    model, whole, images = make(config), make(SMALL), images_for(config)
    whole.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images), whole(F.pad(images, (0, 2, 0, 1))))


def test_resizing_stretches_to_the_next_multiple(make: Callable[[ViTConfig], ViT]) -> None:
    config = SMALL.replace(image_size=(11, 10), fit="resize")
    model, whole, images = make(config), make(SMALL), images_for(config)
    whole.load_state_dict(model.state_dict())
    stretched = F.interpolate(images, size=(12, 12), mode="bilinear", antialias=True)
    torch.testing.assert_close(model(images), whole(stretched))


@pytest.mark.parametrize("fit", ["pad", "resize"])
def test_fitting_leaves_a_fitting_image_alone(fit: str, make: Callable[[ViTConfig], ViT]) -> None:
    images = images_for(SMALL)
    torch.testing.assert_close(make(SMALL.replace(fit=fit))(images), make(SMALL)(images), rtol=0, atol=0)


def test_a_patch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"patch_size=5×5 does not divide the images of 28×28.*2, 4, 7, 14, 28.*pad"):
        ViT(ViTConfig(patch_size=7).replace(patch_size=5))


@pytest.mark.parametrize("fit", ["exact", "pad", "resize"])
@pytest.mark.parametrize("shape", [(2, 1, 24, 12), (2, 1, 12, 11), (2, 3, 12, 12), (1, 12, 12), (1, 1, 13, 12)])
def test_images_of_another_size_are_refused(fit: str, shape: tuple[int, ...]) -> None:
    config = SMALL.replace(fit=fit, channels=1, image_size=(12, 12))
    sentence = r"got images of shape .* expected \(B, 1, 12, 12\)"
    for model in (ViT(config), build(config), build(config.replace(pool="mean"))):
        for call in (model.eval(), partial(infer, model)):
            with torch.inference_mode(), pytest.raises(DataError, match=sentence):
                call(torch.zeros(shape))


def test_the_cnn_refuses_images_of_another_size() -> None:
    with pytest.raises(DataError, match=r"shape \(2, 1, 30, 28\); expected \(B, 1, 28, 28\)"):
        build(CNNConfig())(torch.zeros(2, 1, 30, 28))


# --- training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"dropout": 0.5}, {"drop_path": 0.5}], ids=["dropout", "drop_path"])
def test_dropout_acts_in_training_only(setting: dict[str, float], make: Callable[[ViTConfig], ViT]) -> None:
    model, plain, images = make(SMALL.replace(**setting)), make(SMALL), images_for(SMALL)
    torch.testing.assert_close(model(images), plain(images), rtol=0, atol=0)
    model.train()
    assert not torch.allclose(model(images), model(images))


def test_drop_path_rises_linearly_and_keeps_the_mean(make: Callable[[ViTConfig], ViT]) -> None:
    config = SMALL.replace(depth=5, drop_path=0.4)
    model = make(config).train()
    assert [block.drop_path for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    branch = torch.ones(20_000, 1, 1, dtype=torch.float64)
    dropped = model.blocks[4].branch(branch)
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.6}  # whole branches of single images, the rest made up for
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)


def test_dropout_follows_every_dense_layer_but_qkv() -> None:
    """The paper's B.1: after every dense layer except the qkv projections, and after adding the positions."""
    config = SMALL.replace(dropout=0.25, depth=3)
    model, images = ViT(config).train(), torch.randn(1, 2, 12, 12)
    seen: list[tuple[int, ...]] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _module, inputs, _output: seen.append(tuple(inputs[0].shape)))
    model(images)
    N, D, M = config.num_tokens, config.dim, config.mlp_dim
    assert seen == [(1, N, D), *[(1, N, D), (1, N, M), (1, N, D)] * config.depth]


# --- a fresh model -------------------------------------------------------------------------------------------


def test_initialisation_is_the_paper_codes() -> None:
    config = ViTConfig(dim=96, depth=2, num_heads=4, mlp_dim=384, patch_size=4, head="mlp")
    model = ViT(config)
    bound = math.sqrt(6 / (96 + 96))  # q, k and v are three matrices of 96 × 96 each
    for part in model.blocks[0].attn.qkv.weight.chunk(3):
        assert bound * 0.98 < part.abs().max().item() <= bound
    bound = math.sqrt(6 / (96 + 384))
    assert bound * 0.98 < model.blocks[0].mlp.fc1.weight.abs().max().item() <= bound
    assert model.blocks[0].mlp.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.patch_embed.proj.weight.std().item() == pytest.approx(16**-0.5, rel=0.05)  # LeCun: 1 / √fan-in
    assert model.cls_token is not None
    for zeros in (model.cls_token, model.head.weight, model.head.bias, model.blocks[1].attn.qkv.bias):
        assert not zeros.any()
    assert ViT(config.replace(zero_head=False)).head.weight.any()


def test_the_head_starts_undecided() -> None:
    assert not ViT(SMALL)(torch.randn(2, 2, 12, 12)).any()


def test_gelu_kinds_differ_by_little(make: Callable[[ViTConfig], ViT]) -> None:
    images = images_for(SMALL)
    erf, tanh = make(SMALL)(images), make(SMALL.replace(gelu="tanh"))(images)
    assert 0 < (erf - tanh).abs().max() < 1e-2


def test_norm_eps_reaches_every_norm() -> None:
    norms = [m for m in ViT(SMALL.replace(norm_eps=1e-3)).modules() if isinstance(m, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-3] * (2 * SMALL.depth + 1)


def test_sequence_pooling_is_a_weighted_mean(make: Callable[[ViTConfig], ViT]) -> None:
    model = make(SMALL.replace(pool="seq"))
    images, taps = images_for(SMALL), {}
    model(images, taps)
    assert model.pool_score is not None
    weights = model.pool_score(taps["normed"]).softmax(dim=1)  # (B, N, 1)
    torch.testing.assert_close(taps["pooled"], (weights * taps["normed"]).sum(1))


def test_names_follow_timm() -> None:
    names = {name.replace("blocks.0", "blocks.i") for name in ViT(SMALL.replace(depth=1)).state_dict()}
    block = ["norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]
    layers = ["patch_embed.proj", "norm", "head", *(f"blocks.i.{name}" for name in block)]
    assert names == {"cls_token", "pos_embed", *(f"{layer}.{part}" for layer in layers for part in ("weight", "bias"))}
