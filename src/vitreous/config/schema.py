"""Typed, frozen configurations: one schema for presets, TOML files, `--set` overrides and the run folder.

Everything is validated when it is made. What can be derived is a property, so an override cannot leave it stale. A
`Config` is complete: with the data it names, it determines a training.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vitreous.config.fields import (
    Count,
    FolderName,
    Fraction,
    Name,
    NonNegative,
    PixelValue,
    Positive,
    Seed,
    Size,
    Tokens,
)
from vitreous.errors import ConfigError, quoted


def _is_denormal(value: Any) -> bool:
    return isinstance(value, float) and abs(value) < sys.float_info.min


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    @model_validator(mode="before")
    @classmethod
    def _flush_denormals(cls, values: Any) -> Any:
        """Take a number below 2e-308 for zero, as the CPU does once training has begun (`hardware.prepare`)."""
        if not isinstance(values, Mapping):
            return values
        return {key: 0.0 if _is_denormal(value) else value for key, value in values.items()}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated as a whole."""
        return build_config(type(self), {**self.model_dump(), **changes})


AnyConfig = TypeVar("AnyConfig", bound=BaseModel)


def build_config(kind: type[AnyConfig], values: Mapping[str, Any], source: str = "") -> AnyConfig:
    """Validate `values` as a `kind`; a mistake raises one sentence that names the field and the value."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        section, *path = (str(part) for part in first["loc"]) if first["loc"] else ("",)
        # pydantic puts the kind of model between "model" and its field; users write model.depth
        where = ".".join([section, *(path[1:] if section == "model" else path)])
        message = first["msg"].removeprefix("Value error, ")
        prefix = f"{source}: " if source else ""
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{prefix}there is no setting {where!r}; `vitreous presets NAME` prints all of them"
            ) from None
        if not where or first["type"] == "value_error":
            raise ConfigError(prefix + message) from None
        raise ConfigError(f"{prefix}{where}={quoted(first['input'])}: {message[0].lower() + message[1:]}") from None


# --- models ------------------------------------------------------------------------------------------------


class _ImageModel(_Frozen):
    """What every model must know about its images; `train` fills these in from the data."""

    image_size: Size = (28, 28)
    channels: Positive = 1
    num_classes: Positive = 10


class ViTConfig(_ImageModel):
    """The paper's ViT and its documented variants. Defaults are the paper's where it gives them."""

    kind: Literal["vit"] = "vit"
    patch_size: Size = (7, 7)  # P: pixels, or height and width
    #: pixels (with a stem: features) that a token sees, centred on its patch; None: the patch, as in the paper
    window: Size | None = None
    #: patches that become tokens: all, the K that differ most from the background, or a K chosen from the data
    tokens: Tokens = "all"
    #: pixel value of each channel, 0 to 255, from which `tokens` and `window` count; None: the data's most frequent one
    background: tuple[PixelValue, ...] | None = None
    embed_hidden: Positive | None = None  # width of a hidden layer (GELU) in the patch embedding; None: the paper's
    dim: Positive = 64  # D: numbers per token
    depth: Count = 4  # L: layers
    num_heads: Positive = 2  # k: heads per layer; they divide the width
    mlp_dim: Positive = 256  # width of the MLP's hidden layer
    pool: Literal["cls", "mean", "seq"] = "cls"
    positions: Literal["none", "learned", "learned-2d", "sincos-2d", "relative"] = "learned"
    #: conv stages before the patches; each divides height and width by 2
    stem_channels: Annotated[tuple[Positive, ...], Field(max_length=16)] = ()
    stem_depth: Count = 1  # 3×3 convolutions per stage: the first has stride 2, the others are residual blocks
    head: Literal["linear", "mlp"] = "linear"  # the paper: mlp (tanh) in pre-training, linear in fine-tuning
    head_hidden: Positive | None = None  # width of the mlp head; None: dim, as in the paper's code
    zero_head: bool = True  # the paper starts the fine-tuning head at zero
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6  # Flax's and timm's; Hugging Face 1e-12, torch 1e-5
    gelu: Literal["erf", "tanh", "quick"] = "erf"  # tanh is Flax's, quick CLIP's x σ(1.702 x)
    qkv_bias: bool = True  # of queries, keys and values
    dropout: Fraction = 0.0  # after the embedding, in the MLP and on every branch
    drop_path: Fraction = 0.0  # stochastic depth, rising linearly to this at the last block
    fit: Literal["exact", "pad", "resize"] = "exact"  # what to do when the patch does not divide the image
    registers: Annotated[int, Field(ge=0, le=1000)] = (
        0  # learned tokens that the head does not read (Darcet et al., 2024)
    )
    pre_norm: bool = False  # a LayerNorm of the tokens before the first block, as CLIP has
    norm_after_pool: bool = False  # normalise the mean of the patches, not each patch: timm's fc_norm, MAE's fine-tunes

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def has_class_token(self) -> bool:
        return self.pool == "cls"

    @property
    def feature_size(self) -> tuple[int, int]:
        """Height and width of what is split into patches: the image, or the conv stem's features."""
        height, width = self.image_size
        for _ in self.stem_channels:
            height, width = -(-height // 2), -(-width // 2)
        return height, width

    @property
    def fitted_size(self) -> tuple[int, int]:
        """`feature_size`, rounded up to a multiple of the patch where `fit` allows it."""
        (height, width), (ph, pw) = self.feature_size, self.patch_size
        if self.fit == "exact":
            return height, width
        return -(-height // ph) * ph, -(-width // pw) * pw

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.fitted_size[0] // self.patch_size[0], self.fitted_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: the class token, then the registers."""
        return self.has_class_token + self.registers

    @property
    def num_tokens(self) -> int:
        return self.num_patches + self.num_prefix_tokens

    @property
    def kept_patches(self) -> int:
        """Patches of an image that become tokens."""
        return self.num_patches if isinstance(self.tokens, str) else min(self.tokens, self.num_patches)

    @property
    def kept_tokens(self) -> int:
        """Tokens that are computed: `num_tokens` unless blank patches are skipped."""
        return self.kept_patches + self.num_prefix_tokens

    @property
    def knows_background(self) -> bool:
        return self.tokens != "all" or self.window is not None

    @property
    def patch_pixels(self) -> tuple[int, int]:
        """Height and width of a patch in pixels of the image, before `fit`."""
        stride = 2 ** len(self.stem_channels)
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def divisor(self) -> tuple[int, int]:
        """Numbers of which height and width must be multiples: the patch, times 2 per stage of the stem."""
        return self.patch_pixels if self.fit == "exact" else (1, 1)

    def check_geometry(self) -> Self:
        """Raise if the patches do not fill the image.

        Checked when the model is built: the image size is only known once the data are loaded.
        """
        (height, width), (ph, pw) = self.feature_size, self.patch_size
        if self.fit == "exact" and (height % ph or width % pw):
            what = "the conv stem's features" if self.stem_channels else "the images"
            common = math.gcd(height, width)
            divisors = [p for p in range(2, min(common, 1024) + 1) if common % p == 0]
            fitting = f"choose --set model.patch_size from {', '.join(map(str, divisors))}, or " if divisors else ""
            if not self.stem_channels:
                near = [max(1, round(side / patch)) * patch for side, patch in ((height, ph), (width, pw))]
                fitting += f"--set data.image_size=[{near[0]},{near[1]}], or "
            raise ConfigError(
                f"model.patch_size={_size(self.patch_size)} does not divide {what} of {height}×{width} pixels:"
                f" {fitting}--set model.fit=pad (zeros at the right and the bottom), or --set model.fit=resize (stretch"
                " to the next multiple)"
            )
        if self.background is not None and len(self.background) not in (1, self.channels):
            raise ConfigError(
                f"model.background={list(self.background)} has {len(self.background)} values for {self.channels}"
                " channels: give one for all or one for each"
            )
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_heads(self.dim, self.num_heads)
        if self.positions == "learned-2d" and self.dim % 2:
            raise ValueError(f"model.dim={self.dim} must be even for positions='learned-2d'")
        if self.positions == "sincos-2d" and self.dim % 4:
            raise ValueError(f"model.dim={self.dim} must be a multiple of 4 for positions='sincos-2d'")
        if self.tokens != "all" and self.positions == "relative":
            raise ValueError(
                f"model.tokens={self.tokens} skips patches, and model.positions='relative' needs all of them: choose"
                " positions='learned' or tokens='all'"
            )
        if self.norm_after_pool and self.pool != "mean":
            raise ValueError(
                f"model.norm_after_pool=true needs model.pool=mean, not {self.pool}: the class token alone is the same"
                " before and after"
            )
        self._check_window()
        return self

    def _check_window(self) -> None:
        if self.window is None:
            return
        margins = [window - patch for window, patch in zip(self.window, self.patch_size, strict=True)]
        if any(margin < 0 or margin % 2 for margin in margins):
            raise ValueError(
                f"model.window={_size(self.window)} must exceed model.patch_size={_size(self.patch_size)} by an even"
                " number of pixels, half of it on each side"
            )


def _check_heads(dim: int, num_heads: int) -> None:
    if dim % num_heads:
        raise ValueError(f"model.dim={dim} must be a multiple of model.num_heads={num_heads}")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


class CNNConfig(_ImageModel):
    """The article's convolutional network, returning logits."""

    kind: Literal["cnn"] = "cnn"
    conv_channels: tuple[Positive, Positive] = (32, 64)
    hidden: Positive = 128
    conv_dropout: Fraction = 0.25
    hidden_dropout: Fraction = 0.5

    @property
    def flat_features(self) -> int:
        """Inputs of the linear layer, after two 3×3 convolutions without padding and a 2×2 max-pool."""
        return self.conv_channels[1] * ((self.image_size[0] - 4) // 2) * ((self.image_size[1] - 4) // 2)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.image_size) < 6:
            raise ValueError(f"the CNN needs images of at least 6×6 pixels, not {_size(self.image_size)}")
        return self


class MixerConfig(_ImageModel):
    """A ViT with a dense layer over the tokens in place of attention (MLP-Mixer), the mean of which is classified."""

    kind: Literal["mixer"] = "mixer"
    patch_size: Size = (7, 7)
    dim: Positive = 64
    depth: Count = 4
    token_dim: Positive = 32  # hidden width of the layers that mix tokens
    mlp_dim: Positive = 128

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    def check_geometry(self) -> Self:
        """Raise if the patches do not fill the image; checked when the model is built, as for a ViT."""
        if self.image_size[0] % self.patch_size[0] or self.image_size[1] % self.patch_size[1]:
            raise ConfigError(
                f"model.patch_size={_size(self.patch_size)} does not divide the images of {_size(self.image_size)}"
                " pixels: choose a patch that does, or another --set data.image_size"
            )
        return self


class _ArticleModel(_ImageModel):
    @model_validator(mode="after")
    def _check_geometry(self) -> Self:
        if (*self.image_size, self.channels, self.num_classes) != (28, 28, 1, 10):
            raise ValueError(
                f"the article's models are written for 28×28×1 images of 10 classes, not {_size(self.image_size)}×"
                f"{self.channels} of {self.num_classes}; `vit` and `cnn` take any"
            )
        if isinstance(self, ArticleViTConfig | ArticleDesignConfig):
            _check_heads(self.dim, self.num_heads)
        return self


class ArticleCNNConfig(_ArticleModel):
    """The article's CNN as written, log-softmax included."""

    kind: Literal["post-cnn"] = "post-cnn"


class ArticleViTConfig(_ArticleModel):
    """The article's ViT as written, flaws included. It does not give D, H and MLP: these are ours."""

    kind: Literal["post-vit"] = "post-vit"
    dim: Positive = 64
    num_heads: Positive = 4
    mlp: Positive = 3000  # the article takes this argument and never uses it
    feedforward: Positive = 3000  # of its encoder layers; a smaller one makes `bundled:broken` small
    class_token_seed: Seed = 0  # its class vector is not in the state dict: a run rebuilds it from this
    #: flaws to correct, none by default; docs/article.md measures "attention"
    fixes: tuple[Literal["attention", "normalisation", "class-token", "pre-norm", "head"], ...] = ()


class ArticleDesignConfig(_ArticleModel):
    """The earlier article's design table. It does not give D, heads, MLP width and head: these are ours."""

    kind: Literal["post-design"] = "post-design"
    dim: Positive = 64
    num_heads: Positive = 4
    mlp_dim: Positive = 128
    depth: Count = 2
    positions: Literal["as-written", "per-index"] = "as-written"
    residual: Literal["normalised", "paper"] = "normalised"


ModelConfig = Annotated[
    ViTConfig | CNNConfig | MixerConfig | ArticleCNNConfig | ArticleViTConfig | ArticleDesignConfig,
    Field(discriminator="kind"),
]


# --- data --------------------------------------------------------------------------------------------------


class AugmentConfig(_Frozen):
    """Batched augmentation; none by default. Amounts are the ends of a uniform range around "unchanged"."""

    shift: NonNegative = 0.0  # pixels; whole ones unless rotation, scale, shear or elastic is on
    rotate: NonNegative = 0.0  # degrees
    scale: Fraction = 0.0  # 0.1: from 1/1.1 to 1.1 times the size
    shear: NonNegative = 0.0  # degrees
    elastic: NonNegative = 0.0  # pixels by which a point of a coarse 4×4 grid may move
    erase: Fraction = 0.0  # side of an erased square, as a share of the image's
    flip: bool = False  # left-right
    #: random crops, resized to the image size: the smallest share of the area that one keeps, such as 0.35; 0: none
    crop: Fraction = 0.0
    #: share of the images of which a rectangle, and as much of the label, is another training image's (CutMix)
    mix: Annotated[float, Field(ge=0, le=1)] = 0.0


class DataConfig(_Frozen):
    """Which images, and how they are split. Size, channels and classes come from the data unless set here."""

    name: Name = "mnist"  # mnist, fashion-mnist, cifar10, digits, a folder or a file; "" where a preset names none
    image_size: Size | None = None  # resize to this; None: keep the data's size
    #: how images of another aspect ratio get that size; None: stretch where all have it within 2 %, otherwise crop
    fit: Literal["stretch", "crop", "letterbox"] | None = None
    channels: Literal[1, 3] | None = None
    skip_corrupt: bool = False  # leave out files that cannot be read, instead of refusing the folder
    test_fraction: Fraction = 0.2  # split from the training set, stratified, where the source has no test set; 0: none
    val_fraction: Fraction = 0.1  # likewise, of what is left; 0: none
    split_seed: Seed = 0
    train_per_class: Positive | None = None  # keep only this many training images per class
    #: for studies: the patches of every image in another order, the same in all (fixed) or one of its own (each)
    shuffle_patches: Literal["none", "fixed", "each"] = "none"
    shuffle_patch_size: Size = (7, 7)
    augment: AugmentConfig = AugmentConfig()


# --- training ----------------------------------------------------------------------------------------------


class TrainConfig(_Frozen):
    epochs: Annotated[float, Field(gt=0, le=1e9)] = 10.0  # passes over the training images; may be a fraction
    min_steps_per_epoch: Positive = 10  # of a small set an epoch is several passes, until it has this many steps
    budget_seconds: Annotated[float, Field(gt=0, le=1e9)] | None = (
        None  # converted to a number of steps before the first step
    )
    batch_size: Positive = 128  # images per step, of all processes together
    micro_batch: Positive | None = None  # images of a batch in memory at a time; None: all. The step is the same
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3  # the highest learning rate of the schedule
    muon_lr: Annotated[float, Field(gt=0)] = 0.02  # for matrices and kernels inside the network; the rest: AdamW's lr
    muon_steps: Count = (
        5  # of Newton–Schulz; three are better and quicker where a training takes a minute (docs/log.md)
    )
    weight_decay: NonNegative = 0.05  # of matrices; biases and norms have none
    momentum: Fraction = 0.9  # SGD's and Muon's
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_fraction: Fraction = 0.1  # of all steps, rising linearly from zero
    final_lr: Fraction = 0.0  # where the schedule ends, as a share of the peak
    label_smoothing: Fraction = 0.0  # share of the label that is spread over all classes
    loss: Literal["cross-entropy", "nll"] = "cross-entropy"  # nll: for models that return log-probabilities
    class_weights: Literal["none", "auto"] = "none"  # auto: images of rare classes count more (training/plan.py)
    teacher: Name | None = None  # distillation: a run, or bundled:cnn, whose predictions are a second label
    teacher_weight: Annotated[float, Field(ge=0, le=1)] = 0.5  # its share of the loss
    teacher_temperature: Annotated[float, Field(gt=0)] = 2.0  # of both models' probabilities
    clip_norm: NonNegative = 0.0  # 0: none
    ema_decay: Fraction = 0.0  # 0: none; otherwise the averaged weights are evaluated and kept
    early_stopping: Positive | None = None  # stop after this many validations without improvement; None: never
    keep: Literal["last", "best"] | None = None  # which weights; None: best with early_stopping, last without
    monitor: Literal["loss", "accuracy"] = "loss"  # of validation: what early_stopping and keep="best" go by
    #: epochs between validations; None: 1, or more where validating would take longer than training
    validate_every: Annotated[float, Field(gt=0, le=1e9)] | None = None
    eval_batch_size: Positive = 500  # images at a time in validation and test
    log_every: Positive = 50  # steps between lines of metrics.jsonl
    checkpoint_seconds: NonNegative = 30.0  # at most this much is lost to a crash; 0: after every step
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0  # how long one process waits for another
    #: of the products; auto: bfloat16 where this machine computes it much faster (bench/precision.py), or float32
    precision: Literal["float32", "bfloat16", "float64", "auto"] = "float32"
    threads: Positive | None = None  # None: all cores of this machine
    compile: bool = False  # torch.compile
    shard: bool = False  # divide a ViT's parameters, gradients and optimizer state among the processes (FSDP)
    activation_checkpointing: bool = False  # a ViT's blocks are computed again for the backward pass: less memory
    freeze: Literal["none", "backbone"] = "none"  # backbone: only the head learns (a linear probe)
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # factor of the learning rate per layer below the head

    @property
    def keeps_best(self) -> bool:
        return (self.keep or ("best" if self.early_stopping else "last")) == "best"


class StartConfig(_Frozen):
    """Fine-tuning: the weights to start from, and what their file may not state."""

    weights: Name | None = None  # a run folder or a published checkpoint; None: a fresh model
    num_heads: Positive | None = None  # where the file does not state it, as the following
    pool: Literal["cls", "mean"] | None = None
    gelu: Literal["erf", "tanh", "quick"] | None = None
    norm_eps: Annotated[float, Field(gt=0, lt=0.1)] | None = None
    trained_size: Size | None = None  # likewise, for grids that are not square
    allow_partial: bool = False  # load what fits and initialise the rest


class Config(_Frozen):
    """A complete training: which model, on which data, how, and from which seed."""

    name: FolderName = "custom"  # also of the run's folder
    model: ModelConfig = ViTConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    start: StartConfig = StartConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    reasons: tuple[str, ...] = ()  # what `auto` chose, and why

    @model_validator(mode="after")
    def _check(self) -> Config:
        if self.train.loss == "nll" and not self.model.kind.startswith("post-"):
            raise ValueError(
                f"train.loss='nll' is for the article's models, which return log-probabilities; {self.model.kind!r}"
                " returns logits: leave train.loss at 'cross-entropy'"
            )
        if self.train.loss == "nll" and self.train.label_smoothing:
            raise ValueError("train.label_smoothing has no effect with train.loss='nll': set it to 0")
        if self.train.loss == "nll" and self.data.augment.mix:
            raise ValueError("data.augment.mix needs train.loss='cross-entropy', which takes mixed labels, not 'nll'")
        for name in ("shard", "activation_checkpointing"):
            if getattr(self.train, name) and self.model.kind != "vit":
                raise ValueError(
                    f"train.{name} works by the blocks of a ViT, and a {self.model.kind!r} has none: leave it out, or"
                    " choose a ViT preset"
                )
        if self.train.freeze == "backbone" and self.model.kind != "vit":
            raise ValueError(
                f"train.freeze='backbone' is for ViTs; a {self.model.kind!r} is small enough to train whole: leave it"
                " out"
            )
        return self
