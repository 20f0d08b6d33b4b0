"""The tensors of a checkpoint: model, averaged weights, optimizers and random generators, by name."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from vitreous.training.devices import generator_states, set_generator_states
from vitreous.training.distributed import Group
from vitreous.training.step import Stepper


def tensors_to_save(stepper: Stepper, group: Group) -> dict[str, Tensor]:
    """Return copies of everything that a step depends on; on ranks other than 0, which do not save, the generators."""
    states = generator_states(stepper.device)
    tensors = {name: group.gather(state[None]) for name, state in states.items()}  # one row per rank
    if group.is_main:
        tensors |= {f"model.{name}": value for name, value in stepper.model.state_dict().items()}
        if stepper.averaged is not None:
            kept = stepper.averaged.averaged.state_dict()
            tensors |= {f"averaged.{name}": value for name, value in kept.items()}
        tensors |= _optimizer_tensors(stepper)
    # two names may share one tensor; safetensors wants each stored once. Copied to the CPU: a GPU may have no room
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def restore(stepper: Stepper, tensors: dict[str, Tensor], group: Group) -> None:
    """Put the tensors back; a RuntimeError or a LookupError where they are those of another model."""
    stepper.model.load_state_dict(with_prefix(tensors, "model."))
    if stepper.averaged is not None:
        stepper.averaged.averaged.load_state_dict(with_prefix(tensors, "averaged."))
    _restore_optimizers(stepper, tensors)
    generators = {name: value for name, value in tensors.items() if name.endswith("generators")}
    if len(generators["generators"]) == group.world_size:
        rows = {name: value[group.rank].clone() for name, value in generators.items()}
        set_generator_states(stepper.device, rows)
    else:  # another number of processes: dropout goes on with new random numbers, which differ between ranks
        state = hashlib.sha256(generators["generators"].numpy().tobytes()).digest()
        torch.manual_seed(int.from_bytes(state[:7], "big") + group.rank)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _optimizer_tensors(stepper: Stepper) -> dict[str, Tensor]:
    """Return the optimizers' tensors, named optimizer.NUMBER.PARAMETER.KEY."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in stepper.model.named_parameters()}
    return {
        f"optimizer.{number}.{names[parameter]}.{key}": torch.as_tensor(value)
        for number, optimizer in enumerate(stepper.optimizers)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def _restore_optimizers(stepper: Stepper, tensors: dict[str, Tensor]) -> None:
    parameters = dict(stepper.model.named_parameters())
    for number, optimizer in enumerate(stepper.optimizers):
        for path, value in with_prefix(tensors, f"optimizer.{number}.").items():
            name, _, key = path.rpartition(".")
            optimizer.state[parameters[name]][key] = value.to(stepper.device)
