"""The paper's names for the steps of each model, and where `summary` finds their numbers.

Symbols are the paper's: B images of H × W × C, patches of P × P, N patches, width D, depth L, k heads of D_h = D / k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, MixerConfig, ModelConfig, ViTConfig
from vitreous.reports.formats import by


@dataclass(frozen=True)
class StepNames:
    """The names of one step, and where its numbers are recorded. `.0.` in a path stands for every block."""

    words: tuple[str, str, str, str]  # name, symbol, equation, shape in symbols
    module: str = ""  # its shape, parameters and product
    _: KW_ONLY
    products: tuple[str, ...] = ()  # where they are not the module's
    like: str = ""  # the module or product whose shape this step has, where it is not the module's
    owns: tuple[str, ...] | None = None  # the parameters, where they are not the module's
    shape: tuple[int | str, ...] | None = None  # where no module has this output
    numbers: str = ""
    tap: str = ""


def joined(*sizes: int | str) -> str:
    return by(*sizes, separator=" × ")


def _vit(c: ViTConfig) -> Iterator[StepNames]:
    tokens = " + ".join(["N", *["1"] * c.has_class_token, *["R"] * bool(c.registers)])
    stream = f"B × ({tokens}) × D" if "+" in tokens else f"B × {tokens} × D"
    yield from _patches(c)
    yield from _class_token_and_positions(c, stream)
    yield from _encoder_block(
        stream, "blocks.0.attn", qkv="blocks.0.attn.qkv", proj="blocks.0.attn.proj", fc1="blocks.0.mlp.fc1",
        fc2="blocks.0.mlp.fc2", products=(0, 2) if c.positions == "relative" else (0, 1), taps=True,
    )  # fmt: skip
    # LayerNorm's parameters are counted with the pooling: y is one step of the paper
    words = {
        "cls": ("normalise the class token", "y = LN(z_L⁰)", "Eq. 4", "B × D"),
        "mean": ("normalise, average", "y = mean LN(z_L)", "App. D.3", "B × D"),
        "seq": ("normalise, weight, sum", "y = softmax(LN(z_L) w)ᵀ LN(z_L)", "–", "B × D"),
    }[c.pool]
    if c.norm_after_pool:
        words = ("average, normalise", "y = LN(mean z_L)", "–", "B × D")
    numbers = f"{c.kept_tokens} × {c.dim} → {c.dim}"
    products, owns = ("pool_score#0", "#0"), ("norm", "pool_score")
    yield StepNames(words, products=products, owns=owns, shape=("B", c.dim), numbers=numbers, tap="pooled")
    if c.head == "mlp":
        yield StepNames(("hidden layer of the head, tanh", "tanh(y W_h)", "Sec. 3.1", "B × hidden"), "pre_logits")
    yield StepNames(("classify", "logits", "Sec. 3.1", "B × classes"), "head", tap="logits")


def _patches(c: ViTConfig) -> Iterator[StepNames]:
    features, patch = ("B × C′ × H′ × W′", "P²C′") if c.stem_channels else ("B × C × H × W", "P²C")
    module, hybrid = 0, ("x′", "Sec. 3.1, hybrid", features)  # ConvStem: a convolution, its GELU, residual blocks
    for stage in range(1, len(c.stem_channels) + 1):
        yield StepNames((f"stem {stage}: conv 3×3, stride 2, GELU", *hybrid), f"stem.{module}")
        for block in range(1, c.stem_depth):
            path, name = f"stem.{module + 1 + block}", f"stem {stage}.{block}: x′ + GELU(conv 3×3(LN(x′)))"
            yield StepNames((name, *hybrid), path, products=(f"{path}.conv#0",))
        module += 1 + c.stem_depth
    channels = c.stem_channels[-1] if c.stem_channels else c.channels
    if c.fitted_size != c.feature_size:
        words = ("pad with zeros" if c.fit == "pad" else "resize", "–", "–", features)
        sizes = f"{joined(*c.feature_size)} → {joined(*c.fitted_size)}"
        yield StepNames(words, shape=("B", channels, *c.fitted_size), numbers=sizes)
    window, part = c.window or c.patch_size, "patches" if c.window is None else "windows"
    words, size = (f"split into {part}", "x_p", "Sec. 3.1", f"B × N × {patch}"), math.prod(window) * channels
    sizes = f"{joined(*c.grid)} {part} of {joined(*window, channels)}"
    yield StepNames(words, shape=("B", c.num_patches, size), numbers=sizes)
    if c.kept_patches < c.num_patches:
        words = (f"keep the {part} with most ink", "x_p", "–", f"B × K × {patch}")
        yield StepNames(words, shape=("B", c.kept_patches, size), numbers=f"{c.kept_patches} of {c.num_patches}")
    # a convolution, or a product of those that are kept
    products = ("patch_embed.proj#0",) if c.kept_patches == c.num_patches else ("patch_embed#0",)
    if c.embed_hidden is None:
        yield StepNames(("project the patches", "x_p E", "Eq. 1", "B × N × D"), "patch_embed", products=products)
        return
    hidden, kept = c.embed_hidden, c.kept_patches
    words, sizes = (f"project the {part}, GELU", "GELU(x_p E₁)", "–", "B × N × hidden"), f"{kept} × {size} → {hidden}"
    yield StepNames(words, products=products, owns=("patch_embed.proj",), shape=("B", kept, hidden), numbers=sizes)
    yield StepNames(("project again", "… E₂", "–", "B × N × D"), "patch_embed.fc")


def _class_token_and_positions(c: ViTConfig, stream: str) -> Iterator[StepNames]:
    if c.has_class_token:
        words, sizes = (
            ("prepend the class token", "[x_class; x_p E]", "Eq. 1", stream),
            f"1 + {c.kept_patches} → {1 + c.kept_patches}",
        )
        yield StepNames(words, like="drop", owns=("cls_token",), numbers=sizes)
    if c.positions == "learned":
        yield StepNames(("add the positions", "+ E_pos", "Eq. 1", stream), like="drop", owns=("pos_embed",))
    if c.positions == "learned-2d":
        words, sizes = (
            ("add 2-D positions: row, column", "+ E_pos", "App. D.4", stream),
            f"({c.grid[0]} + {c.grid[1]}) × {c.dim // 2}",
        )
        yield StepNames(words, like="drop", owns=("pos_embed_row", "pos_embed_column"), numbers=sizes)
    if c.positions == "sincos-2d":
        yield StepNames(("add fixed 2-D sine-cosine positions", "+ E_pos", "–", stream), like="drop")
    if c.registers:
        words, sizes = (
            ("insert the registers", "[x_class; r; x_p E]", "–", stream),
            f"{c.num_tokens - c.registers} + {c.registers} → {c.num_tokens}",
        )
        yield StepNames(words, like="drop", owns=("reg_token",), numbers=sizes)
    if c.pre_norm:
        yield StepNames(("normalise before the blocks", "LN(z_0)", "–", stream), "norm_pre")
    why = {"none": "no positions are added", "relative": "positions are relative: see the blocks"}.get(c.positions, "")
    yield StepNames(("tokens", "z_0", "Eq. 1", stream), like="drop", numbers=why, tap="tokens")


def _encoder_block(
    stream: str, attention: str, *, qkv: str, proj: str, fc1: str, fc2: str, products: tuple[int, int],
    taps: bool = False, from_normalised: bool = False,
) -> Iterator[StepNames]:  # fmt: skip
    """Yield the rows of a block; `products` are the numbers of q kᵀ and A v among those of the attention module."""
    tokens = stream.split(" × ")[1]
    pairs, per_head = f"B × k × {tokens} × {tokens}", f"B × k × {tokens} × D_h"
    weights, values = ((f"{attention}#{number}",) for number in products)
    skip = "LN({})" if from_normalised else "{}"

    def tap(name: str) -> str:
        return f"blocks.*.{name}" if taps else ""

    yield StepNames(("normalise", "LN(z)", "Eq. 2", stream), "blocks.0.norm1")
    yield _product(("queries, keys, values", "q, k, v", "Eq. 5", f"B × {tokens} × 3·D"), qkv, "in_proj")
    if products == (0, 2):
        words, owns = ("relative positions", "q rᵀ / √D_h", "App. D.4", pairs), (f"{attention}.rel_pos",)
        yield StepNames(words, products=(f"{attention}#1",), like=weights[0], owns=owns)
    words = ("attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", pairs)
    yield StepNames(words, products=weights, tap=tap("attention"))
    yield StepNames(("weight the values", "SA(z) = A v", "Eq. 7", per_head), products=values, tap=tap("heads"))
    yield _product(("join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", stream), proj, "out_proj")
    words = ("add", f"z′ = MSA(LN(z)) + {skip.format('z')}", "–" if from_normalised else "Eq. 2", stream)
    yield StepNames(words, like="blocks.0.norm2", tap=tap("middle"))
    yield StepNames(("normalise", "LN(z′)", "Eq. 3", stream), "blocks.0.norm2")
    yield StepNames(("widen, GELU", "GELU(LN(z′) W_1)", "Eq. 3", f"B × {tokens} × MLP"), fc1)
    yield StepNames(("narrow", "MLP(LN(z′))", "Eq. 3", stream), fc2)
    words = ("add", f"z = MLP(LN(z′)) + {skip.format('z′')}", "–" if from_normalised else "Eq. 3", stream)
    yield StepNames(words, like=fc2, tap=tap("output"))


def _product(words: tuple[str, str, str, str], path: str, name: str) -> StepNames:
    """Return the row of a linear layer, or of a product in nn.MultiheadAttention, whose parameters have a `name`."""
    module, numbered, _ = path.partition("#")
    if not numbered:
        return StepNames(words, path)
    owns = (f"{module}.{name}",) if name == "out_proj" else (f"{module}.{name}_weight", f"{module}.{name}_bias")
    return StepNames(words, products=(path,), owns=owns)


def _cnn(_: ModelConfig) -> Iterator[StepNames]:
    yield from _convolutions("conv1", "conv2", "conv_dropout", "fc1", "fc2")


def _mixer(c: MixerConfig) -> Iterator[StepNames]:
    size = math.prod(c.patch_size) * c.channels
    sizes, stream = f"{joined(*c.grid)} patches of {joined(*c.patch_size, c.channels)}", "B × N × D"
    words = ("split into patches", "x_p", "Sec. 3.1", "B × N × P²C")
    yield StepNames(words, shape=("B", c.num_patches, size), numbers=sizes)
    shape = ("B", c.num_patches, c.dim)
    yield StepNames(("project the patches", "z_0 = x_p E", "Eq. 1", stream), "patch_embed", shape=shape)
    block, like = "blocks.0.", "blocks.0.norm2"
    yield StepNames(("normalise", "LN(z)", "Eq. 2", stream), f"{block}norm1")
    yield StepNames(("mix the tokens, GELU", "GELU(W_1 LN(z)ᵀ)", "–", "B × D × mix"), f"{block}mix_tokens.0")
    yield StepNames(("mix again", "W_2 …", "–", "B × D × N"), f"{block}mix_tokens.2")
    yield StepNames(("add", "z′ = mix(LN(z)) + z", "–", stream), like=like)
    yield StepNames(("normalise", "LN(z′)", "Eq. 3", stream), like)
    yield StepNames(("widen, GELU", "GELU(LN(z′) W_1)", "Eq. 3", "B × N × MLP"), f"{block}mlp.0")
    yield StepNames(("narrow", "MLP(LN(z′))", "Eq. 3", stream), f"{block}mlp.2")
    yield StepNames(("add", "z = MLP(LN(z′)) + z′", "Eq. 3", stream), like=f"{block}mlp.2")
    words, numbers = ("normalise, average", "y = mean LN(z_L)", "–", "B × D"), f"{c.num_patches} × {c.dim} → {c.dim}"
    yield StepNames(words, owns=("norm",), shape=("B", c.dim), numbers=numbers)
    yield StepNames(("classify", "logits", "Sec. 3.1", "B × classes"), "head")


def _article_cnn(_: ModelConfig) -> Iterator[StepNames]:
    yield from _convolutions("layers.0", "layers.2", "layers.4", "layers.7", "layers.10")
    yield StepNames(("log-softmax", "log p", "–", "B × classes"), "layers.11")


def _convolutions(conv1: str, conv2: str, pooled: str, fc1: str, fc2: str) -> Iterator[StepNames]:
    for conv in (conv1, conv2):
        yield StepNames(("conv 3×3, ReLU", "ReLU(W ∗ x)", "–", "B × C′ × H′ × W′"), conv)
    yield StepNames(("max-pool 2×2; flatten", "–", "–", "B × C′ × H″ × W″"), pooled)
    yield StepNames(("hidden layer, ReLU", "ReLU(x W_1)", "–", "B × hidden"), fc1)
    yield StepNames(("classify", "logits", "–", "B × classes"), fc2)


def _article_patches(module: str) -> Iterator[StepNames]:
    words = ("split into patches", "x_p", "Sec. 3.1", "B × N × P²")
    yield StepNames(words, shape=("B", 16, 49), numbers="4 × 4 patches of 7 × 7 × 1")
    yield StepNames(("project the patches", "x_p E", "Eq. 1", "B × N × D"), module)


def _article_vit(c: ArticleViTConfig) -> Iterator[StepNames]:
    """As written, attention runs over the images of a batch: its FLOPs here are those of a batch of one."""
    layer, stream, encoder = "model.encoder.layers.0.", "B × (N + 1) × D", "model.encoder"
    yield from _article_patches("model.patch_projection")
    name, equation = ("the class token", "Eq. 1") if "class-token" in c.fixes else ("a fixed random vector", "–")
    words = (f"prepend {name}", "[x_class; x_p E]", equation, stream)
    yield StepNames(words, like=encoder, owns=("model.class_token",), numbers="1 + 16 → 17")
    yield StepNames(("add the positions", "+ E_pos", "Eq. 1", stream), "model.position_embedding", like=encoder)
    if "normalisation" not in c.fixes:
        yield StepNames(("L2-normalise across the tokens", "z_0", "–", stream), like=encoder)
    yield _product(("queries, keys, values", "q, k, v", "Eq. 5", "B × (N + 1) × 3·D"), f"{layer}self_attn#0", "in_proj")
    if "attention" in c.fixes:
        weights = ("attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", "B × k × (N + 1) × (N + 1)")
        values = ("weight the values", "SA(z) = A v", "Eq. 7", "B × k × (N + 1) × D_h")
    else:
        weights = ("attention weights, image to image", "A = softmax(q kᵀ / √D_h)", "–", "(N + 1)·k × B × B")
        values = ("weight the values of other images", "A v", "–", "(N + 1)·k × B × D_h")
    yield StepNames(weights, products=(f"{layer}self_attn#1",))
    yield StepNames(values, products=(f"{layer}self_attn#2",))
    yield _product(("join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", stream), f"{layer}self_attn#3", "out_proj")
    if "pre-norm" in c.fixes:
        first = ("normalise; add", "z′ = MSA(LN(z)) + z", "Eq. 2", stream)
        second = ("normalise; add", "z = MLP(LN(z′)) + z′", "Eq. 3", stream)
    else:
        first = ("add, then normalise", "z′ = LN(MSA(z) + z)", "–", stream)
        second = ("add, then normalise", "z = LN(MLP(z′) + z′)", "–", stream)
    yield StepNames(first, f"{layer}norm1")
    yield StepNames(("widen, GELU", "GELU(z′ W_1)", "Eq. 3", "B × (N + 1) × MLP"), f"{layer}linear1")
    yield StepNames(("narrow", "MLP(z′)", "Eq. 3", stream), f"{layer}linear2")
    yield StepNames(second, f"{layer}norm2")
    yield StepNames(
        ("take the class token", "y = z_L⁰", "–", "B × D"), shape=("B", c.dim), numbers=f"17 × {c.dim} → {c.dim}"
    )
    for i, after in enumerate(("", ", tanh"), start=1):
        yield StepNames((f"linear {i}{after}", f"h_{i}", "–", "B × hidden"), f"model.linear{i}")
    yield StepNames(("linear 3, log-softmax", "log p", "–", "B × classes"), "model.linear3")


def _article_design(c: ArticleDesignConfig) -> Iterator[StepNames]:
    """Class token and positions pass through linear layers once per batch: their FLOPs are those of a batch of one."""
    stream = "B × (N + 1) × D"
    yield from _article_patches("patch_projection")
    words = ("project the class token", "x_class W_c", "–", "1 × D")
    yield StepNames(words, "class_projection", owns=("class_token", "class_projection"), shape=(1, c.dim))
    name, symbols = ("for all", "D") if c.positions == "as-written" else ("per index", "(N + 1) × D")
    yield StepNames((f"positions: one vector {name}", "[0 … N] W_p", "–", symbols), "position_projection")
    yield StepNames(("tokens", "z_0 = [x_class; x_p E] + E_pos", "Eq. 1", stream), shape=("B", 17, c.dim))
    attention, mlp = "blocks.0.attention", "blocks.0.mlp"
    yield from _encoder_block(
        stream, attention, qkv=f"{attention}#0", proj=f"{attention}#3", fc1=f"{mlp}.0", fc2=f"{mlp}.2", products=(1, 2),
        from_normalised=c.residual == "normalised",
    )  # fmt: skip
    yield StepNames(("normalise the class token", "y = LN(z_L⁰)", "Eq. 4", "B × D"), "norm")
    yield StepNames(("classify, log-softmax", "log p", "Sec. 3.1", "B × classes"), "classifier")


STEP_NAMES: dict[str, Any] = {
    "vit": _vit,
    "cnn": _cnn,
    "mixer": _mixer,
    "post-cnn": _article_cnn,
    "post-vit": _article_vit,
    "post-design": _article_design,
}
