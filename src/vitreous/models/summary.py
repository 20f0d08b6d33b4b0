"""Every step of a model: its symbol, its equation, its numbers, its shape, its parameters and its FLOPs.

Pure arithmetic on the configuration: nothing is built, so ViT-H/14 costs as little as the smallest model.

Symbols are the paper's: B images of H × W × C, patches of P × P, N patches, width D, depth L, k heads of D_h = D / k.
FLOPs are for one image, a multiply-add being two. Counted: matrix products and convolutions, the same that
`torch.utils.flop_counter` counts. Not counted: biases, LayerNorm, softmax, GELU, sums, padding and resizing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from vitreous.config import ArticleCNNConfig, ArticleDesignConfig, ArticleViTConfig, CNNConfig, ModelConfig, ViTConfig

if TYPE_CHECKING:
    from rich.table import Table

FLOPS_COUNTED = (
    "FLOPs: one image, a multiply-add is 2; matrix products and convolutions only (no biases, LayerNorm, softmax,"
    " GELU, sums)"
)


@dataclass(frozen=True)
class Step:
    """One step of the forward pass. `parameters` and `flops` are for all `times` repetitions together."""

    name: str
    symbol: str
    equation: str  # where the paper writes it; "–": nowhere
    numbers: str  # the symbols' values in one repetition
    shape_symbols: str
    shape: tuple[int | str, ...]  # "B" stands for the number of images
    parameters: int = 0
    flops: int = 0
    times: int = 1  # an encoder block's steps are listed once
    owns: tuple[str, ...] = ()  # the parameters counted here; * stands for a block's number
    tap: str = ""  # the name under which `taps` keeps this step's output; * likewise


def shapes(config: ModelConfig) -> list[Step]:
    """Every step from the image to the output, in order."""
    if isinstance(config, ViTConfig):
        config.check_geometry()
    return list(_STEPS[config.kind](config))  # type: ignore[operator]


def count_flops(config: ModelConfig) -> int:
    """FLOPs of one image's forward pass (see the top of this file for what counts)."""
    return sum(step.flops for step in shapes(config))


def count_parameters_of(config: ModelConfig) -> int:
    """Parameters of the model that `build(config)` would make, without making it."""
    return sum(step.parameters for step in shapes(config))


# --- arithmetic --------------------------------------------------------------------------------------------


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + outputs * bias


