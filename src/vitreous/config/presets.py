"""Named complete configurations, one function each: model, data and training. Files and flags override them.

A docstring states what was measured, with its command.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from vitreous.config.schema import (
    ArticleCNNConfig,
    ArticleDesignConfig,
    ArticleViTConfig,
    AugmentConfig,
    CNNConfig,
    Config,
    DataConfig,
    MixerConfig,
    TrainConfig,
    ViTConfig,
)
from vitreous.errors import ConfigError

#: For digits, which keep their meaning when shifted a little; weak, for trainings of a few epochs.
_WEAK_AUGMENT = AugmentConfig(shift=1.5, rotate=7, scale=0.07)


def vit() -> Config:
    """The paper's ViT at the article's geometry: 28×28 images, 7×7 patches, 16 + 1 tokens.

    `vitreous train vit` (seed 0, n = 1): 99.13 % of MNIST's test set after 117 s on two cores of an AMD EPYC.
    """
    return Config(
        name="vit",
        model=ViTConfig(patch_size=7, dim=64, depth=4, num_heads=2, mlp_dim=128),
        data=DataConfig(augment=_WEAK_AUGMENT),
        train=TrainConfig(
            epochs=8, batch_size=128, optimizer="muon", muon_lr=0.02, lr=0.01, weight_decay=0.05, label_smoothing=0.1,
            ema_decay=0.99,
        ),
    )  # fmt: skip


def vit_p4() -> Config:
    """`vit` with 4×4 patches: 49 + 1 tokens see finer strokes, at about three times the cost."""
    base = vit()
    return base.replace(name="vit-p4", model=base.model.replace(patch_size=4))


def vit_hybrid() -> Config:
    """`vit` behind a small conv stem (the paper's hybrid): three stride-2 convolutions leave 4×4 tokens."""
    base = vit()
    return base.replace(name="vit-hybrid", model=base.model.replace(patch_size=1, stem_channels=(16, 32, 64)))


def cnn() -> Config:
    """The article's CNN with the same care as the ViT: augmentation, Muon, a schedule, averaged weights.

    `python bench/recipes.py cnn`: 99.10 ± 0.05 % of MNIST's test set (3 seeds) after 30 s on two cores of an AMD EPYC
    at 206 GFLOP/s. `make demo` trains it in bfloat16 where that is faster, like the ViT beside it.
    """
    return Config(
        name="cnn",
        model=CNNConfig(),
        data=DataConfig(augment=_WEAK_AUGMENT),
        train=TrainConfig(
            epochs=1.25, batch_size=128, optimizer="muon", muon_lr=0.02, muon_steps=3, lr=0.005, weight_decay=0.05,
            label_smoothing=0.1, ema_decay=0.99,
        ),
    )  # fmt: skip


def mixer() -> Config:
    """`vit` with a dense layer over the tokens in place of attention; `vitreous study attention-or-mixing` compares."""
    return vit().replace(name="mixer", model=MixerConfig())


# --- recipes: the shortest, smallest and best trainings we know, each chosen on validation (docs/log.md) and measured
# --- by `python bench/recipes.py` (docs/benchmarks.md); seconds are on two cores, scaled to 220 fp32 GFLOP/s


def mnist_fast() -> Config:
    """99 % of MNIST in the least time: `mnist-vit`, as short as it can be.

    `python bench/recipes.py mnist-fast`: 99.09 ± 0.05 % of the test set (mean and deviation of 5 seeds) after 16 s on
    two cores of an AMD EPYC at 206 GFLOP/s, in bfloat16. In float32: 99.06 ± 0.12 % after 26 s at 184 GFLOP/s, which
    is 22 s at 220.
    """
    base = mnist_vit()
    return base.replace(name="mnist-fast", train=base.train.replace(epochs=3.2, validate_every=3.2))


def mnist_vit() -> Config:
    """99 % of MNIST without a convolution: the 16 of 49 patches with most ink, each token seeing 12×12 pixels.

    `python bench/recipes.py mnist-vit`: 99.19 ± 0.05 % of the test set (5 seeds) after 24 s on two cores of an AMD EPYC
    at 201 GFLOP/s, in bfloat16. In float32: 99.18 ± 0.08 % after 39 s at 178 GFLOP/s, which is 31 s at 220.
    """
    return Config(
        name="mnist-vit",
        model=ViTConfig(
            patch_size=4, window=12, embed_hidden=128, tokens=16, dim=64, depth=2, num_heads=2, mlp_dim=128
        ),
        data=DataConfig(augment=_WEAK_AUGMENT),
        train=TrainConfig(
            epochs=4.5, batch_size=128, optimizer="muon", muon_lr=0.02, muon_steps=3, lr=0.01, weight_decay=0.05,
            label_smoothing=0.1, ema_decay=0.99, precision="auto",
        ),
    )  # fmt: skip


def mnist_tiny() -> Config:
    """99 % of MNIST with the fewest parameters, 26,778: a narrow conv stem and four blocks of width 24.

    `python bench/recipes.py mnist-tiny`: 99.21 ± 0.07 % of the test set (3 seeds) after 109 s on two cores of an AMD
    EPYC at 179 GFLOP/s, which is 88 s at 220.
    """
    return Config(
        name="mnist-tiny",
        model=ViTConfig(patch_size=1, stem_channels=(16, 16, 24), dim=24, depth=4, num_heads=2, mlp_dim=48),
        data=DataConfig(augment=AugmentConfig(shift=1, rotate=5, scale=0.05)),
        train=TrainConfig(
            epochs=10, batch_size=128, optimizer="muon", muon_lr=0.02, lr=0.01, weight_decay=0.05, label_smoothing=0.1,
            ema_decay=0.995,
        ),
    )  # fmt: skip


def mnist_plain() -> Config:
    """The most of MNIST that a plain ViT below a million parameters gives: 4×4 patches, six wider blocks.

    40 epochs of digits turned, sheared, scaled and bent. `python bench/recipes.py mnist-plain`: 99.63 ± 0.04 % of the
    test set (3 seeds) after 8,021 s on one thread of an AMD EPYC at 89 GFLOP/s, which is 3,245 s at 220. Seed 0 is the
    bundled ViT: every number of it can be followed from the pixels of a patch.
    """
    return Config(
        name="mnist-plain",
        model=ViTConfig(patch_size=4, dim=96, depth=6, num_heads=4, mlp_dim=192),
        data=DataConfig(
            val_fraction=0.05, augment=AugmentConfig(shift=2, rotate=12, scale=0.12, shear=8, elastic=1.2)
        ),
        train=TrainConfig(
            epochs=40, batch_size=256, optimizer="muon", muon_lr=0.02, lr=0.005, weight_decay=0.1, label_smoothing=0.1,
            ema_decay=0.999,
        ),
    )  # fmt: skip


def mnist_best() -> Config:
    """The most of MNIST below a million parameters: two stages of convolutions, the 28 inked of 49 tokens, four blocks.

    The augmentation of `mnist-plain`. `python bench/recipes.py mnist-best --threads 1`: 99.70 ± 0.02 % of the test set
    (3 seeds: 99.69, 99.72 and 99.68) after 3,453 s of CPU time on one thread of an AMD EPYC with AVX2 at 71 GFLOP/s,
    beside other work, which is 1,109 s at 220.
    """
    base = mnist_plain()
    return base.replace(
        name="mnist-best",
        model=base.model.replace(patch_size=1, stem_channels=(32, 64), stem_depth=3, tokens=28, depth=4),
        train=base.train.replace(epochs=24, precision="auto"),
    )


def cifar_fast() -> Config:
    """CIFAR-10 on two cores: two stages of convolutions leave 8×8 tokens for three blocks.

    `python bench/recipes.py cifar-fast --threads 1`: 91.08 ± 0.04 % of the test set (2 seeds) after 3,734 s of CPU time
    on one thread of an AMD EPYC at 85 GFLOP/s, in bfloat16, which is 1,443 s at 220.
    """
    return Config(
        name="cifar-fast",
        model=ViTConfig(
            image_size=32, channels=3, patch_size=1, stem_channels=(64, 128), stem_depth=2, dim=128, depth=3,
            num_heads=4, mlp_dim=256,
        ),
        data=DataConfig(name="cifar10", val_fraction=0.05, augment=AugmentConfig(shift=4, flip=True, erase=0.25)),
        train=TrainConfig(
            epochs=27, batch_size=128, optimizer="muon", muon_lr=0.02, lr=0.005, weight_decay=0.05,
            label_smoothing=0.1, ema_decay=0.998, precision="auto",
        ),
    )  # fmt: skip


def mnist_cnn() -> Config:
    """The CNN of `cnn` with the augmentation and length of `mnist-plain`, for a fair comparison.

    Three seeds in bfloat16: 99.43, 99.45 and 99.48 % of the test set; one in float32 took 1,845 s on one thread of an
    AMD EPYC and had 99.45 % (docs/log.md).
    """
    base, plain = cnn(), mnist_plain()
    return base.replace(
        name="mnist-cnn", data=plain.data, train=base.train.replace(epochs=20, ema_decay=0.999, precision="auto")
    )


def fashion_best() -> Config:
    """The most of Fashion-MNIST on two cores: two stages of convolutions leave 7×7 tokens for three blocks.

    Half of the images are mixed (CutMix). `python bench/recipes.py fashion-best --threads 1`: 94.94 ± 0.04 % of the
    test set (2 seeds: 94.91 and 94.96) after 3,275 s of CPU time on one thread of an AMD EPYC at 105 GFLOP/s, in
    bfloat16, which is 1,559 s at 220. Without mixing, in 40 epochs: 94.67 %.
    """
    return Config(
        name="fashion-best",
        model=ViTConfig(
            patch_size=1, stem_channels=(64, 128), stem_depth=2, dim=128, depth=3, num_heads=4, mlp_dim=256
        ),
        data=DataConfig(
            name="fashion-mnist", val_fraction=0.05, augment=AugmentConfig(shift=2, flip=True, erase=0.3, mix=0.5)
        ),
        train=TrainConfig(
            epochs=48, batch_size=128, optimizer="muon", muon_lr=0.01, lr=0.0025, weight_decay=0.05,
            label_smoothing=0.1, ema_decay=0.998, precision="auto",
        ),
    )  # fmt: skip


# --- the article's models, as written: batch 32, NLL, SGD, no augmentation, no EMA. It does not give learning rate
# --- (0.01 here), momentum (none) and epochs (one for post-vit and post-cnn, three for the design table).

_ARTICLE_TRAIN = TrainConfig(
    epochs=1, batch_size=32, optimizer="sgd", lr=0.01, momentum=0.0, weight_decay=0.0, schedule="constant",
    warmup_fraction=0.0, loss="nll", eval_batch_size=32,
)  # fmt: skip


def post_vit() -> Config:
    """The article's ViT as written: attention mixes the images of a batch, never the patches of one image."""
    return Config(name="post-vit", model=ArticleViTConfig(), train=_ARTICLE_TRAIN)


def post_cnn() -> Config:
    """The article's CNN as written."""
    return Config(name="post-cnn", model=ArticleCNNConfig(), train=_ARTICLE_TRAIN)


def post_design() -> Config:
    """The earlier article's design table as written: two layers, residuals from the normalised stream."""
    return Config(name="post-design", model=ArticleDesignConfig(), train=_ARTICLE_TRAIN.replace(epochs=3))


# --- the paper's models (Table 1) and DeiT's two smaller ones, at 224 pixels with 1000 classes --------------


def _published(name: str, patch_size: int, dim: int, depth: int, num_heads: int) -> Config:
    return Config(
        name=name,
        model=ViTConfig(
            image_size=224, channels=3, num_classes=1000, patch_size=patch_size, dim=dim, depth=depth,
            num_heads=num_heads, mlp_dim=4 * dim,
        ),
        data=DataConfig(name="", image_size=224, channels=3),
        # the paper's fine-tuning: SGD, momentum 0.9, no weight decay, batch 512, cosine, clipped at norm 1; 512 images
        # at a time would take more memory than a laptop has
        train=TrainConfig(
            epochs=10, batch_size=512, micro_batch=16, optimizer="sgd", lr=0.03, momentum=0.9, weight_decay=0.0,
            clip_norm=1.0,
        ),
    )  # fmt: skip


def vit_b16() -> Config:
    """ViT-B/16 of the paper's Table 1: 86,567,656 parameters."""
    return _published("vit-b16", 16, 768, 12, 12)


def vit_b32() -> Config:
    """ViT-B/32 of the paper's Table 1."""
    return _published("vit-b32", 32, 768, 12, 12)


def vit_l16() -> Config:
    """ViT-L/16 of the paper's Table 1: 304,326,632 parameters by the equations (the table prints 307M)."""
    return _published("vit-l16", 16, 1024, 24, 16)


def vit_l32() -> Config:
    """ViT-L/32 of the paper's Table 1."""
    return _published("vit-l32", 32, 1024, 24, 16)


def vit_h14() -> Config:
    """ViT-H/14 of the paper's Table 1: 632,045,800 parameters."""
    return _published("vit-h14", 14, 1280, 32, 16)


def vit_ti16() -> Config:
    """DeiT's tiny model, not the paper's: ViT-Ti/16."""
    return _published("vit-ti16", 16, 192, 12, 3)


def vit_s16() -> Config:
    """DeiT's small model, not the paper's: ViT-S/16."""
    return _published("vit-s16", 16, 384, 12, 6)


PRESETS: dict[str, Callable[[], Config]] = {
    function().name: function
    for function in (
        vit, vit_p4, vit_hybrid, cnn, mixer, mnist_fast, mnist_vit, mnist_tiny, mnist_plain, mnist_best, mnist_cnn,
        fashion_best, cifar_fast, post_vit, post_cnn, post_design, vit_b16, vit_b32, vit_l16, vit_l32, vit_h14,
        vit_ti16, vit_s16,
    )
}  # fmt: skip


def preset(name: str) -> Config:
    """Return the preset of that name."""
    if name == "auto":
        raise ConfigError(
            "'auto' is no preset: it chooses every setting from the data, in `vitreous train --data …` and"
            " `vitreous compare auto cnn --data …`"
        )
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"there is no preset {name!r}; {hint}choose from {', '.join(PRESETS)}")
    return PRESETS[name]()
