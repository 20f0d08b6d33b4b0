"""Every step of a model: its symbol, its equation, its numbers, its shape, its parameters and its FLOPs.

The model is built and run on torch's meta device, where nothing is allocated: ViT-H/14 costs as little as the smallest
model. Shapes, parameters and FLOPs are recorded from that run; only the paper's names for the steps are written here.

Symbols are the paper's: B images of H × W × C, patches of P × P, N patches, width D, depth L, k heads of D_h = D / k.
FLOPs are those of `torch.utils.flop_counter`, for one image.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, ModelConfig, ViTConfig

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
    numbers: str  # the operands' sizes in one repetition
    shape_symbols: str
    shape: tuple[int | str, ...]  # "B" is the number of images
    parameters: int = 0
    flops: int = 0
    times: int = 1  # the steps of an encoder block are listed once
    owns: tuple[str, ...] = ()  # the parameters counted here; * is the number of a block
    tap: str = ""  # the name under which `taps` records this step's output; * likewise


def shapes(config: ModelConfig) -> list[Step]:
    """Return every step from the image to the output, in order."""
    return list(_steps(config))


def count_flops(config: ModelConfig) -> int:
    """Return the FLOPs of one image's forward pass."""
    return sum(step.flops for step in _steps(config))


def count_parameters_of(config: ModelConfig) -> int:
    """Return the number of parameters of the model that `build(config)` would make."""
    return sum(step.parameters for step in _steps(config))


# --- recording a run -----------------------------------------------------------------------------------------


class _Recorder(TorchDispatchMode):
    """Record a forward pass: the output shape of every module, and the FLOPs of every product, by module path.

    Products of a module that has children or multiplies more than once are numbered: "blocks.0.attn#1".
    """

    def __init__(self, model: nn.Module):
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.flops: dict[str, int] = {}
        self.operands: dict[str, str] = {}
        self._calls: list[str] = []  # the modules that are being called, outermost first
        self._paths = {module: path for path, module in model.named_modules()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            module, number = self._calls[-1], 0
            while (path := f"{module}#{number}") in self.flops:
                number += 1
            self.shapes[path] = tuple(out.shape)
            self.flops[path] = count(*args, out_val=out)
            self.operands[path] = _operands(func._overloadpacket.__name__, args, out)
        return out

    def run(self, model: nn.Module, images: Tensor) -> _Recorder:
        def leave(module: nn.Module, _inputs: Any, out: Any) -> None:
            self.shapes[self._calls.pop()] = tuple((out[0] if isinstance(out, tuple) else out).shape)

        hooks = [
            nn.modules.module.register_module_forward_pre_hook(lambda m, _inputs: self._calls.append(self._paths[m])),
            nn.modules.module.register_module_forward_hook(leave),
        ]
        try:
            with self, torch.no_grad():
                model(images)
        finally:
            for hook in hooks:
                hook.remove()
        return self


def _operands(operation: str, args: Any, out: Tensor) -> str:
    """Return the sizes of a product: "17 × 64 → 192", "2 · (17 × 32 · 32 × 17)" or "14 × 14 × (9 · 1 → 24)"."""
    if operation == "convolution":
        outputs, inputs, *kernel = args[1].shape
        if list(args[3]) == kernel:  # the stride is the kernel: patches are projected
            return f"{math.prod(out.shape[2:])} × {math.prod(kernel) * inputs} → {outputs}"
        return f"{_times(*out.shape[2:])} × ({math.prod(kernel)} · {inputs} → {outputs})"
    left, right = [arg for arg in args if isinstance(arg, Tensor) and arg.ndim >= 2][-2:]
    if left.ndim == 2:
        return f"{_times(*left.shape) if left.shape[0] > 1 else left.shape[1]} → {right.shape[-1]}"
    return f"{left.shape[0]} · ({_times(*left.shape[1:])} · {_times(*right.shape[1:])})"


def _times(*sizes: int | str) -> str:
    return " × ".join(map(str, sizes))


# --- from records to steps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """The words for one step, and where its numbers are recorded. `.0.` in a path stands for every block."""

    words: tuple[str, str, str, str]  # name, symbol, equation, shape in symbols
    module: str = ""  # its shape, parameters and product
    _: KW_ONLY
    products: tuple[str, ...] = ()  # where they are not the module's
    like: str = ""  # the module or product whose shape this step has, where it is not the module's
    owns: tuple[str, ...] | None = None  # the parameters, where they are not the module's
    shape: tuple[int | str, ...] | None = None  # where no module has this output
    numbers: str = ""
    tap: str = ""


@lru_cache(maxsize=64)
def _steps(config: ModelConfig) -> tuple[Step, ...]:
    from vitreous.models import build
    from vitreous.models.vit import ViT

    with torch.device("meta"):
        # the readable ViT computes every token of every block, as the paper writes it
        model = (ViT(config) if isinstance(config, ViTConfig) else build(config)).train()
        one, two = (
            _Recorder(model).run(model, torch.zeros(count, config.channels, *config.image_size)) for count in (1, 2)
        )
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}
    equation = "–" if config.kind.endswith("cnn") else "Sec. 3.1"
    image = _Row(
        ("image", "x", equation, "B × C × H × W"),
        shape=("B", config.channels, *config.image_size),
        numbers=_times(*config.image_size, config.channels),
    )
    return tuple(_step(row, one, two, parameters) for row in (image, *_ROWS[config.kind](config)))