def _product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of (rows × inner) · (inner × columns)."""
    return 2 * rows * inner * columns


def _by(*numbers: int) -> str:
    return " × ".join(map(str, numbers))


# --- the ViT -----------------------------------------------------------------------------------------------


def _vit(c: ViTConfig) -> Iterator[Step]:
    yield from _vit_embedding(c)
    yield from _vit_block(c)
    yield from _vit_head(c)


def _vit_tokens(c: ViTConfig) -> tuple[str, str]:
    """How many tokens the encoder sees, in symbols; and the shape of its stream."""
    tokens = "N + 1" if c.has_class_token else "N"
    return tokens, f"B × ({tokens}) × D" if c.has_class_token else "B × N × D"


def _vit_embedding(c: ViTConfig) -> Iterator[Step]:
    (height, width), (ph, pw), (rows, columns), N, D = c.image_size, c.patch_size, c.grid, c.num_patches, c.dim
    channels, feature_symbols = c.channels, "B × C × H × W"
    yield Step("image", "x", "Sec. 3.1", _by(height, width, channels), feature_symbols, ("B", channels, height, width))
    module = 0  # of the stem, as ConvStem numbers them: a convolution, its GELU, the blocks of that stage
    for stage, out_channels in enumerate(c.stem_channels, start=1):
        height, width, feature_symbols = -(-height // 2), -(-width // 2), "B × C′ × H′ × W′"
        shape = ("B", out_channels, height, width)
        yield Step(
            f"stem {stage}: conv 3×3, stride 2, GELU", "x′", "Sec. 3.1, hybrid",
            f"{_by(height, width)} × (9 · {channels} → {out_channels})", feature_symbols, shape,
            _linear(9 * channels, out_channels), _product(height * width, 9 * channels, out_channels),
            owns=(f"stem.{module}",),
        )  # fmt: skip
        channels = out_channels
        for block in range(1, c.stem_depth):
            yield Step(
                f"stem {stage}.{block}: x′ + GELU(conv 3×3(LN(x′)))", "x′", "Sec. 3.1, hybrid",
                f"{_by(height, width)} × (9 · {channels} → {channels})", feature_symbols, shape,
                2 * channels + _linear(9 * channels, channels), _product(height * width, 9 * channels, channels),
                owns=(f"stem.{module + 1 + block}",),
            )  # fmt: skip
        module += 1 + c.stem_depth
    if c.fitted_size != (height, width):
        how = "pad with zeros" if c.fit == "pad" else "resize"
        fitted = c.fitted_size
        yield Step(how, "–", "–", f"{_by(height, width)} → {_by(*fitted)}", feature_symbols, ("B", channels, *fitted))
    patch = ph * pw * channels
    patch_symbol = "P²C′" if c.stem_channels else "P²C"
    yield Step(
        "split into patches", "x_p", "Sec. 3.1", f"{_by(rows, columns)} patches of {_by(ph, pw, channels)}",
        f"B × N × {patch_symbol}", ("B", N, patch),
    )  # fmt: skip
    yield Step(
        "project the patches", "x_p E", "Eq. 1", f"{_by(N, patch)} → {D}", "B × N × D", ("B", N, D),
        _linear(patch, D), _product(N, patch, D), owns=("patch_embed.proj",),
    )  # fmt: skip
    yield from _vit_class_token_and_positions(c)


def _vit_class_token_and_positions(c: ViTConfig) -> Iterator[Step]:
    (rows, columns), T, D = c.grid, c.num_tokens, c.dim
    _, stream = _vit_tokens(c)
    if c.has_class_token:
        yield Step(
            "put the class token in front", "[x_class; x_p E]", "Eq. 1", f"1 + {c.num_patches} → {T}", stream,
            ("B", T, D), D, owns=("cls_token",),
        )  # fmt: skip
    kinds = {
        "learned": ("add the positions", "+ E_pos", "Eq. 1", _by(T, D), T * D, ("pos_embed",)),
        "learned-2d": (
            "add 2-D positions: row, column", "+ E_pos", "App. D.4", f"({rows} + {columns}) × {D // 2}",
            (rows + columns) * (D // 2), ("pos_embed_row", "pos_embed_column"),
        ),
        "sincos-2d": ("add fixed 2-D sine-cosine positions", "+ E_pos", "–", _by(rows * columns, D), 0, ()),
    }  # fmt: skip
    if c.positions in kinds:
        name, symbol, equation, numbers, parameters, owns = kinds[c.positions]
        yield Step(name, symbol, equation, numbers, stream, ("B", T, D), parameters, owns=owns)
    why = {"none": "no positions are added", "relative": "positions are relative: see the blocks"}.get(c.positions, "")
    yield Step("tokens", "z_0", "Eq. 1", why or _by(T, D), stream, ("B", T, D), tap="tokens")


def _vit_block(c: ViTConfig) -> Iterator[Step]:
    L, D, T, k, K = c.depth, c.dim, c.num_tokens, c.num_heads, c.head_dim
    tokens, stream = _vit_tokens(c)
    per_head, full = f"B × k × ({tokens}) × D_h", ("B", T, D)
    weights_symbols = f"B × k × ({tokens}) × ({tokens})"
    yield Step("normalise", "LN(z)", "Eq. 2", _by(T, D), stream, full, 2 * D * L, times=L, owns=("blocks.*.norm1",))
    yield Step(
        "queries, keys, values", "q, k, v", "Eq. 5", f"{_by(T, D)} → 3 · {_by(k, K)}", f"3 · {per_head}",
        ("B", k, T, K), _linear(D, 3 * D, c.qkv_bias) * L, _product(T, D, 3 * D) * L, times=L,
        owns=("blocks.*.attn.qkv",), tap="blocks.*.q",
    )  # fmt: skip
    if c.positions == "relative":
        offsets = 2 * T - 1
        yield Step(
            "relative positions", "q rᵀ / √D_h", "App. D.4", f"{k} heads · ({_by(T, K)} · {_by(K, offsets)})",
            weights_symbols, ("B", k, T, T), offsets * K * L, k * _product(T, K, offsets) * L, times=L,
            owns=("blocks.*.attn.rel_pos",),
        )  # fmt: skip
    yield Step(
        "attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", f"{k} heads · ({_by(T, K)} · {_by(K, T)})",
        weights_symbols, ("B", k, T, T), 0, k * _product(T, K, T) * L, times=L, tap="blocks.*.attention",
    )  # fmt: skip
    yield Step(
        "weigh the values", "SA(z) = A v", "Eq. 7", f"{k} heads · ({_by(T, T)} · {_by(T, K)})", per_head,
        ("B", k, T, K), 0, k * _product(T, T, K) * L, times=L, tap="blocks.*.heads",
    )  # fmt: skip
    yield Step(
        "join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", f"{T} × {k}·{K} → {D}", stream, full,
        _linear(D, D) * L, _product(T, D, D) * L, times=L, owns=("blocks.*.attn.proj",),
    )  # fmt: skip
    yield Step("add", "z′ = MSA(LN(z)) + z", "Eq. 2", _by(T, D), stream, full, times=L, tap="blocks.*.middle")
    yield Step("normalise", "LN(z′)", "Eq. 3", _by(T, D), stream, full, 2 * D * L, times=L, owns=("blocks.*.norm2",))
    yield Step(
        "widen, GELU", "GELU(LN(z′) W_1)", "Eq. 3", f"{_by(T, D)} → {c.mlp_dim}", f"B × ({tokens}) × MLP",
        ("B", T, c.mlp_dim), _linear(D, c.mlp_dim) * L, _product(T, D, c.mlp_dim) * L, times=L,
        owns=("blocks.*.mlp.fc1",),
    )  # fmt: skip
    yield Step(
        "narrow", "MLP(LN(z′))", "Eq. 3", f"{_by(T, c.mlp_dim)} → {D}", stream, full,
        _linear(c.mlp_dim, D) * L, _product(T, c.mlp_dim, D) * L, times=L, owns=("blocks.*.mlp.fc2",),
    )  # fmt: skip
    yield Step("add", "z = MLP(LN(z′)) + z′", "Eq. 3", _by(T, D), stream, full, times=L, tap="blocks.*.output")


def _vit_head(c: ViTConfig) -> Iterator[Step]:
    D, T = c.dim, c.num_tokens
    symbol, equation = {
        "cls": ("y = LN(z_L⁰)", "Eq. 4"),
        "mean": ("y = mean LN(z_L)", "App. D.3"),
        "seq": ("y = softmax(LN(z_L) w)ᵀ LN(z_L)", "–"),
    }[c.pool]
    # LayerNorm's parameters stand with the pooling: y is one step of the paper
    scored = c.pool == "seq"
    yield Step(
        {"cls": "normalise the class token", "mean": "normalise, average", "seq": "normalise, weigh, sum"}[c.pool],
        symbol, equation, f"{_by(T, D)} → {D}", "B × D", ("B", D), 2 * D + _linear(D, 1) * scored,
        (_product(T, D, 1) + _product(1, T, D)) * scored, owns=("norm", "pool_score") if scored else ("norm",),
        tap="pooled",
    )  # fmt: skip
    hidden = D
    if c.head == "mlp":
        hidden = c.head_hidden or D
        yield Step(
            "hidden layer of the head, tanh", "tanh(y W_h)", "Sec. 3.1", f"{D} → {hidden}", "B × hidden",
            ("B", hidden), _linear(D, hidden), _product(1, D, hidden), owns=("pre_logits",),
        )  # fmt: skip
    yield Step(
        "classify", "logits", "Sec. 3.1", f"{hidden} → {c.num_classes}", "B × classes", ("B", c.num_classes),
        _linear(hidden, c.num_classes), _product(1, hidden, c.num_classes), owns=("head",), tap="logits",
    )  # fmt: skip


# --- the CNN, and the post's ---------------------------------------------------------------------------------


def _cnn(c: CNNConfig) -> Iterator[Step]:
    yield from _cnn_steps(c, ("conv1", "conv2", "fc1", "fc2"))


def _post_cnn(c: ArticleCNNConfig) -> Iterator[Step]:
    yield from _cnn_steps(CNNConfig(), ("layers.0", "layers.2", "layers.7", "layers.10"))
    yield Step("log-softmax", "log p", "–", "10", "B × classes", ("B", 10))


def _cnn_steps(c: CNNConfig, names: tuple[str, str, str, str]) -> Iterator[Step]:
    (height, width), channels = c.image_size, c.channels
    yield Step("image", "x", "–", _by(height, width, channels), "B × C × H × W", ("B", channels, height, width))
    for name, out_channels in zip(names[:2], c.conv_channels, strict=True):
        height, width = height - 2, width - 2
        yield Step(
            "conv 3×3, ReLU", "ReLU(W ∗ x)", "–", f"{_by(height, width)} × (9 · {channels} → {out_channels})",
            "B × C′ × H′ × W′", ("B", out_channels, height, width), _linear(9 * channels, out_channels),
            _product(height * width, 9 * channels, out_channels), owns=(name,),
        )  # fmt: skip
        channels = out_channels
    pooled = ("B", channels, height // 2, width // 2)
    yield Step("max-pool 2×2", "–", "–", f"{_by(height, width)} → {_by(*pooled[2:])}", "B × C′ × H″ × W″", pooled)
    flat = c.flat_features
    yield Step("flatten", "–", "–", f"{_by(*pooled[1:])} → {flat}", "B × C′H″W″", ("B", flat))
    yield Step(
        "hidden layer, ReLU", "ReLU(x W_1)", "–", f"{flat} → {c.hidden}", "B × hidden", ("B", c.hidden),
        _linear(flat, c.hidden), _product(1, flat, c.hidden), owns=(names[2],),
    )  # fmt: skip
    yield Step(
        "classify", "logits", "–", f"{c.hidden} → {c.num_classes}", "B × classes", ("B", c.num_classes),
        _linear(c.hidden, c.num_classes), _product(1, c.hidden, c.num_classes), owns=(names[3],),
    )  # fmt: skip


# --- the posts' transformers -----------------------------------------------------------------------------------


def _post_patches(D: int, owner: str) -> Iterator[Step]:
    yield Step("image", "x", "Sec. 3.1", "28 × 28 × 1", "B × C × H × W", ("B", 1, 28, 28))
    yield Step("cut into patches", "x_p", "Sec. 3.1", "4 × 4 patches of 7 × 7 × 1", "B × N × P²", ("B", 16, 49))
    yield Step(
        "project the patches", "x_p E", "Eq. 1", f"16 × 49 → {D}", "B × N × D", ("B", 16, D), _linear(49, D),
        _product(16, 49, D), owns=(owner,),
    )  # fmt: skip


def _post_vit_attention(c: ArticleViTConfig) -> Iterator[Step]:
    K, k, L = c.dim // c.num_heads, c.num_heads, 4
    if "attention" in c.fixes:
        yield Step(
            "attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", f"{k} heads · (17 × {K} · {K} × 17)",
            "B × k × (N + 1) × (N + 1)", ("B", k, 17, 17), 0, k * _product(17, K, 17) * L, times=L,
        )  # fmt: skip
        yield Step(
            "weigh the values", "SA(z) = A v", "Eq. 7", f"{k} heads · (17 × 17 · 17 × {K})",
            "B × k × (N + 1) × D_h", ("B", k, 17, K), 0, k * _product(17, 17, K) * L, times=L,
        )  # fmt: skip
        return
    yield Step(
        "attention weights, image to image", "A = softmax(q kᵀ / √D_h)", "–",
        f"17 · {k} heads · (B × {K} · {K} × B), B = 1", "(N + 1) × k × B × B",
        (17, k, "B", "B"), 0, 17 * k * _product(1, K, 1) * L, times=L,
    )  # fmt: skip
    yield Step(
        "weigh the values of other images", "A v", "–", f"17 · {k} heads · (B × B · B × {K}), B = 1",
        "(N + 1) × k × B × D_h", (17, k, "B", K), 0, 17 * k * _product(1, 1, K) * L, times=L,
    )  # fmt: skip


def _post_vit(c: ArticleViTConfig) -> Iterator[Step]:
    """As written, attention runs over the images of a batch: its FLOPs here are those of a batch of one."""
    D, K, k, feed_forward, L = c.dim, c.dim // c.num_heads, c.num_heads, 3000, 4
    stream, full, layer = "B × (N + 1) × D", ("B", 17, D), "model.encoder.layers.*."
    if "pre-norm" in c.fixes:
        first, second = (
            ("normalise; add", "z′ = MSA(LN(z)) + z", "Eq. 2"),
            ("normalise; add", "z = MLP(LN(z′)) + z′", "Eq. 3"),
        )
    else:
        first, second = (
            ("add, then normalise", "z′ = LN(MSA(z) + z)", "–"),
            ("add, then normalise", "z = LN(MLP(z′) + z′)", "–"),
        )
    yield from _post_patches(D, "model.patch_projection")
    if "class-token" in c.fixes:
        yield Step(
            "put the class token in front", "[x_class; x_p E]", "Eq. 1", "1 + 16 → 17", stream, full, D,
            owns=("model.class_token",),
        )  # fmt: skip
    else:
        yield Step("put a fixed random vector in front", "[x_class; x_p E]", "–", "1 + 16 → 17", stream, full)
    yield Step(
        "add the positions", "+ E_pos", "Eq. 1", f"17 × {D}", stream, full, 17 * D, owns=("model.position_embedding",)
    )
    if "normalisation" not in c.fixes:
        yield Step("L2-normalise across the tokens", "z_0", "–", f"17 × {D}", stream, full)
    yield Step(
        "queries, keys, values", "q, k, v", "Eq. 5", f"17 × {D} → 3 · {_by(k, K)}", "3 · (N + 1) × k × B × D_h",
        (17, k, "B", K), _linear(D, 3 * D) * L, _product(17, D, 3 * D) * L, times=L,
        owns=(layer + "self_attn.in_proj_weight", layer + "self_attn.in_proj_bias"),
    )  # fmt: skip
    yield from _post_vit_attention(c)
    yield Step(
        "join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", f"17 × {k}·{K} → {D}", stream, full, _linear(D, D) * L,
        _product(17, D, D) * L, times=L, owns=(layer + "self_attn.out_proj",),
    )  # fmt: skip
    yield Step(
        *first, f"17 × {D}", stream, full, 2 * D * L, times=L,
        owns=(layer + "norm1",),
    )  # fmt: skip
    yield Step(
        "widen, GELU", "GELU(z′ W_1)", "Eq. 3", f"17 × {D} → {feed_forward}", "B × (N + 1) × MLP",
        ("B", 17, feed_forward), _linear(D, feed_forward) * L, _product(17, D, feed_forward) * L, times=L,
        owns=(layer + "linear1",),
    )  # fmt: skip
    yield Step(
        "narrow", "MLP(z′)", "Eq. 3", f"17 × {feed_forward} → {D}", stream, full, _linear(feed_forward, D) * L,
        _product(17, feed_forward, D) * L, times=L, owns=(layer + "linear2",),
    )  # fmt: skip
    yield Step(
        *second, f"17 × {D}", stream, full, 2 * D * L, times=L,
        owns=(layer + "norm2",),
    )  # fmt: skip
    yield Step("take the class token", "y = z_L⁰", "–", f"17 × {D} → {D}", "B × D", ("B", D))
    for i, (inputs, outputs, after) in enumerate([(D, 250, ""), (250, 100, ", tanh"), (100, 10, ", log-softmax")], 1):
        yield Step(
            f"linear {i}{after}", "log p" if i == 3 else f"h_{i}", "–", f"{inputs} → {outputs}",
            "B × classes" if i == 3 else "B × hidden", ("B", outputs), _linear(inputs, outputs),
            _product(1, inputs, outputs), owns=(f"model.linear{i}",),
        )  # fmt: skip


def _post_design(c: ArticleDesignConfig) -> Iterator[Step]:
    """Class token and positions pass through linear layers once a batch: their FLOPs are those of a batch of one."""
    D = c.dim
    yield from _post_patches(D, "patch_projection")
    yield Step(
        "project the class token", "x_class W_c", "–", f"{D} → {D}", "1 × D", (1, D), D + _linear(D, D),
        _product(1, D, D), owns=("class_token", "class_projection"),
    )  # fmt: skip
    one = c.positions == "as-written"
    inputs, rows = (17, 1) if one else (1, 17)
    yield Step(
        "positions: one vector for all" if one else "positions: one vector an index", "[0 … N] W_p", "–",
        f"{_by(rows, inputs)} → {D}", "D" if one else "(N + 1) × D", (D,) if one else (17, D), _linear(inputs, D),
        _product(rows, inputs, D), owns=("position_projection",),
    )  # fmt: skip
    yield Step("tokens", "z_0 = [x_class; x_p E] + E_pos", "Eq. 1", f"17 × {D}", "B × (N + 1) × D", ("B", 17, D))
    yield from map(_as_written_in(c), _vit_block(_same_geometry(c)))
    normalise, classify = _vit_head(_same_geometry(c))
    yield replace(normalise, tap="")
    yield replace(classify, name="classify, log-softmax", symbol="log p", owns=("classifier",), tap="")


def _same_geometry(c: ArticleDesignConfig) -> ViTConfig:
    """A block of the design table has the parts of the paper's; only its residual is taken elsewhere."""
    return ViTConfig(patch_size=7, dim=c.dim, depth=c.depth, num_heads=c.num_heads, mlp_dim=c.mlp_dim)


