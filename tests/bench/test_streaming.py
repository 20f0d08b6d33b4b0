"""bench/streaming.py: the shards it writes, and that both sides of its comparison read the same images."""

from __future__ import annotations

from pathlib import Path

import streaming
import torch

from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.mapped import MappedRows
from vitreous.data.prepared import verify_folder
from vitreous.data.sampler import BatchSampler


def test_both_sides_read_the_same_images(tmp_path: Path) -> None:
    folder = streaming.write_images(tmp_path / "shards", 400)
    assert set(verify_folder(folder).values()) == {"ok"}
    shards = load_dataset(DataConfig(name=str(folder)))
    memory = streaming.in_memory(shards)
    assert isinstance(shards.train.store, MappedRows)
    assert isinstance(memory.train.store, torch.Tensor)
    samplers = [BatchSampler.of(dataset.train, 32, seed=0).steps(0, 9) for dataset in (shards, memory)]
    for (*_, ours), (*_, theirs) in zip(*samplers, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(shards.train.batch(ours), memory.train.batch(theirs))
    work = streaming.workers(memory)
    assert all(seconds > 0 for seconds in (work["read"](), work["read"]()))
