"""The order of a training: a pure function of (seed, epoch, position), the same for every number of processes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.block_order import WINDOW_BLOCKS, block_order
from vitreous.data.sampler import BatchSampler
from vitreous.data.splits import Split


def whole(num_images: int, block: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return block_order(num_images, block, seed, epoch, np.arange(num_images))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 90), st.integers(0, 2**31 - 1), st.integers(0, 1000))
def test_every_image_comes_once_wherever_one_starts(num_images: int, block: int, seed: int, epoch: int) -> None:
    order = whole(num_images, block, seed, epoch)
    assert sorted(order.tolist()) == list(range(num_images))
    some = np.arange(num_images // 3, num_images)[::-1]
    np.testing.assert_array_equal(block_order(num_images, block, seed, epoch, some), order[some])


def test_the_order_is_pinned() -> None:
    """A run that is resumed by another version must see the same images."""
    assert whole(12, 3, seed=7, epoch=2).tolist() == [8, 7, 10, 9, 5, 2, 1, 3, 11, 6, 0, 4]


def test_seeds_and_epochs_differ() -> None:
    orders = [whole(500, 4, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_window_is_read_from_few_blocks_in_random_order() -> None:
    block, num_images = 10, 10 * 40 * WINDOW_BLOCKS
    order = whole(num_images, block)
    window = order[: block * WINDOW_BLOCKS]
    assert len(np.unique(window // block)) == WINDOW_BLOCKS
    assert abs(np.corrcoef(np.arange(len(window)), window)[0, 1]) < 0.1
    firsts = order[:: block * WINDOW_BLOCKS]
    assert np.ptp(firsts) > num_images / 2, "the windows are spread over all blocks"
    places = np.argsort(window)  # within a window, every image may come anywhere
    assert abs(places.mean() / len(window) - 0.5) < 0.05


def test_positions_are_equally_likely() -> None:
    """Where the first image comes, over many epochs: chi squared of 10 bins, at the 0.1 % level."""
    hits = [int(np.flatnonzero(whole(100, 3, epoch=epoch) == 0)[0]) for epoch in range(1000)]
    counts = np.bincount(np.array(hits) // 10, minlength=10)
    assert ((counts - 100) ** 2 / 100).sum() < 27.9


def test_no_list_of_all_images_is_made() -> None:
    sampler = BatchSampler(10**12, 1000, seed=0, block=100)
    tracemalloc.start()
    (_, epoch, batch), *_ = sampler.steps(5 * 10**8, 5 * 10**8 + 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert epoch == 0
    assert len(batch.unique()) == 1000
    assert peak < 2**20


@pytest.mark.parametrize("block", [None, 7])
@pytest.mark.parametrize("batch_size", [12, 10])
def test_any_number_of_processes_sees_the_same_batches(block: int | None, batch_size: int) -> None:
    num_images, steps = 103, 25
    alone = [batch for *_, batch in BatchSampler(num_images, batch_size, 1, block=block).steps(0, steps)]
    for world_size in (2, 3):
        ranks = [
            BatchSampler(num_images, batch_size, 1, rank, world_size, block).steps(0, steps)
            for rank in range(world_size)
        ]
        for batch, *shares in zip(alone, *ranks, strict=True):
            assert torch.equal(torch.cat([share for *_, share in shares]), batch)
            sizes = [len(share) for *_, share in shares]
            assert max(sizes) - min(sizes) <= 1
    per_epoch = num_images // batch_size
    for epoch in range(2):
        seen = torch.cat(alone[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert len(seen.unique()) == per_epoch * batch_size, "each image at most once per epoch"
    resumed = [batch for *_, batch in BatchSampler(num_images, batch_size, 1, block=block).steps(13, steps)]
    assert all(map(torch.equal, resumed, alone[13:]))


def test_images_in_memory_keep_the_order_of_earlier_versions() -> None:
    split = Split(torch.zeros(50, 1, 2, 2, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64))
    sampler = BatchSampler.of(split, 10, seed=3)
    generator = torch.Generator().manual_seed(3 * 1_000_003 + 4)
    assert torch.equal(sampler.order(4), torch.randperm(50, generator=generator))
