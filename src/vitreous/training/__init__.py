"""Training: one loop for scratch, fine-tuning, resume and many processes.

`find_lr` is imported when it is first used: the launcher of processes imports this package, and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.training.lr_finder import find_lr

__all__ = ["find_lr"]


def __getattr__(name: str) -> Any:
    if name != "find_lr":
        raise AttributeError(f"module 'vitreous.training' has no attribute {name!r}")
    from vitreous.training.lr_finder import find_lr

    return find_lr
