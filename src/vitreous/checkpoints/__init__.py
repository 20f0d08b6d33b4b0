"""The field's checkpoints, both ways: timm, DeiT and DINO; Hugging Face; torchvision; Google's npz; older vit-pytorch.

`read_checkpoint` detects the layout and accounts for every tensor; `load_model` returns a model; `adapt` fits weights
to another task; `save_model` writes. There is one module per layout; `files.py` reads untrusted files.
"""

from vitreous.checkpoints.adapt import Adapted, adapt, take_architecture
from vitreous.checkpoints.checkpoint import Checkpoint
from vitreous.checkpoints.positions import POSITION_RULES, PositionRule, resize_positions
from vitreous.checkpoints.read import load_model, read_checkpoint
from vitreous.checkpoints.write import TARGETS, TargetLayout, save_model

__all__ = [
    "POSITION_RULES", "TARGETS", "Adapted", "Checkpoint", "PositionRule", "TargetLayout", "adapt",
    "load_model", "read_checkpoint", "resize_positions", "save_model", "take_architecture",
]  # fmt: skip
