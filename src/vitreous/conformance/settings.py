"""Rows about sizes and training: the paper's Table 1, Table 3 and its fine-tuning settings (App. B.1.1, Table 4).

The paper's side was read in a public transcription of its appendix and in the authors' repository
(google-research/vision_transformer: vit_jax/configs); what neither says is marked on the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, Config, ModelConfig, ViTConfig
from vitreous.conformance.probes import NO_TOKENS
from vitreous.conformance.sheet import Item, Row, Subject, differs, does_not_apply, item, same
from vitreous.models import count_parameters
from vitreous.models.summary import count_parameters_of

# --- Table 1 -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A line of Table 1."""

    name: str
    depth: int
    dim: int
    mlp_dim: int
    num_heads: int
    printed: str


TABLE_1 = (
    Variant("Base", 12, 768, 3072, 12, "86M"),
    Variant("Large", 24, 1024, 4096, 16, "307M"),
    Variant("Huge", 32, 1280, 5120, 16, "632M"),
)


@dataclass(frozen=True)
class Sizes:
    depth: int
    dim: int
    mlp_dim: int
    num_heads: int
    parameters: int


def sizes_of(subject: Subject) -> Sizes | None:
    """Counted on the model where one was given, else by arithmetic on its configuration; None: not a transformer."""
    config = subject.model_config
    if subject.given is not None and subject.parts is not None:
        block = next(subject.parts.blocks())
        hidden, width = block.fc1.weight.shape
        return Sizes(subject.parts.depth, width, hidden, block.num_heads, count_parameters(subject.given))
    if isinstance(config, ArticleViTConfig):
        return Sizes(4, config.dim, 3000, config.num_heads, count_parameters_of(config))
    if isinstance(config, ViTConfig | ArticleDesignConfig):
        return Sizes(config.depth, config.dim, config.mlp_dim, config.num_heads, count_parameters_of(config))
    return None


def nearest_variant(sizes: Sizes) -> Variant:
    def matches(variant: Variant) -> tuple[int, float]:
        hits = sum(getattr(variant, name) == getattr(sizes, name) for name in ("depth", "dim", "mlp_dim", "num_heads"))
        return hits, -abs(variant.dim - sizes.dim)

    return max(TABLE_1, key=matches)


def _size_item(field: str, name: str) -> Item:
    @item(f"table1-{field.replace('_', '-')}", f"Table 1: {name}", "Base 12, Large 24, Huge 32")
    def measure(subject: Subject) -> Row:
        sizes = sizes_of(subject)
        paper = ", ".join(f"{variant.name} {getattr(variant, field)}" for variant in TABLE_1)
        if sizes is None:
            return does_not_apply(NO_TOKENS, paper)
        variant, here = nearest_variant(sizes), getattr(sizes, field)
        if here == getattr(variant, field):
            return same(str(here), variant.name, paper)
        return differs(str(here), f"nearest is {variant.name}, {getattr(variant, field)}", paper)

    return measure


depth, width = _size_item("depth", "layers"), _size_item("dim", "width D")
mlp_size, heads = _size_item("mlp_dim", "MLP size"), _size_item("num_heads", "heads")


def parameters_by_the_equations(variant: Variant, config: ModelConfig) -> int:
    """Eq. 1–4 written out, with biases, one linear head: E, class token, positions, L blocks, LN, head."""
    D, M = variant.dim, variant.mlp_dim
    N, inputs = 16, 49  # the posts' models
    if isinstance(config, ViTConfig):
        channels = config.stem_channels[-1] if config.stem_channels else config.channels
        N, inputs = config.num_patches, config.patch_size[0] * config.patch_size[1] * channels
    embedding = (inputs + 1) * D + D + (N + 1) * D
    block = 2 * D + (D + 1) * 3 * D + (D + 1) * D + 2 * D + (D + 1) * M + (M + 1) * D
    return embedding + variant.depth * block + 2 * D + (D + 1) * config.num_classes


@item(
    "table1-parameters",
    "Table 1: parameters",
    "Base 86M, Large 307M, Huge 632M (by the equations L/16 has 304,326,632 and L/32 306,535,400)",
    "how the table's 307M for Large was counted",
)
def parameters(subject: Subject) -> Row:
    sizes, config = sizes_of(subject), subject.model_config
    if sizes is None:
        return does_not_apply(NO_TOKENS)
    variant = nearest_variant(sizes)
    expected = parameters_by_the_equations(variant, config)
    here = f"{sizes.parameters:,}"
    if sizes.parameters != expected:
        return differs(here, f"by the equations, {variant.name} with these patches and classes has {expected:,}")
    return same(here, f"what the equations give for {variant.name}; the table prints {variant.printed}")


# --- Table 3 and fine-tuning ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One setting: what the paper has, and whether a configuration has it too."""

    name: str
    paper: str
    here: Callable[[Config], Any]
    accepts: Callable[[Any], bool]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "×".join(map(str, value)) if value[0] > 1 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is(name: str, value: Any, here: Callable[[Config], Any]) -> Setting:
    return Setting(name, _text(value), here, lambda found: found == value)


def _one_of(name: str, values: tuple[float, ...], here: Callable[[Config], Any]) -> Setting:
    return Setting(name, "/".join(map(_text, values)), here, lambda found: found in values)


