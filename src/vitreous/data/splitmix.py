"""SplitMix64 as a pure function, written out so that splits and augmentation do not change with a library's version."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(state: ArrayLike, counter: ArrayLike) -> np.ndarray:
    """Return the outputs number `counter` of generators that start at `state`: uint64, the two broadcast together."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴
        z = np.asarray(state, np.uint64) + np.asarray(counter, np.uint64) * _GOLDEN_GAMMA
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
