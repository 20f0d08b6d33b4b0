"""One of several ranks, which the tests of sharding start: `first_steps`, `pretend` or `fit`, with JSON arguments."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
from trainings import NO_THREADS_OF_GLOO, small

from vitreous.config import configure, override
from vitreous.data.sampler import BatchSampler
from vitreous.models import build
from vitreous.training import distributed, loop
from vitreous.training.optimizers import make_optimizers
from vitreous.training.setup import prepare
from vitreous.training.sharding import local, mesh_of, recompute_blocks, shard
from vitreous.training.step import Stepper


def first_steps(ways: dict[str, list[str]], steps: int) -> None:
    """Train the first steps each way, from the same weights; rank 0 prints the losses and weights."""
    with distributed.group(timeout_seconds=60, shard=True) as group:
        for way, settings in ways.items():
            config, dataset, preprocessing, resolved, _ = prepare(override(small(), settings), "cpu", group)
            stepper = Stepper(config, dataset, preprocessing, resolved, group)
            sampler = BatchSampler(len(dataset.train), resolved.batch_size, config.seed, group.rank, group.world_size)
            losses = [group.sum([stepper.step(*step)[0]])[0] / group.world_size for step in sampler.steps(0, steps)]
            weights = {name: value.flatten().tolist() for name, value in stepper.kept_model.state_dict().items()}
            states = [value for o in stepper.optimizers for s in o.state.values() for value in s.values() if value.ndim]
            found: dict[str, Any] = {
                "way": way,
                "losses": losses,
                "weights": weights,
                "values": sum(local(value).numel() for value in stepper.model.parameters()),
                "optimizer_values": sum(local(value).numel() for value in states),
            }
            if group.is_main:
                print(json.dumps(found), flush=True)
    exec(NO_THREADS_OF_GLOO)  # while the last stepper is alive


def pretend(settings: list[str], preset: str, ranks: int) -> None:
    """Train two steps as rank 0 of many, on fake tensors and without communication; print this rank's bytes."""
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    config = configure(preset, settings=settings)
    mesh = mesh_of(torch.device("cpu"), ranks)
    with torch.device("meta"):
        skeleton = build(config.model).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = skeleton.to_empty(device="cpu")
        recompute_blocks(model)
        shard(model, mesh)
        optimizers = make_optimizers(model, config.train)
        images = torch.zeros(2, config.model.channels, *config.model.image_size)
        for _ in range(2):
            F.cross_entropy(model(images), torch.zeros(2, dtype=torch.long)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
    states = [value for o in optimizers for state in o.state.values() for value in state.values() if value.ndim]
    tensors = {
        "parameters": list(model.parameters()),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "optimizer": states,
    }
    print(json.dumps({name: sum(local(value).nbytes for value in values) for name, values in tensors.items()}))


def fit(settings: list[str], out: str, stop_at: int | None = None, resume: bool = False) -> None:
    """Train a run; with `stop_at`, until that step is saved."""
    save = loop.Trainer._save

    def save_and_stop(trainer: loop.Trainer, done: int) -> None:
        save(trainer, done)
        if done == stop_at:
            raise SystemExit(7)

    loop.Trainer._save = save_and_stop  # type: ignore[method-assign]
    loop.fit(override(small(), settings), out, resume=resume, progress=False)


if __name__ == "__main__":
    {"first_steps": first_steps, "pretend": pretend, "fit": fit}[sys.argv[1]](**json.loads(sys.argv[2]))
