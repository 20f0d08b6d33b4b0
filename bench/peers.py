"""The same ViT in vitreous and in the other libraries, with one set of random weights, as their users get it.

vitreous, timm, Hugging Face, torchvision and torch's own encoder compute the same function: their logits are compared
before anything is timed. vit-pytorch's model differs from the paper's (two more LayerNorms, no qkv bias); its
geometry is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity import declare_torchvision_operators, randomise
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitreous.checkpoints import save_model
from vitreous.checkpoints import torchvision as torchvision_layout
from vitreous.config import TrainConfig, ViTConfig
from vitreous.config.presets import preset
from vitreous.models import ViT, build
from vitreous.training.optimizers import make_optimizers

SMALL = ViTConfig(patch_size=4, dim=64, depth=6, num_heads=4, mlp_dim=128)
B16 = preset("vit-b16").model
assert isinstance(B16, ViTConfig)

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05


def write_weights(config: ViTConfig, folder: Path) -> None:
    """Write one random vitreous model in every layout that `build_peer` reads."""
    model = randomise(ViT(config))
    assert isinstance(model, ViT)
    half = (0.5,) * config.channels
    save_model(model, folder / "timm.safetensors", "timm")
    save_model(model, folder / "hf", "hf", mean=half, std=half)
    # torchvision's model takes three channels; with its first convolution replaced, the names still match
    save_file(torchvision_layout.write(model.state_dict(), config), folder / "torchvision.safetensors")


# --- the models ----------------------------------------------------------------------------------------------------


def _vitreous(config: ViTConfig, folder: Path) -> nn.Module:
    model = build(config)
    if (folder / "timm.safetensors").is_file():  # bench/scaling.py measures vitreous alone
        model.load_state_dict(load_file(folder / "timm.safetensors"))
    return model


def _timm(config: ViTConfig, folder: Path) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=config.image_size, patch_size=config.patch_size, in_chans=config.channels, embed_dim=config.dim,
        num_classes=config.num_classes, depth=config.depth, num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.dim,
    )  # fmt: skip
    model.load_state_dict(load_file(folder / "timm.safetensors"))
    return model


def _hugging_face(config: ViTConfig, folder: Path) -> nn.Module:
    import transformers

    model, info = transformers.AutoModelForImageClassification.from_pretrained(folder / "hf", output_loading_info=True)
    assert not any(info.values()), f"transformers reports {info}"
    return model


def _torchvision(config: ViTConfig, folder: Path) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(**torchvision_layout.model_arguments(config))
    if config.channels != 3:
        model.conv_proj = nn.Conv2d(config.channels, config.dim, config.patch_size, config.patch_size)
    model.load_state_dict(load_file(folder / "torchvision.safetensors"))
    return model


class EncoderViT(nn.Module):
    """A ViT around nn.TransformerEncoder, as a tutorial would write it."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        D = config.dim
        self.conv_proj = nn.Conv2d(config.channels, D, config.patch_size, config.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, D))
        self.pos_embedding = nn.Parameter(torch.zeros(1, config.num_tokens, D))
        layer = nn.TransformerEncoderLayer(
            D, config.num_heads, config.mlp_dim, dropout=0.0, activation="gelu", layer_norm_eps=config.norm_eps,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        norm = nn.LayerNorm(D, eps=config.norm_eps)
        self.encoder = nn.TransformerEncoder(layer, config.depth, norm, enable_nested_tensor=False)
        self.head = nn.Linear(D, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(images.shape[0], -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.encoder(x)[:, 0])


_ENCODER_NAMES = {
    "encoder.layers.encoder_layer_": "encoder.layers.", ".ln_1.": ".norm1.", ".ln_2.": ".norm2.",
    ".self_attention.": ".self_attn.", ".mlp.0.": ".linear1.", ".mlp.3.": ".linear2.", "encoder.ln.": "encoder.norm.",
    "encoder.pos_embedding": "pos_embedding", "heads.head.": "head.",
}  # fmt: skip


def _transformer_encoder(config: ViTConfig, folder: Path) -> nn.Module:
    def renamed(name: str) -> str:
        for theirs, here in _ENCODER_NAMES.items():
            name = name.replace(theirs, here)
        return name

    model = EncoderViT(config)
    tensors = load_file(folder / "torchvision.safetensors")
    model.load_state_dict({renamed(name): tensor for name, tensor in tensors.items()})
    return model


def _vit_pytorch(config: ViTConfig, folder: Path) -> nn.Module:
    from vit_pytorch import ViT as TheirViT

    return TheirViT(
        image_size=config.image_size, patch_size=config.patch_size, num_classes=config.num_classes, dim=config.dim,
        depth=config.depth, heads=config.num_heads, dim_head=config.head_dim, mlp_dim=config.mlp_dim,
        channels=config.channels,
    )  # fmt: skip


BUILDERS: dict[str, Callable[[ViTConfig, Path], nn.Module]] = {
    "vitreous": _vitreous,
    "timm": _timm,
    "Hugging Face": _hugging_face,
    "torchvision": _torchvision,
    "TransformerEncoder": _transformer_encoder,
    "vit-pytorch": _vit_pytorch,
}
PEERS = tuple(name for name in BUILDERS if name != "vitreous")
#: vit-pytorch's model is another function.
SAME_FUNCTION = tuple(name for name in BUILDERS if name != "vit-pytorch")


def build_peer(name: str, config: ViTConfig, folder: Path) -> nn.Module:
    """Return the model of that library, with the weights that `write_weights` put into the folder."""
    declare_torchvision_operators()
    return BUILDERS[name](config, folder)


def logits_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits  # Hugging Face wraps its output


# --- the optimizers their users get -----------------------------------------------------------------------------------


def make_peer_optimizers(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return AdamW as each library configures it: by its own helper where it has one, else with torch's defaults."""
    if name == "vitreous":
        return make_optimizers(model, TrainConfig(optimizer="adamw", lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    if name == "timm":
        from timm.optim import create_optimizer_v2

        return [create_optimizer_v2(model, opt="adamw", lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)]
    adamw = partial(torch.optim.AdamW, model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return [adamw(fused=True) if name == "Hugging Face" else adamw()]  # its Trainer's default is adamw_torch_fused
