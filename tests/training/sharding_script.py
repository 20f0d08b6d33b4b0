"""One of several ranks: train the first steps of a case each way and print, on rank 0, JSON of the losses and weights.

The ways are those of `train`: DDP, sharded, sharded with recomputed blocks. All begin at the same weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from trainings import small

from vitreous.config import Config, override
from vitreous.data.sampler import BatchSampler
from vitreous.training import distributed
from vitreous.training.setup import prepare
from vitreous.training.sharding import local
from vitreous.training.step import Stepper

WAYS = {
    "ddp": (),
    "shard": ("train.shard=true",),
    "recompute": ("train.activation_checkpointing=true",),
    "shard, recompute": ("train.shard=true", "train.activation_checkpointing=true"),
}


def train(config: Config, group: distributed.Group, steps: int) -> dict[str, Any]:
    config, dataset, preprocessing, resolved, weights = prepare(config, "cpu", group)
    stepper = Stepper(config, dataset, preprocessing, resolved, group, weights)
    sampler = BatchSampler(len(dataset.train), resolved.batch_size, config.seed, group.rank, group.world_size)
    losses = []
    for step, epoch, indices in sampler.steps(0, steps):
        loss, _ = stepper.step(step, epoch, indices)
        losses.append(group.sum([loss])[0] / group.world_size)
    state = stepper.kept_model.state_dict()
    states = [value for o in stepper.optimizers for s in o.state.values() for value in s.values() if value.ndim]
    return {
        "losses": losses,
        "weights": {name: value.flatten().tolist() for name, value in state.items()},
        "optimizer values": sum(local(value).numel() for value in states),
        "values": sum(local(value).numel() for value in stepper.model.parameters()),
        "sha256": hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest(),
    }


if __name__ == "__main__":
    cases, steps = json.loads(sys.argv[1]), int(sys.argv[2])
    with distributed.group(timeout_seconds=60) as group:
        for case, settings in cases.items():
            for way, more in WAYS.items():
                found = train(override(small(), [*settings, *more]), group, steps)
                if group.is_main:
                    print(json.dumps({"case": case, "way": way, **found}), flush=True)
