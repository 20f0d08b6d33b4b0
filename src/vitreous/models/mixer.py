"""A ViT whose attention is replaced by a dense layer over the tokens (MLP-Mixer, Tolstikhin et al., 2021).

The study `attention-or-mixing` compares it with a ViT of the same width, depth and patches. The weights that mix tokens
are learned once for all images, and each token has its own: so it needs no positions, and no image size but its own.
Shapes: B images, N patches, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitreous.config import MixerConfig
from vitreous.models.input import check_input


class MixerBlock(nn.Module):
    """z' = mix(LN(z)) + z over the tokens of each feature, then z = MLP(LN(z')) + z', as in a ViT."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=1e-6)
        # without the last bias: it would shift all features of a token alike, which every LayerNorm removes
        self.mix_tokens = _mlp(config.num_patches, config.token_dim, last_bias=False)
        self.norm2 = nn.LayerNorm(config.dim, eps=1e-6)
        self.mlp = _mlp(config.dim, config.mlp_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix_tokens(self.norm1(x).mT).mT
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def _mlp(width: int, hidden: int, last_bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width, bias=last_bias))


class Mixer(nn.Module):
    """Map normalised images (B, C, height, width) to logits (B, classes); the mean of the tokens is classified."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config.check_geometry()
        self.patch_embed = nn.Conv2d(config.channels, config.dim, config.patch_size, stride=config.patch_size)
        self.blocks = nn.ModuleList(MixerBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        self.head = nn.Linear(config.dim, config.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        check_input(images, self.config)
        x = self.patch_embed(images).flatten(2).mT  # (B, N, D)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits
