"""Every step of a model: its symbol, its equation, its numbers, its shape, its parameters and its FLOPs.

The model is built and run on torch's meta device, where nothing is allocated: ViT-H/14 costs as little as the smallest
model. Shapes, parameters and FLOPs (of one image, as `torch.utils.flop_counter` counts them) are recorded from that
run; only the paper's names for the steps are written down, in `step_names.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from vitreous.config import ModelConfig, ViTConfig
from vitreous.models.step_names import STEP_NAMES, StepNames, joined

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
        return f"{joined(*out.shape[2:])} × ({math.prod(kernel)} · {inputs} → {outputs})"
    left, right = [arg for arg in args if isinstance(arg, Tensor) and arg.ndim >= 2][-2:]
    if left.ndim == 2:
        return f"{joined(*left.shape) if left.shape[0] > 1 else left.shape[1]} → {right.shape[-1]}"
    return f"{left.shape[0]} · ({joined(*left.shape[1:])} · {joined(*right.shape[1:])})"


# --- from records to steps -------------------------------------------------------------------------------------


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
    image = StepNames(
        ("image", "x", equation, "B × C × H × W"),
        shape=("B", config.channels, *config.image_size),
        numbers=joined(*config.image_size, config.channels),
    )
    return tuple(_step(row, one, two, parameters) for row in (image, *STEP_NAMES[config.kind](config)))


def _step(row: StepNames, one: _Recorder, two: _Recorder, parameters: dict[str, int]) -> Step:
    products = row.products or ((f"{row.module}#0",) if row.module else ())
    reference = row.like or row.module or "".join(products[:1])
    shape = row.shape or _with_batch(one.shapes[reference], two.shapes[reference])
    owners = [_any_block(name) if ".0." in name else name for name in row.owns or (row.module,) if name]
    owned = {owner: sum(size for name, size in parameters.items() if _belongs(name, owner)) for owner in owners}
    times = sum(_any_block(path) == _any_block(reference) for path in one.shapes) if ".0." in reference else 1
    return Step(
        *row.words[:3],
        numbers=row.numbers or one.operands.get("".join(products[-1:]), "") or joined(*shape[1:]),
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
