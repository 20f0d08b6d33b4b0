"""The article's models exactly as written, flaws included (docs/article.md says what it reports and what is wrong).

Do not fix them here: `vitreous doctor post-vit` finds their faults, and the comparison shows what they cost. `vit` and
`cnn` are the correct ones. These return log-probabilities, as in the article.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ArticleCNNConfig, ArticleDesignConfig, ArticleViTConfig
from vitreous.models.vit import patchify

#: The article, for whoever wants to find it: a web page whose address has not been confirmed.
ARTICLE = "Training a Vision Transformer on MNIST (23 May 2023)"
PATCH = 7
NUM_PATCHES = 16


class ArticleCNN(nn.Module):
    """The CNN: images (B, 1, 28, 28) → log-probabilities (B, 10)."""

    def __init__(self, config: ArticleCNNConfig):
        super().__init__()
        self.config = config
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(dim=1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class PatchesArticleViT(nn.Module):
    """The ViT with the article's own interface: patches (B, 16, 7, 7) → log-probabilities (B, 10).

    The flaws, all the article's: the class vector and the position indices are plain tensors (not trained, not saved);
    `mlp` is never used; F.normalize works across the tokens (its default dimension is 1); the encoder reads its input
    as (sequence, batch, feature), so attention mixes the images of a batch and never the patches of one image; linear1
    and linear2 are one linear map. `config.fixes` corrects them one by one.
    """

    def __init__(self, config: ArticleViTConfig):
        super().__init__()
        self.fixes = config.fixes
        generator = torch.Generator().manual_seed(config.class_token_seed)
        self.class_token = torch.randn(1, 1, config.dim, generator=generator)  # a plain tensor, on purpose
        self.position_indices = torch.arange(NUM_PATCHES + 1)  # likewise
        if "class-token" in self.fixes:
            class_token, indices = self.class_token, self.position_indices
            del self.class_token, self.position_indices
            self.class_token = nn.Parameter(class_token)
            self.register_buffer("position_indices", indices)
        self.position_embedding = nn.Embedding(NUM_PATCHES + 1, config.dim)
        self.patch_projection = nn.Linear(PATCH * PATCH, config.dim)
        layer = nn.TransformerEncoderLayer(
            config.dim, config.num_heads, dim_feedforward=config.feedforward, dropout=0.1, activation="gelu",
            batch_first="attention" in self.fixes, norm_first="pre-norm" in self.fixes,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
        self.linear1 = nn.Linear(config.dim, 250)
        self.linear2 = nn.Linear(250, 100)
        self.linear3 = nn.Linear(100, 10)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.patch_projection(patches.flatten(2))  # (B, 16, D)
        x = torch.cat([self.class_token.to(x).expand(x.shape[0], -1, -1), x], dim=1)  # (B, 17, D)
        x = x + self.position_embedding(self.position_indices.to(x.device))
        if "normalisation" not in self.fixes:
            x = F.normalize(x)  # along dimension 1, the tokens
        x = self.linear1(self.encoder(x)[:, 0])
        if "head" in self.fixes:
            x = torch.tanh(x)
        return F.log_softmax(self.linear3(torch.tanh(self.linear2(x))), dim=1)


class ArticleViT(nn.Module):
    """The adapter: splits images (B, 1, 28, 28) into the patches that the article's ViT takes."""

    def __init__(self, config: ArticleViTConfig):
        super().__init__()
        self.config = config
        self.model = PatchesArticleViT(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(patchify(images, (PATCH, PATCH)).unflatten(2, (PATCH, PATCH)))


class DesignBlock(nn.Module):
    """z' = MSA(LN(z)) + LN(z), z = MLP(LN(z')) + LN(z'); `residual="paper"` adds z and z' instead."""

    def __init__(self, config: ArticleDesignConfig):
        super().__init__()
        self.from_normalised = config.residual == "normalised"
        self.norm1 = nn.LayerNorm(config.dim)
        self.attention = nn.MultiheadAttention(config.dim, config.num_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, config.mlp_dim), nn.GELU(), nn.Linear(config.mlp_dim, config.dim)
        )

    def forward(self, z: Tensor) -> Tensor:
        normed = self.norm1(z)
        z = self.attention(normed, normed, normed, need_weights=False)[0] + (normed if self.from_normalised else z)
        normed = self.norm2(z)
        return self.mlp(normed) + (normed if self.from_normalised else z)


class ArticleDesign(nn.Module):
    """The design table: images (B, 1, 28, 28) → log-probabilities (B, 10).

    The table's positions are one linear layer over the whole index vector [0 … 16]: a single vector, added to every
    token, so no order is encoded; `positions="per-index"` gives each index its own. The index vector is normalised to
    [0, 1]; the classifier is one linear layer (neither is given there: ours).
    """

    def __init__(self, config: ArticleDesignConfig):
        super().__init__()
        self.config = config
        D, N = config.dim, NUM_PATCHES
        self.patch_projection = nn.Linear(PATCH * PATCH, D)
        self.class_token = nn.Parameter(torch.randn(1, 1, D))
        self.class_projection = nn.Linear(D, D)
        self.indices: Tensor
        self.register_buffer("indices", torch.arange(N + 1) / N)
        self.position_projection = nn.Linear(N + 1 if config.positions == "as-written" else 1, D)
        self.blocks = nn.ModuleList(DesignBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(D)
        self.classifier = nn.Linear(D, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_projection(patchify(images, (PATCH, PATCH)))  # (B, 16, D)
        class_token = self.class_projection(self.class_token).expand(images.shape[0], -1, -1)
        indices = self.indices if self.config.positions == "as-written" else self.indices[:, None]
        z = torch.cat([class_token, patches], dim=1) + self.position_projection(indices)  # (D,) or (17, D)
        for block in self.blocks:
            z = block(z)
        return F.log_softmax(self.classifier(self.norm(z[:, 0])), dim=1)
