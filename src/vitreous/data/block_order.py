"""A random order of images that are stored in blocks, as a pure function: no list of all images is ever made.

The blocks of an epoch come in random order, `WINDOW_BLOCKS` of them form a window, and the images of a window are in
random order among themselves. So a disk reads long runs, and the images of a batch are from many blocks. Permutations
are Feistel networks (Luby and Rackoff, 1988) with splitmix64 as their round function; what falls outside of the range
is permuted again until it is inside (cycle walking).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.splitmix import splitmix64

BLOCK_BYTES = 2**22  # of pixels: a hard disk reads them in about the time that it takes to seek twice
WINDOW_BLOCKS = 64
_ROUNDS = 6
_ORDER_OF_BLOCKS = 0  # windows count from 1

Indices = NDArray[np.int64]


def block_order(num_images: int, block: int, seed: int, epoch: int, positions: Indices) -> Indices:
    """Return which images come at these positions of an epoch; blocks are of `block` images, the last one of the rest.

    Over all positions each image comes once.
    """
    places = np.asarray(positions, np.int64)
    num_blocks = -(-num_images // block)
    key = splitmix64(splitmix64([seed], 2) + np.uint64(epoch), 0)[0]
    missing = num_blocks * block - num_images  # images that the last block is short of
    slot_of_last = int(_permute_back(np.array([num_blocks - 1]), num_blocks, _key(key, _ORDER_OF_BLOCKS))[0])

    def start(slot: Indices) -> Indices:
        """Return the position at which a slot begins; slots are blocks in the order of this epoch."""
        slot = np.minimum(slot, num_blocks)
        return slot * block - np.where(slot > slot_of_last, missing, 0)

    # the short block moves a position by at most one slot
    window = places // (block * WINDOW_BLOCKS)
    window = window + (places >= start((window + 1) * WINDOW_BLOCKS))
    first = start(window * WINDOW_BLOCKS)
    inside = np.empty_like(places)
    for number in np.unique(window):
        chosen = window == number
        size = int(start(np.array((number + 1) * WINDOW_BLOCKS)) - start(np.array(number * WINDOW_BLOCKS)))
        inside[chosen] = _permute(places[chosen] - first[chosen], size, _key(key, int(number) + 1))
    place = first + inside
    slot = place // block
    slot = slot + (place >= start(slot + 1))
    return _permute(slot, num_blocks, _key(key, _ORDER_OF_BLOCKS)) * block + place - start(slot)


def _key(key: np.uint64, number: int) -> np.uint64:
    return np.uint64(splitmix64(key, number))


def _permute(values: Indices, size: int, key: np.uint64) -> Indices:
    """Return where a random permutation of 0 … size - 1 sends the values."""
    return _walk(values, size, key, range(_ROUNDS))


def _permute_back(values: Indices, size: int, key: np.uint64) -> Indices:
    return _walk(values, size, key, range(_ROUNDS - 1, -1, -1))


def _walk(values: Indices, size: int, key: np.uint64, rounds: range) -> Indices:
    half = max(1, -(-(size - 1).bit_length() // 2))
    found = _feistel(np.asarray(values, np.uint64), half, key, rounds)
    while len(outside := np.flatnonzero(found >= size)):
        found[outside] = _feistel(found[outside], half, key, rounds)
    return found.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: int, key: np.uint64, rounds: range) -> NDArray[np.uint64]:
    """Permute numbers of 2 · half bits; with the rounds in reverse this is undone."""
    mask, width = np.uint64(2**half - 1), np.uint64(half)
    left, right = values >> width, values & mask
    if rounds.step < 0:
        left, right = right, left
    for number in rounds:
        mixed = splitmix64(_key(key, number), right) & mask
        left, right = right, left ^ mixed
    return (right << width) | left if rounds.step < 0 else (left << width) | right