def _step(row: _Row, one: _Recorder, two: _Recorder, parameters: dict[str, int]) -> Step:
    products = row.products or ((f"{row.module}#0",) if row.module else ())
    reference = row.like or row.module or "".join(products[:1])
    shape = row.shape or _with_batch(one.shapes[reference], two.shapes[reference])
    owners = [_any_block(name) if ".0." in name else name for name in row.owns or (row.module,) if name]
    owned = {owner: sum(size for name, size in parameters.items() if _belongs(name, owner)) for owner in owners}
    times = sum(_any_block(path) == _any_block(reference) for path in one.shapes) if ".0." in reference else 1
    return Step(
        *row.words[:3],
        numbers=row.numbers or one.operands.get("".join(products[-1:]), "") or _times(*shape[1:]),
        shape_symbols=row.words[3],
        shape=shape,
        parameters=sum(owned.values()),
        flops=times * sum(one.flops.get(product, 0) for product in products),
        times=times,
        owns=tuple(owner for owner, size in owned.items() if size),
        tap=row.tap,
    )


def _any_block(path: str) -> str:
    return re.sub(r"\b(blocks|layers)\.\d+\.", r"\1.*.", path)


def _belongs(parameter: str, owner: str) -> bool:
    return f"{_any_block(parameter) if '*' in owner else parameter}.".startswith(f"{owner}.")


def _with_batch(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int | str, ...]:
    """Return a shape with "B" where it grows with the number of images: (2, 17, 17), (4, 17, 17) → (B, 2, 17, 17)."""
    sizes: list[int | str] = []
    for size, doubled in zip(one, two, strict=True):
        sizes += [size] if doubled == size else ["B"] if size == 1 else ["B", size]
    return tuple(sizes)


# --- the words -------------------------------------------------------------------------------------------------


def _vit(c: ViTConfig) -> Iterator[_Row]:
    stream = "B × (N + 1) × D" if c.has_class_token else "B × N × D"
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
    numbers = f"{c.num_tokens} × {c.dim} → {c.dim}"
    products, owns = ("pool_score#0", "#0"), ("norm", "pool_score")
    yield _Row(words, products=products, owns=owns, shape=("B", c.dim), numbers=numbers, tap="pooled")
    if c.head == "mlp":
        yield _Row(("hidden layer of the head, tanh", "tanh(y W_h)", "Sec. 3.1", "B × hidden"), "pre_logits")
    yield _Row(("classify", "logits", "Sec. 3.1", "B × classes"), "head", tap="logits")