def _dropout(config: Config) -> float:
    return getattr(config.model, "dropout", 0.1 if config.model.kind == "post-vit" else 0.0)


#: Table 3's lines: images, epochs, base learning rates, decay, weight decay, dropout, clipping.
_LINES: dict[str, tuple[float, tuple[float, ...], tuple[float, ...], str, float, float, float]] = {
    "JFT-300M": (303e6, (7, 14), (8e-4, 6e-4, 4e-4, 3e-4), "linear", 0.1, 0.0, 0.0),
    "ImageNet-21k": (14e6, (90, 30), (1e-3,), "linear", 0.03, 0.1, 0.0),
    "ImageNet": (1.28e6, (300,), (3e-3,), "cosine", 0.3, 0.1, 1.0),
}


def _table_3(line: str) -> list[Setting]:
    images, epochs, rates, decay, weight_decay, dropout, clip = _LINES[line]
    warmups = [10_000 * 4096 / (images * count) for count in epochs]  # 10k steps, as a share of all
    return [
        Setting("optimizer", "Adam", lambda c: c.train.optimizer, lambda found: found == "adamw"),
        _is("betas", (0.9, 0.999), lambda c: c.train.betas),
        _is("batch", 4096, lambda c: c.train.batch_size),
        Setting(
            "warm-up", f"10k steps ({warmups[0]:.1%} of all)", lambda c: c.train.warmup_fraction,
            lambda found: any(abs(found - warmup) < 0.005 for warmup in warmups),
        ),
        _is("decay", decay, lambda c: c.train.schedule),
        _one_of("epochs", epochs, lambda c: c.train.epochs),
        _one_of("learning rate", rates, lambda c: c.train.lr),
        _is("weight decay", weight_decay, lambda c: c.train.weight_decay),
        _is("dropout", dropout, _dropout),
        _is("clipping", clip, lambda c: c.train.clip_norm),
        _is("resolution", (224, 224), lambda c: c.model.image_size),
        *_NOT_USED,
    ]  # fmt: skip


_NOT_USED = [
    _is("label smoothing", 0.0, lambda c: c.train.label_smoothing),
    _is("averaged weights", 0.0, lambda c: c.train.ema_decay),
    _is("stochastic depth", 0.0, lambda c: getattr(c.model, "drop_path", 0.0)),
]
_FINE_TUNING = [
    _is("optimizer", "sgd", lambda c: c.train.optimizer),
    _is("momentum", 0.9, lambda c: c.train.momentum),
    _is("batch", 512, lambda c: c.train.batch_size),
    _is("decay", "cosine", lambda c: c.train.schedule),
    _one_of("learning rate", (0.001, 0.003, 0.01, 0.03, 0.06), lambda c: c.train.lr),
    _is("weight decay", 0.0, lambda c: c.train.weight_decay),
    _is("clipping", 1.0, lambda c: c.train.clip_norm),
    _is("resolution", (384, 384), lambda c: c.model.image_size),
    *(setting for setting in _NOT_USED if setting.name != "averaged weights"),  # used for Table 2 only
]


def _mismatches(settings: list[Setting], config: Config) -> list[str]:
    return [
        f"{setting.name} {_text(setting.here(config))}, paper {setting.paper}"
        for setting in settings
        if not setting.accepts(setting.here(config))
    ]


def _fine_tunes(config: Config) -> bool:
    """SGD is what the paper fine-tunes with; it pre-trains with Adam."""
    return config.train.optimizer == "sgd"


@item(
    "table3",
    "Table 3: training",
    "Adam β = (0.9, 0.999), batch 4096, 10k warm-up steps, 224 pixels; JFT: linear decay, weight decay 0.1;"
    " ImageNet-21k: linear, 0.03, dropout 0.1; ImageNet: cosine, 0.3, dropout 0.1, clipped at norm 1",
    "whether the paper's Adam decouples weight decay, as AdamW does; label smoothing (Table 3 does not mention any)",
)
def table_3(subject: Subject) -> Row:
    config = subject.config
    if config is None:
        return does_not_apply("nothing is known about this model's training")
    if _fine_tunes(config):
        return does_not_apply("SGD, which the paper uses for fine-tuning: see that row")
    lines = {line: _mismatches(_table_3(line), config) for line in _LINES}
    line = min(lines, key=lambda name: len(lines[name]))
    total = len(_table_3(line))
    here = f"nearest to {line}: {total - len(lines[line])} of {total} settings"
    return differs(here, "; ".join(lines[line])) if lines[line] else same(here)


@item(
    "finetuning",
    "Fine-tuning settings",
    "SGD, momentum 0.9, no weight decay, batch 512, cosine, clipped at norm 1, 384 pixels; learning rates by data set",
    "warm-up: Table 4 does not give one (the authors' code: 500 steps)",
)
def fine_tuning(subject: Subject) -> Row:
    config = subject.config
    if config is None:
        return does_not_apply("nothing is known about this model's training")
    if not _fine_tunes(config):
        return does_not_apply(f"trained from scratch, with {config.train.optimizer}: see Table 3")
    faults = _mismatches(_FINE_TUNING, config)
    here = f"{len(_FINE_TUNING) - len(faults)} of {len(_FINE_TUNING)} settings"
    return differs(here, "; ".join(faults)) if faults else same(here)
