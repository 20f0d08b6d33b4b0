"""The tensors of a model: those it forgot to register, random values for them, and what they were before."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # what every module has: `_parameters`, hooks, `training`


def unregistered_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are neither parameters nor buffers, including those of modules kept in plain lists."""
    registered = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    modules = {id(module) for module in model.modules()}
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MODULE_ATTRIBUTES:
                continue
            for name, item in _tensors_and_modules(value, f"{prefix}.{attribute}" if prefix else attribute):
                if isinstance(item, Tensor) and id(item) not in registered:
                    found[name] = item
                elif isinstance(item, nn.Module) and id(item) not in modules:
                    inner = [*item.named_parameters(prefix=name), *item.named_buffers(prefix=name)]
                    found |= {path: tensor for path, tensor in inner if id(tensor) not in registered}
    return found


def _tensors_and_modules(value: Any, name: str) -> Iterator[tuple[str, Tensor | nn.Module]]:
    if isinstance(value, Tensor | nn.Module):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors_and_modules(item, f"{name}[{key!r}]")


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore attributes, values, requires_grad and gradients afterwards."""
    attributes = []
    for module in model.modules():
        members = {key: dict(vars(module)[key]) for key in ("_parameters", "_buffers", "_modules")}
        attributes.append((module, dict(vars(module)), members))
    # caches: some models keep tensors in a dict or a list
    plain = [
        value for module in model.modules() for key, value in vars(module).items() if key not in _MODULE_ATTRIBUTES
    ]
    containers = [(value, copy.copy(value)) for value in plain if type(value) in (dict, list)]
    candidates = [*model.parameters(), *model.buffers(), *unregistered_tensors(model).values()]
    leaves = [tensor for tensor in candidates if tensor.is_leaf and not tensor.is_inference()]
    values = [(tensor, tensor.detach().clone(), tensor.requires_grad, tensor.grad) for tensor in leaves]
    try:
        yield
    finally:
        for module, own, members in attributes:
            vars(module).clear()
            vars(module).update(own)
            for key, member in members.items():
                vars(module)[key].clear()
                vars(module)[key].update(member)
        for container, content in containers:
            container.clear()
            container.update(content) if isinstance(container, dict) else container.extend(content)
        for tensor, value, requires_grad, grad in values:
            tensor.requires_grad_(requires_grad)
            tensor.data.copy_(value)
            tensor.grad = grad


@torch.no_grad()
def randomise_parameters(model: nn.Module, seed: int) -> None:
    """Give every parameter that training can change a random value of a sensible size.

    Fresh models hide faults: a zero head gives every image the same logits, layer scales of 1e-5 disable whole blocks.
    Matrices preserve the variance of their input (1 / fan-in), vectors change by 0.2 around their value. Frozen
    parameters keep their values (a position table frozen at zero stays zero), unless all are frozen.
    """
    generator = torch.Generator().manual_seed(seed)
    trainable = any(parameter.requires_grad for parameter in model.parameters())
    for parameter in model.parameters():
        if not parameter.is_floating_point() or (trainable and not parameter.requires_grad):
            continue
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        if parameter.ndim <= 1:
            parameter.add_(0.2 * noise)
        elif parameter.ndim > 2 and parameter.shape[0] == 1:  # tokens and positions (1, N, D), (1, H, W, D)
            parameter.copy_(noise * 0.5)
        elif parameter.ndim == 3:  # one matrix (in, out) per head
            parameter.copy_(noise * parameter.shape[1] ** -0.5)
        else:
            parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5)


_NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.RMSNorm)


def looks_fresh(model: nn.Module) -> bool | None:
    """Whether all norm layers are at weight 1 and bias 0, which one training step changes; None without norm layers."""
    norms = [module for module in model.modules() if isinstance(module, _NORMS) and module.weight is not None]
    biases = [bias for norm in norms if (bias := getattr(norm, "bias", None)) is not None]
    initial = all(bool((norm.weight == 1).all()) for norm in norms) and not any(bool(bias.any()) for bias in biases)
    return initial if norms else None


def lost_on_another_device(build: Callable[..., nn.Module], arguments: dict[str, Any]) -> list[str]:
    """Return the parameters that are none if the model is built for another device; empty if it takes no device.

    `nn.Parameter(x).to(device)` is a parameter on the CPU, where nothing is moved, and a plain tensor elsewhere.
    """
    try:
        if "device" not in inspect.signature(build).parameters:
            return []
        here, there = (build(**arguments | {"device": device}) for device in ("cpu", "meta"))
    except Exception:  # not every constructor runs on a device without memory
        return []
    registered = {name for name, _ in there.named_parameters()}
    return [name for name, _ in here.named_parameters() if name not in registered]