def _patches(c: ViTConfig) -> Iterator[_Row]:
    features, patch = ("B × C′ × H′ × W′", "P²C′") if c.stem_channels else ("B × C × H × W", "P²C")
    module, hybrid = 0, ("x′", "Sec. 3.1, hybrid", features)  # ConvStem: a convolution, its GELU, residual blocks
    for stage in range(1, len(c.stem_channels) + 1):
        yield _Row((f"stem {stage}: conv 3×3, stride 2, GELU", *hybrid), f"stem.{module}")
        for block in range(1, c.stem_depth):
            path, name = f"stem.{module + 1 + block}", f"stem {stage}.{block}: x′ + GELU(conv 3×3(LN(x′)))"
            yield _Row((name, *hybrid), path, products=(f"{path}.conv#0",))
        module += 1 + c.stem_depth
    channels = c.stem_channels[-1] if c.stem_channels else c.channels
    if c.fitted_size != c.feature_size:
        words = ("pad with zeros" if c.fit == "pad" else "resize", "–", "–", features)
        sizes = f"{_times(*c.feature_size)} → {_times(*c.fitted_size)}"
        yield _Row(words, shape=("B", channels, *c.fitted_size), numbers=sizes)
    words, size = ("split into patches", "x_p", "Sec. 3.1", f"B × N × {patch}"), math.prod(c.patch_size) * channels
    sizes = f"{_times(*c.grid)} patches of {_times(*c.patch_size, channels)}"
    yield _Row(words, shape=("B", c.num_patches, size), numbers=sizes)
    words = ("project the patches", "x_p E", "Eq. 1", "B × N × D")
    yield _Row(words, "patch_embed", products=("patch_embed.proj#0",))


def _class_token_and_positions(c: ViTConfig, stream: str) -> Iterator[_Row]:
    if c.has_class_token:
        words, sizes = (
            ("prepend the class token", "[x_class; x_p E]", "Eq. 1", stream),
            f"1 + {c.num_patches} → {c.num_tokens}",
        )
        yield _Row(words, like="drop", owns=("cls_token",), numbers=sizes)
    if c.positions == "learned":
        yield _Row(("add the positions", "+ E_pos", "Eq. 1", stream), like="drop", owns=("pos_embed",))
    if c.positions == "learned-2d":
        words, sizes = (
            ("add 2-D positions: row, column", "+ E_pos", "App. D.4", stream),
            f"({c.grid[0]} + {c.grid[1]}) × {c.dim // 2}",
        )
        yield _Row(words, like="drop", owns=("pos_embed_row", "pos_embed_column"), numbers=sizes)
    if c.positions == "sincos-2d":
        yield _Row(("add fixed 2-D sine-cosine positions", "+ E_pos", "–", stream), like="drop")
    why = {"none": "no positions are added", "relative": "positions are relative: see the blocks"}.get(c.positions, "")
    yield _Row(("tokens", "z_0", "Eq. 1", stream), like="drop", numbers=why, tap="tokens")


def _encoder_block(
    stream: str, attention: str, *, qkv: str, proj: str, fc1: str, fc2: str, products: tuple[int, int],
    taps: bool = False, from_normalised: bool = False,
) -> Iterator[_Row]:  # fmt: skip
    """Yield the rows of a block; `products` are the numbers of q kᵀ and A v among those of the attention module."""
    tokens = "(N + 1)" if "+" in stream else "N"
    pairs, per_head = f"B × k × {tokens} × {tokens}", f"B × k × {tokens} × D_h"
    weights, values = ((f"{attention}#{number}",) for number in products)
    skip = "LN({})" if from_normalised else "{}"

    def tap(name: str) -> str:
        return f"blocks.*.{name}" if taps else ""

    yield _Row(("normalise", "LN(z)", "Eq. 2", stream), "blocks.0.norm1")
    yield _product(("queries, keys, values", "q, k, v", "Eq. 5", f"B × {tokens} × 3·D"), qkv, "in_proj")
    if products == (0, 2):
        words, owns = ("relative positions", "q rᵀ / √D_h", "App. D.4", pairs), (f"{attention}.rel_pos",)
        yield _Row(words, products=(f"{attention}#1",), like=weights[0], owns=owns)
    words = ("attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", pairs)
    yield _Row(words, products=weights, tap=tap("attention"))
    yield _Row(("weight the values", "SA(z) = A v", "Eq. 7", per_head), products=values, tap=tap("heads"))
    yield _product(("join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", stream), proj, "out_proj")
    words = ("add", f"z′ = MSA(LN(z)) + {skip.format('z')}", "–" if from_normalised else "Eq. 2", stream)
    yield _Row(words, like="blocks.0.norm2", tap=tap("middle"))
    yield _Row(("normalise", "LN(z′)", "Eq. 3", stream), "blocks.0.norm2")
    yield _Row(("widen, GELU", "GELU(LN(z′) W_1)", "Eq. 3", f"B × {tokens} × MLP"), fc1)
    yield _Row(("narrow", "MLP(LN(z′))", "Eq. 3", stream), fc2)
    words = ("add", f"z = MLP(LN(z′)) + {skip.format('z′')}", "–" if from_normalised else "Eq. 3", stream)
    yield _Row(words, like=fc2, tap=tap("output"))


def _product(words: tuple[str, str, str, str], path: str, name: str) -> _Row:
    """Return the row of a linear layer, or of a product in nn.MultiheadAttention, whose parameters have a `name`."""
    module, numbered, _ = path.partition("#")
    if not numbered:
        return _Row(words, path)
    owns = (f"{module}.{name}",) if name == "out_proj" else (f"{module}.{name}_weight", f"{module}.{name}_bias")
    return _Row(words, products=(path,), owns=owns)


def _cnn(_: ModelConfig) -> Iterator[_Row]:
    yield from _convolutions("conv1", "conv2", "conv_dropout", "fc1", "fc2")


def _article_cnn(_: ModelConfig) -> Iterator[_Row]:
    yield from _convolutions("layers.0", "layers.2", "layers.4", "layers.7", "layers.10")
    yield _Row(("log-softmax", "log p", "–", "B × classes"), "layers.11")


def _convolutions(conv1: str, conv2: str, pooled: str, fc1: str, fc2: str) -> Iterator[_Row]:
    for conv in (conv1, conv2):
        yield _Row(("conv 3×3, ReLU", "ReLU(W ∗ x)", "–", "B × C′ × H′ × W′"), conv)
    yield _Row(("max-pool 2×2; flatten", "–", "–", "B × C′ × H″ × W″"), pooled)
    yield _Row(("hidden layer, ReLU", "ReLU(x W_1)", "–", "B × hidden"), fc1)
    yield _Row(("classify", "logits", "–", "B × classes"), fc2)


def _article_patches(module: str) -> Iterator[_Row]:
    words = ("split into patches", "x_p", "Sec. 3.1", "B × N × P²")
    yield _Row(words, shape=("B", 16, 49), numbers="4 × 4 patches of 7 × 7 × 1")
    yield _Row(("project the patches", "x_p E", "Eq. 1", "B × N × D"), module)


