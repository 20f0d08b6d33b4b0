"""Large models: parameters, gradients and optimizer state divided among the processes (FSDP2), blocks recomputed.

torch's modules for this are imported where they are needed: they take most of a second, and few trainings shard.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.config import ModelConfig
from vitreous.models import build

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def mesh_of(device: torch.device, world_size: int) -> DeviceMesh:
    """Return all processes as one line of devices, for `shard`."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size,))


def shard(model: nn.Module, mesh: DeviceMesh) -> FSDPModule:
    """Divide the parameters of a ViT among the processes, each by its rows, and move this rank's part to its device.

    A block's parameters are gathered while it computes; those outside the blocks stay gathered during a step.
    """
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model.blocks, nn.ModuleList)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def release_group(model: nn.Module) -> None:
    """Forget the process group of a sharded model (see `Group.leave`): its meshes, which torch's caches keep, have it.

    By private names of torch 2.13; a version that has others keeps the group, as without this.
    """
    for module in model.modules():
        if not is_sharded_model(module):
            continue
        groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", [])
        for group in groups:
            group.mesh_info.shard_process_group = None
            getattr(group.mesh_info.mesh, "_pg_registry", {}).clear()
        groups.clear()
    gc.collect()  # what is left of them refers to itself


def recompute_blocks(model: nn.Module) -> None:
    """Keep only the inputs of a ViT's blocks for the backward pass, which computes each block again.

    With the same random numbers, so the losses are the same bits. By the instance's `forward`, inside of FSDP's hooks
    (a block is gathered once for both) and without other parameter names.
    """
    assert isinstance(model.blocks, nn.ModuleList)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "to_local")


def is_sharded_model(model: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(model, "set_requires_gradient_sync")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, which shares its memory; any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def divided_like(whole: Tensor, target: Tensor) -> Tensor:
    """Return a tensor that every rank has whole, divided as `target` is; itself if it is already, or that is not."""
    if is_sharded(whole) or not is_sharded(target):
        return whole
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(target.device)
    return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)  # sends nothing


def gathered(model: nn.Module, config: ModelConfig) -> nn.Module:
    """Return a whole model with the weights of a sharded one; every rank must call it at the same time."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    whole = {name: tensor.full_tensor() if is_sharded(tensor) else tensor for name, tensor in tensors.items()}
    with torch.device("meta"):
        copy = build(config)
    _assign(copy, {name: tensor.detach().clone() for name, tensor in whole.items()})
    return copy.requires_grad_(False)


def _assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers, also those that no state dict has (tables of positions)."""
    for name, tensor in tensors.items():
        parent, _, own = name.rpartition(".")
        module = model.get_submodule(parent)
        if own in module._parameters:
            module._parameters[own] = nn.Parameter(tensor)
        else:
            module._buffers[own] = tensor
