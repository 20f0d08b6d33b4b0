"""Rows about sizes and training: the paper's Table 1, Table 3 and its fine-tuning settings (App. B.1.1, Table 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from vitreous.config import Config, ModelConfig, ViTConfig
from vitreous.conformance.rows import Measurement, Subject, differs, does_not_apply, same, same_unless
from vitreous.models import count_parameters
from vitreous.models.summary import count_parameters_of
from vitreous.reports.formats import by

# --- Table 1 -------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    depth: int
    dim: int
    mlp_dim: int
    num_heads: int


TABLE_1 = {
    "Base": Sizes(depth=12, dim=768, mlp_dim=3072, num_heads=12),
    "Large": Sizes(depth=24, dim=1024, mlp_dim=4096, num_heads=16),
    "Huge": Sizes(depth=32, dim=1280, mlp_dim=5120, num_heads=16),
}
PRINTED_PARAMETERS = {"Base": "86M", "Large": "307M", "Huge": "632M"}


def sizes_of(subject: Subject) -> Sizes:
    """Return the sizes counted on the model where one was given, else those of its configuration."""
    if subject.given is not None:
        block = next(subject.parts.blocks())
        hidden, width = block.fc1.weight.shape
        return Sizes(len(subject.parts.originals), width, hidden, block.num_heads)
    config: Any = subject.model_config  # the article's ViT has a fixed depth and MLP
    return Sizes(getattr(config, "depth", 4), config.dim, getattr(config, "mlp_dim", 3000), config.num_heads)


def nearest_variant(sizes: Sizes) -> str:
    def closeness(name: str) -> tuple[int, int]:
        variant = TABLE_1[name]
        return sum(a == b for a, b in zip(variant, sizes, strict=True)), -abs(variant.dim - sizes.dim)

    return max(TABLE_1, key=closeness)


def compare_size(field: str, subject: Subject) -> Measurement:
    sizes = sizes_of(subject)
    variant, here = nearest_variant(sizes), getattr(sizes, field)
    expected = getattr(TABLE_1[variant], field)
    return same(str(here), variant) if here == expected else differs(str(here), f"nearest is {variant}, {expected}")


def parameters_by_the_equations(variant: Sizes, config: ModelConfig) -> int:
    """Count the parameters of Eq. 1–4, with biases: E, class token, positions, L blocks, LN, linear head."""
    D, M = variant.dim, variant.mlp_dim
    N, inputs = 16, 49  # the article's models
    if isinstance(config, ViTConfig):
        channels = config.stem_channels[-1] if config.stem_channels else config.channels
        N, inputs = config.num_patches, config.patch_size[0] * config.patch_size[1] * channels
    embedding = (inputs + 1) * D + D + (N + 1) * D
    block = 2 * D + (D + 1) * 3 * D + (D + 1) * D + 2 * D + (D + 1) * M + (M + 1) * D
    return embedding + variant.depth * block + 2 * D + (D + 1) * config.num_classes


def parameters(subject: Subject) -> Measurement:
    config, given = subject.model_config, subject.given
    count = count_parameters_of(config) if given is None else count_parameters(given)
    variant = nearest_variant(sizes_of(subject))
    expected = parameters_by_the_equations(TABLE_1[variant], config)
    if count != expected:
        return differs(f"{count:,}", f"by the equations, {variant} with these patches and classes has {expected:,}")
    return same(f"{count:,}", f"as by the equations for {variant}; the table prints {PRINTED_PARAMETERS[variant]}")


# --- Table 3 and fine-tuning ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One setting of the paper, and where a configuration has it."""

    name: str
    path: str
    accepted: tuple[Any, ...]
    text: str = ""  # the paper's value; empty: the accepted values
    tolerance: float = 0.0

    def mismatch(self, config: Config) -> str:
        """Return "batch 128, paper 512", or nothing if the configuration has an accepted value."""
        section, name = self.path.split(".")
        default = 0.1 if name == "dropout" and config.model.kind == "post-vit" else 0.0  # torch's encoder layer
        here = getattr(getattr(config, section), name, default)
        if here in self.accepted or (self.tolerance and min(abs(here - v) for v in self.accepted) < self.tolerance):
            return ""
        return f"{self.name} {_text(here)}, paper {self.text or '/'.join(map(_text, self.accepted))}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return by(*value) if value[0] > 1 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_NO_EMA = Setting("averaged weights", "train.ema_decay", (0.0,))