def _article_vit(c: ArticleViTConfig) -> Iterator[_Row]:
    """As written, attention runs over the images of a batch: its FLOPs here are those of a batch of one."""
    layer, stream, encoder = "model.encoder.layers.0.", "B × (N + 1) × D", "model.encoder"
    yield from _article_patches("model.patch_projection")
    name, equation = ("the class token", "Eq. 1") if "class-token" in c.fixes else ("a fixed random vector", "–")
    words = (f"prepend {name}", "[x_class; x_p E]", equation, stream)
    yield _Row(words, like=encoder, owns=("model.class_token",), numbers="1 + 16 → 17")
    yield _Row(("add the positions", "+ E_pos", "Eq. 1", stream), "model.position_embedding", like=encoder)
    if "normalisation" not in c.fixes:
        yield _Row(("L2-normalise across the tokens", "z_0", "–", stream), like=encoder)
    yield _product(("queries, keys, values", "q, k, v", "Eq. 5", "B × (N + 1) × 3·D"), f"{layer}self_attn#0", "in_proj")
    if "attention" in c.fixes:
        weights = ("attention weights", "A = softmax(q kᵀ / √D_h)", "Eq. 6", "B × k × (N + 1) × (N + 1)")
        values = ("weight the values", "SA(z) = A v", "Eq. 7", "B × k × (N + 1) × D_h")
    else:
        weights = ("attention weights, image to image", "A = softmax(q kᵀ / √D_h)", "–", "(N + 1)·k × B × B")
        values = ("weight the values of other images", "A v", "–", "(N + 1)·k × B × D_h")
    yield _Row(weights, products=(f"{layer}self_attn#1",))
    yield _Row(values, products=(f"{layer}self_attn#2",))
    yield _product(("join the heads", "[SA_1; …; SA_k] U_msa", "Eq. 8", stream), f"{layer}self_attn#3", "out_proj")
    if "pre-norm" in c.fixes:
        first = ("normalise; add", "z′ = MSA(LN(z)) + z", "Eq. 2", stream)
        second = ("normalise; add", "z = MLP(LN(z′)) + z′", "Eq. 3", stream)
    else:
        first = ("add, then normalise", "z′ = LN(MSA(z) + z)", "–", stream)
        second = ("add, then normalise", "z = LN(MLP(z′) + z′)", "–", stream)
    yield _Row(first, f"{layer}norm1")
    yield _Row(("widen, GELU", "GELU(z′ W_1)", "Eq. 3", "B × (N + 1) × MLP"), f"{layer}linear1")
    yield _Row(("narrow", "MLP(z′)", "Eq. 3", stream), f"{layer}linear2")
    yield _Row(second, f"{layer}norm2")
    yield _Row(
        ("take the class token", "y = z_L⁰", "–", "B × D"), shape=("B", c.dim), numbers=f"17 × {c.dim} → {c.dim}"
    )
    for i, after in enumerate(("", ", tanh"), start=1):
        yield _Row((f"linear {i}{after}", f"h_{i}", "–", "B × hidden"), f"model.linear{i}")
    yield _Row(("linear 3, log-softmax", "log p", "–", "B × classes"), "model.linear3")


def _article_design(c: ArticleDesignConfig) -> Iterator[_Row]:
    """Class token and positions pass through linear layers once per batch: their FLOPs are those of a batch of one."""
    stream = "B × (N + 1) × D"
    yield from _article_patches("patch_projection")
    words = ("project the class token", "x_class W_c", "–", "1 × D")
    yield _Row(words, "class_projection", owns=("class_token", "class_projection"), shape=(1, c.dim))
    name, symbols = ("for all", "D") if c.positions == "as-written" else ("per index", "(N + 1) × D")
    yield _Row((f"positions: one vector {name}", "[0 … N] W_p", "–", symbols), "position_projection")
    yield _Row(("tokens", "z_0 = [x_class; x_p E] + E_pos", "Eq. 1", stream), shape=("B", 17, c.dim))
    attention, mlp = "blocks.0.attention", "blocks.0.mlp"
    yield from _encoder_block(
        stream, attention, qkv=f"{attention}#0", proj=f"{attention}#3", fc1=f"{mlp}.0", fc2=f"{mlp}.2", products=(1, 2),
        from_normalised=c.residual == "normalised",
    )  # fmt: skip
    yield _Row(("normalise the class token", "y = LN(z_L⁰)", "Eq. 4", "B × D"), "norm")
    yield _Row(("classify, log-softmax", "log p", "Sec. 3.1", "B × classes"), "classifier")


_ROWS: dict[str, Any] = {
    "vit": _vit,
    "cnn": _cnn,
    "post-cnn": _article_cnn,
    "post-vit": _article_vit,
    "post-design": _article_design,
}


# --- output ------------------------------------------------------------------------------------------------------


def as_json(config: ModelConfig) -> dict[str, Any]:
    """Return the steps and their totals as plain values."""
    return {
        "kind": config.kind,
        "parameters": count_parameters_of(config),
        "flops": count_flops(config),
        "flops_counted": FLOPS_COUNTED,
        "steps": [asdict(step) for step in shapes(config)],
    }


def shapes_table(config: ModelConfig, title: str = "") -> Table:
    """Return the steps as a table for the terminal; the steps of an encoder block are listed once."""
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
