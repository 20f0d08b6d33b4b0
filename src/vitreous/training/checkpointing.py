"""What a checkpoint has: model, averaged weights, optimizers and random generators, by name.

Rank 0 saves what every rank has whole. What is sharded is written by all ranks, with torch.distributed.checkpoint, and
read by any number of them.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitreous.downloads.files import sha256_of, sync_folder
from vitreous.errors import RunError
from vitreous.runs import ResumePoint, Run
from vitreous.training.devices import generator_states, seed_generators, set_generator_states
from vitreous.training.distributed import Group
from vitreous.training.sharding import divided_like, is_sharded
from vitreous.training.step import Stepper


def tensors_to_save(stepper: Stepper, group: Group) -> dict[str, Tensor]:
    """Return copies of what a step depends on, but for the shards; on ranks other than 0, which do not save, less."""
    states = generator_states(stepper.device)
    tensors = {name: group.gather(state[None]) for name, state in states.items()}  # one row per rank
    if group.is_main:
        tensors |= {name: value for name, value in _named_tensors(stepper).items() if not is_sharded(value)}
    # two names may share one tensor; safetensors wants each stored once. Copied to the CPU: a GPU may have no room
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def write_shards(stepper: Stepper, run: Run, step: int, group: Group) -> dict[str, str]:
    """Write the sharded tensors, each rank its part; return the SHA-256 of every file, none where nothing is sharded.

    The folder gets its name once all ranks have written: until then, and until rank 0 vouches for it in the
    checkpoint's small file, the checkpoint before this one counts.
    """
    if not stepper.is_sharded:
        return {}
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    folder = run.shards_folder(step)
    partial = folder.with_name(f"{folder.name}.part")

    def make_empty() -> None:
        with run.writing():
            for old in (folder, partial):  # of a process that was killed here
                shutil.rmtree(old, ignore_errors=True)
            partial.mkdir(parents=True)

    def give_name() -> None:
        with run.writing():
            sync_folder(partial)
            os.replace(partial, folder)
            sync_folder(folder.parent)

    group.from_main(make_empty)
    shards = {name: value for name, value in _named_tensors(stepper).items() if is_sharded(value)}
    try:
        save(shards, storage_writer=HuggingFaceStorageWriter(str(partial), save_distributed=True))
    except CheckpointException as error:  # of any rank, on all of them
        reason, _ = next(iter(error.failures.values()))
        raise RunError(
            f"cannot write the shards to {str(folder)!r}: {reason}; make room, then go on with: {group.resume_command}"
        ) from None
    own = {file.name: sha256_of(file) for file in partial.glob(f"shard-{group.rank + 1:05d}-*")}
    checksums: list[Any] = [None] * group.world_size
    dist.all_gather_object(checksums, own)
    group.from_main(give_name)
    return {name: digest for of_rank in checksums for name, digest in of_rank.items()}


def restore(stepper: Stepper, point: ResumePoint, folder: Path, group: Group) -> None:
    """Put the tensors back; a RuntimeError or a LookupError where they are those of another model.

    The checkpoint may be of another number of processes. Then random numbers (dropout) begin anew: they are a sequence
    of each process.
    """
    tensors = {**point.tensors, **(_read_shards(stepper, folder) if point.shards else {})}
    _restore_model(stepper.model, with_prefix(tensors, "model."))
    if stepper.averaged is not None:
        _restore_model(stepper.averaged.averaged, with_prefix(tensors, "averaged."))
    _restore_optimizers(stepper, tensors)
    rows = {name: value for name, value in tensors.items() if name.endswith("generators")}
    if all(len(value) == group.world_size for value in rows.values()):
        set_generator_states(stepper.device, {name: value[group.rank].clone() for name, value in rows.items()})
    else:
        seed_generators(stepper.config.seed, group.rank, point.step)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _named_tensors(stepper: Stepper) -> dict[str, Tensor]:
    """Return model.NAME, averaged.NAME and optimizer.NUMBER.PARAMETER.KEY, which share the stepper's memory."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in stepper.model.named_parameters()}
    tensors = {f"model.{name}": value for name, value in stepper.model.state_dict().items()}
    if stepper.averaged is not None:
        kept = stepper.averaged.averaged.state_dict()
        tensors |= {f"averaged.{name}": value for name, value in kept.items()}
    tensors |= {
        f"optimizer.{number}.{names[parameter]}.{key}": torch.as_tensor(value)
        for number, optimizer in enumerate(stepper.optimizers)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }
    return tensors


def _read_shards(stepper: Stepper, folder: Path) -> dict[str, Tensor]:
    """Read the shards into tensors divided as the stepper's are; those of its models are read into place."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    own, parameters = _named_tensors(stepper), dict(stepper.model.named_parameters())
    targets: dict[str, Tensor] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        _, _, path = name.removeprefix("optimizer.").partition(".")  # the optimizers have no state yet
        like = own[name] if name in own else parameters[path.rpartition(".")[0]]
        if like.shape != stored.size:  # type: ignore[union-attr]
            raise LookupError(name)
        targets[name] = own[name] if name in own else torch.empty_like(like, requires_grad=False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # by a single process
            load(targets, storage_reader=reader, no_dist=not dist.is_initialized())
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise LookupError(str(reason)) from None
    return targets


def _restore_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = model.state_dict()
    model.load_state_dict({name: divided_like(value, own.get(name, value)) for name, value in tensors.items()})


def _restore_optimizers(stepper: Stepper, tensors: dict[str, Tensor]) -> None:
    parameters = dict(stepper.model.named_parameters())
    for number, optimizer in enumerate(stepper.optimizers):
        for path, value in with_prefix(tensors, f"optimizer.{number}.").items():
            name, _, key = path.rpartition(".")
            if value.shape == parameters[name].shape:  # not a count of steps
                value = divided_like(value, parameters[name])
            optimizer.state[parameters[name]][key] = value.to(stepper.device)
