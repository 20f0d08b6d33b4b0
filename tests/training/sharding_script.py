"""One of several ranks, which each test of sharding starts: `first_steps` or `fit` by name, with JSON arguments."""

from __future__ import annotations

import json
import sys
from typing import Any

from trainings import small

from vitreous.config import override
from vitreous.data.sampler import BatchSampler
from vitreous.training import distributed, loop
from vitreous.training.setup import prepare
from vitreous.training.sharding import local
from vitreous.training.step import Stepper


def first_steps(ways: dict[str, list[str]], steps: int) -> None:
    """Train the first steps each way, from the same weights; rank 0 prints the losses and weights."""
    with distributed.group(timeout_seconds=60) as group:
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
                "values": [sum(local(value).numel() for value in stepper.model.parameters()) for _ in range(1)][0],
                "optimizer_values": sum(local(value).numel() for value in states),
            }
            if group.is_main:
                print(json.dumps(found), flush=True)


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
    {"first_steps": first_steps, "fit": fit}[sys.argv[1]](**json.loads(sys.argv[2]))
