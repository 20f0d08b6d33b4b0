"""When a batch is learned in halves, one on each of two threads (`hardware.SplitBatch`), instead of as a whole by all cores.

Python runs in one of the threads at a time, so the operations must be long enough to run beside it: from AT_LEAST on
the halves win 5 to 13 % a step; below they lose, up to a half. Above AT_MOST operations are so long that the waiting
does not matter, and the halves may lose again, since both read all weights (`python bench/halves.py`, docs/log.md).
"""

from __future__ import annotations

from vitreous.config import ViTConfig
from vitreous.models.summary import count_flops

AT_LEAST, AT_MOST = 2.5e9, 3e10  # FLOPs of a batch's forward pass


def split_is_faster(model: object, batch_size: int, threads: int) -> bool:
    """Whether this batch has the size for it, and the same seed would still give the same bits.

    The sum of two gradients is the same in either order; but dropout draws from one generator, in the order in which
    the threads come by.
    """
    if not isinstance(model, ViTConfig) or model.dropout or model.drop_path:
        return False
    return threads % 2 == 0 and AT_LEAST <= batch_size * count_flops(model) <= AT_MOST