def _as_written_in(c: ArticleDesignConfig) -> Callable[[Step], Step]:
    owners = {
        "blocks.*.attn.qkv": ("blocks.*.attention.in_proj_weight", "blocks.*.attention.in_proj_bias"),
        "blocks.*.attn.proj": ("blocks.*.attention.out_proj",),
        "blocks.*.mlp.fc1": ("blocks.*.mlp.0",),
        "blocks.*.mlp.fc2": ("blocks.*.mlp.2",),
    }
    residuals = {"z′ = MSA(LN(z)) + z": "z′ = MSA(LN(z)) + LN(z)", "z = MLP(LN(z′)) + z′": "z = MLP(LN(z′)) + LN(z′)"}

    def rewrite(step: Step) -> Step:
        step = replace(step, tap="", owns=tuple(name for owned in step.owns for name in owners.get(owned, (owned,))))
        if step.symbol in residuals and c.residual == "normalised":
            return replace(step, symbol=residuals[step.symbol], equation="–")
        return step

    return rewrite


_STEPS = {"vit": _vit, "cnn": _cnn, "post-cnn": _post_cnn, "post-vit": _post_vit, "post-design": _post_design}


# --- for people and for programs -------------------------------------------------------------------------------


def as_json(config: ModelConfig) -> dict[str, Any]:
    """The steps and their totals as plain values."""
    return {
        "kind": config.kind,
        "parameters": count_parameters_of(config),
        "flops": count_flops(config),
        "flops_counted": FLOPS_COUNTED,
        "steps": [asdict(step) for step in shapes(config)],
    }


def shapes_table(config: ModelConfig, title: str = "") -> Table:
    """The steps as a table for the terminal; an encoder block's steps stand once, with how often they are taken."""
    from rich.markup import escape  # the symbols have brackets, which rich would read as colours
    from rich.table import Table

    table = Table(title=title or None, caption=FLOPS_COUNTED, show_footer=True, caption_justify="left")
    table.add_column("step", "total")
    for header in ("symbol", "paper", "numbers", "output shape"):
        table.add_column(header)
    table.add_column("parameters", f"{count_parameters_of(config):,}", justify="right", no_wrap=True)
    table.add_column("FLOPs", f"{count_flops(config):,}", justify="right", no_wrap=True)
    steps = shapes(config)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        times = f"{step.times} × " if step.times > 1 else ""
        shape = f"{step.shape_symbols}\n[bold]{' × '.join(map(str, step.shape))}[/bold]"
        table.add_row(
            times + step.name, escape(step.symbol), step.equation, step.numbers, shape,
            f"{step.parameters:,}" if step.parameters else "–", f"{step.flops:,}" if step.flops else "–",
            end_section=following is not None and following.times != step.times,
        )  # fmt: skip
    return table