_NOT_USED = [
    Setting("label smoothing", "train.label_smoothing", (0.0,)),
    Setting("stochastic depth", "model.drop_path", (0.0,)),
]


def _pretraining(
    *, images: float, epochs: tuple[int, ...], lr: tuple[float, ...], schedule: str, weight_decay: float,
    dropout: float, clip_norm: float,
) -> list[Setting]:  # fmt: skip
    """Return the settings of one line of Table 3."""
    warmups = tuple(10_000 * 4096 / (images * count) for count in epochs)  # 10k steps as a share of all
    return [
        Setting("optimizer", "train.optimizer", ("adamw",), "Adam"),
        Setting("betas", "train.betas", ((0.9, 0.999),)),
        Setting("batch", "train.batch_size", (4096,)),
        Setting("warm-up", "train.warmup_fraction", warmups, f"10k steps ({warmups[0]:.1%} of all)", tolerance=0.005),
        Setting("decay", "train.schedule", (schedule,)),
        Setting("epochs", "train.epochs", epochs),
        Setting("learning rate", "train.lr", lr),
        Setting("weight decay", "train.weight_decay", (weight_decay,)),
        Setting("dropout", "model.dropout", (dropout,)),
        Setting("clipping", "train.clip_norm", (clip_norm,)),
        Setting("resolution", "model.image_size", ((224, 224),)),
        _NO_EMA,
        *_NOT_USED,
    ]


_PRETRAINING = {
    "JFT-300M": _pretraining(
        images=303e6, epochs=(7, 14), lr=(8e-4, 6e-4, 4e-4, 3e-4), schedule="linear", weight_decay=0.1, dropout=0.0,
        clip_norm=0.0,
    ),
    "ImageNet-21k": _pretraining(
        images=14e6, epochs=(90, 30), lr=(1e-3,), schedule="linear", weight_decay=0.03, dropout=0.1, clip_norm=0.0
    ),
    "ImageNet": _pretraining(
        images=1.28e6, epochs=(300,), lr=(3e-3,), schedule="cosine", weight_decay=0.3, dropout=0.1, clip_norm=1.0
    ),
}  # fmt: skip
_FINE_TUNING = [
    Setting("optimizer", "train.optimizer", ("sgd",)),
    Setting("momentum", "train.momentum", (0.9,)),
    Setting("batch", "train.batch_size", (512,)),
    Setting("decay", "train.schedule", ("cosine",)),
    Setting("learning rate", "train.lr", (0.001, 0.003, 0.01, 0.03, 0.06)),
    Setting("weight decay", "train.weight_decay", (0.0,)),
    Setting("clipping", "train.clip_norm", (1.0,)),
    Setting("resolution", "model.image_size", ((384, 384),)),
    *_NOT_USED,  # averaged weights are used for Table 2
]


def _compare(settings: list[Setting], config: Config, prefix: str = "") -> Measurement:
    faults = [mismatch for setting in settings if (mismatch := setting.mismatch(config))]
    return same_unless(faults, f"{prefix}{len(settings) - len(faults)} of {len(settings)} settings")


def table_3(subject: Subject) -> Measurement:
    config = subject.config
    if config is None:
        return does_not_apply("this model's training settings are unknown")
    if config.train.optimizer == "sgd":  # the paper pre-trains with Adam
        return does_not_apply("SGD, which the paper uses for fine-tuning: see that row")
    measured = [_compare(settings, config, f"nearest to {name}: ") for name, settings in _PRETRAINING.items()]
    return min(measured, key=lambda row: row.note.count(", paper "))


def fine_tuning(subject: Subject) -> Measurement:
    config = subject.config
    if config is None:
        return does_not_apply("this model's training settings are unknown")
    if config.train.optimizer != "sgd":
        return does_not_apply(f"trained from scratch, with {config.train.optimizer}: see Table 3")
    return _compare(_FINE_TUNING, config)
