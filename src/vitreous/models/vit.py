"""The Vision Transformer of "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021), whole, top to bottom.

Shapes: B images, C channels, N tokens (the class token included), D width, H heads, K = D // H.
Equations are the paper's. Parameter names are timm's, so that most published weights load unmapped.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.models.fast.attention import packed_attention

#: What a forward pass is asked to keep, by name; see `ViT.forward`.
Taps = dict[str, Tensor]


def fused_attention_is_faster(num_tokens: int, head_dim: int) -> bool:
    """Whether torch's fused CPU kernel beats plain batched products, forward and backward, at this geometry.

    The fused kernel never forms the N × N weights, which pays once they are large; below that its overhead dominates.
    Over the 21 geometries of `bench/attention.py` (docs/benchmarks.md) a training step's attention by this rule takes
    1.00 times the better way's time on one thread, 1.04 times on two (at worst 1.34 times, at 101 tokens × 16 wide).
    """
    return num_tokens * num_tokens >= 160 * head_dim


def _in_plain_training(x: Tensor) -> bool:
    """Whether autograd itself wants gradients, on the CPU: compilers and torch.func write their own backward pass."""
    others = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return x.requires_grad and x.device.type == "cpu" and not others


class PatchEmbed(nn.Module):
    """Cut the image into P × P patches and project each to width D (x_p E of Eq. 1).

    A convolution whose kernel and stride are the patch does both at once; `linear` cuts by hand and multiplies by
    the same weights. The two are equal (tests/models/test_vit.py), so the choice is one of taste and speed.
    """

    def __init__(self, channels: int, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # (B, N, D)


def patchify(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """x → x_p: (B, C, H, W) to (B, N, C·P·P), patches row by row, each patch in the order of the conv's kernel."""
    B, C, height, width = images.shape
    ph, pw = patch_size
    patches = images.reshape(B, C, height // ph, ph, width // pw, pw)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * ph * pw)


class Attention(nn.Module):
    """Multi-head self-attention (Eq. 5–8 of the paper's appendix): softmax(q kᵀ / √K) v, heads side by side, U_msa."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.dim, config.dim)
        self.offsets: Tensor  # (N, N), for relative positions: which offset each pair of tokens has
        self.relative = config.positions == "relative"
        self.fused = fused_attention_is_faster(config.num_tokens, config.head_dim) and not self.relative
        if self.relative:
            N = config.num_tokens
            self.rel_pos = nn.Parameter(torch.zeros(2 * N - 1, config.head_dim))  # one vector an offset, as a key
            offsets = torch.arange(N)[:, None] - torch.arange(N)[None, :] + N - 1
            self.register_buffer("offsets", offsets, persistent=False)

    def forward(
        self,
        x: Tensor,
        taps: Taps | None = None,
        head_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> Tensor:
        """(B, N, D) → the same; with `first_only` just the first token's row, (B, 1, D)."""
        B, _, D = x.shape
        nothing_asked = taps is None and head_mask is None and key_mask is None and not first_only
        if nothing_asked and not (self.fused or self.relative) and _in_plain_training(x):
            return self.proj(packed_attention(self.qkv(x), self.num_heads))
        q, k, v = self._first_query(x) if first_only else self._split(self.qkv(x), 3)
        if self.fused and taps is None and key_mask is None:
            heads = F.scaled_dot_product_attention(q, k, v)  # (B, H, N, K)
        else:
            heads = self._spelled_out(q, k, v, taps, key_mask)
        if head_mask is not None:
            heads = heads * head_mask.view(1, -1, 1, 1)
        if taps is not None:
            taps.update(q=q, k=k, v=v, heads=heads)
        return self.proj(heads.transpose(1, 2).reshape(B, -1, D))

    def _split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, N, parts·D) → `parts` tensors (B, H, N, K), copied once so that the products read contiguous memory."""
        B, N, width = projected.shape
        heads = projected.view(B, N, parts, self.num_heads, width // parts // self.num_heads)
        return heads.permute(2, 0, 3, 1, 4).contiguous().unbind(0)

    def _first_query(self, x: Tensor) -> tuple[Tensor, ...]:
        """The first token's query, and the keys and values of all: no other query is needed for its answer."""
        D = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        query = F.linear(x[:, :1], weight[:D], None if bias is None else bias[:D])
        keys_values = F.linear(x, weight[D:], None if bias is None else bias[D:])
        return *self._split(query, 1), *self._split(keys_values, 2)

    def _spelled_out(self, q: Tensor, k: Tensor, v: Tensor, taps: Taps | None, key_mask: Tensor | None) -> Tensor:
        logits = (q * q.shape[-1] ** -0.5) @ k.mT  # (B, H, N, N)
        if self.relative:  # the paper's appendix D.4: the query also meets a learned vector of the offset
            by_offset = (q * q.shape[-1] ** -0.5) @ self.rel_pos.mT  # (B, H, N, 2N - 1)
            logits = logits + by_offset.gather(-1, self.offsets[: q.shape[2]].expand(*logits.shape))
        if key_mask is not None:  # a removed token is looked at by nobody
            logits = logits.masked_fill(~key_mask[:, None, None, :], -math.inf)
        weights = logits.softmax(dim=-1)
        if taps is not None:
            taps.update(attention_logits=logits, attention=weights)
        return weights @ v


class Mlp(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.mlp_dim)
        self.act = nn.GELU(approximate="tanh" if config.gelu == "tanh" else "none")
        self.drop = nn.Dropout(config.dropout)
        self.fc2 = nn.Linear(config.mlp_dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(self.act(self.fc1(x))))


class Block(nn.Module):
    """One encoder layer: z' = MSA(LN(z)) + z (Eq. 2), then z = MLP(LN(z')) + z' (Eq. 3)."""

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def forward(
        self,
        x: Tensor,
        taps: Taps | None = None,
        head_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> Tensor:
        """(B, N, D) → the same; with `first_only` just the first token's row, (B, 1, D), which attends to all."""
        attended = self.attn(self.norm1(x), taps, head_mask, key_mask, first_only)
        x = (x[:, :1] if first_only else x) + self._branch(attended)
        if taps is not None:
            taps["middle"] = x
        return x + self._branch(self.mlp(self.norm2(x)))

    def _branch(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        if not self.training or self.drop_path == 0:
            return x
        keep = 1 - self.drop_path  # stochastic depth: whole branches of single images are left out
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)


class StemBlock(nn.Module):
    """x + GELU(conv(LN(x))): a 3×3 convolution that keeps the size. Each pixel's channels are normalised by themselves,
    so that a token still sees only what is near it."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        # a pixel's channels side by side in memory, as LayerNorm reads them: a tenth off `fashion-best`'s step
        x = x.contiguous(memory_format=torch.channels_last)
        normed = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out: Tensor = x + self.act(self.conv(normed))
        return out


class ConvStem(nn.Sequential):
    """Small 3×3 convolutions that turn the image into the features the patches are cut from; each stage halves it."""

    def __init__(self, channels: int, stem_channels: tuple[int, ...], depth: int):
        layers: list[nn.Module] = []
        for width in stem_channels:
            layers += [nn.Conv2d(channels, width, kernel_size=3, stride=2, padding=1), nn.GELU()]
            layers += [StemBlock(width) for _ in range(depth - 1)]
            channels = width
        super().__init__(*layers)


class ViT(nn.Module):
    """images (B, C, height, width), normalised → logits (B, classes)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config.check_geometry()
        D = config.dim
        self.stem = ConvStem(config.channels, config.stem_channels, config.stem_depth) if config.stem_channels else None
        in_channels = config.stem_channels[-1] if config.stem_channels else config.channels
        self.patch_embed = PatchEmbed(in_channels, config.patch_size, D)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D)) if config.has_class_token else None
        self._make_positions()
        self.drop = nn.Dropout(config.dropout)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = nn.LayerNorm(D, eps=config.norm_eps)
        self.pool_score = nn.Linear(D, 1) if config.pool == "seq" else None
        hidden = (config.head_hidden or D) if config.head == "mlp" else D
        self.pre_logits = nn.Linear(D, hidden) if config.head == "mlp" else None
        self.head = nn.Linear(hidden, config.num_classes)
        self.initialise()

    def _make_positions(self) -> None:
        config, (rows, columns) = self.config, self.config.grid
        if config.positions == "learned":  # 1-D: one vector a token, the class token's first
            self.pos_embed = nn.Parameter(torch.zeros(1, config.num_tokens, config.dim))
        elif config.positions == "learned-2d":  # half of the width says the row, half the column
            self.pos_embed_row = nn.Parameter(torch.zeros(rows, config.dim // 2))
            self.pos_embed_column = nn.Parameter(torch.zeros(columns, config.dim // 2))
        elif config.positions == "sincos-2d":
            self.pos_fixed: Tensor
            self.register_buffer("pos_fixed", sincos_2d(rows, columns, config.dim), persistent=False)

    def positions(self) -> Tensor | None:
        """E_pos for all tokens, (1, N, D); None where positions are not added to the tokens."""
        config = self.config
        if config.positions == "learned":
            return self.pos_embed
        if config.positions == "learned-2d":
            rows, columns = config.grid
            row = self.pos_embed_row[:, None].expand(-1, columns, -1)
            column = self.pos_embed_column[None].expand(rows, -1, -1)
            grid = torch.cat([row, column], dim=-1).flatten(0, 1)[None]  # (1, rows·columns, D)
        elif config.positions == "sincos-2d":
            grid = self.pos_fixed
        else:
            return None
        # a position of its own would only be added to the class token, which is learned already
        return F.pad(grid, (0, 0, 1, 0)) if self.cls_token is not None else grid

    @torch.no_grad()
    def initialise(self) -> None:
        """The paper's code (Flax): Xavier matrices, biases ~ N(0, 1e-6), positions ~ N(0, 0.02), class token zero."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                parts = (
                    module.weight.chunk(3) if name.endswith("qkv") else [module.weight]
                )  # q, k, v are three matrices
                for part in parts:
                    nn.init.xavier_uniform_(part)
                if module.bias is not None:
                    nn.init.normal_(module.bias, std=1e-6) if ".mlp." in name else nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):  # LeCun normal, as Flax does
                std = module.weight[0].numel() ** -0.5 / 0.87962566  # so that, cut at 2σ, it is 1 / √fan-in
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)  # torch's bounds are not in σ
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.startswith("pos_embed") or name.endswith("rel_pos"):
                nn.init.normal_(parameter, std=0.02)
        if self.config.zero_head:
            nn.init.zeros_(self.head.weight)

    def embed(self, images: Tensor) -> Tensor:
        """z_0 = [x_class; x_p¹E; …; x_pᴺE] + E_pos (Eq. 1)."""
        x = self._fit(self.stem(images) if self.stem is not None else images)
        return self.drop(self.with_class_token_and_positions(self.patch_embed(x)))

    def with_class_token_and_positions(self, x: Tensor) -> Tensor:
        """Projected patches (B, patches, D) → (B, N, D)."""
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        positions = self.positions()
        assert x.shape[1] == self.config.num_tokens, "the grid of patches does not match the configuration"
        return x if positions is None else x + positions

    def _fit(self, x: Tensor) -> Tensor:
        (height, width), (want_height, want_width) = x.shape[-2:], self.config.fitted_size
        if (height, width) == (want_height, want_width):
            return x
        if self.config.fit == "pad":
            return F.pad(x, (0, want_width - width, 0, want_height - height))
        return F.interpolate(x, size=(want_height, want_width), mode="bilinear", antialias=True)

    def forward(
        self,
        images: Tensor,
        taps: Taps | None = None,
        *,
        head_mask: Tensor | None = None,
        patch_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits. With `taps={}` the same pass also fills in, by name:

        `tokens` (z_0), and for each block i: `blocks.i.q`, `.k`, `.v`, `.attention_logits`, `.attention`
        (B, H, N, N), `.heads` (B, H, N, K), `.middle` (z'_l), `.output` (z_l); then `normed` LN(z_L), `pooled` (y),
        `logits`.

        `head_mask` (depth, H) multiplies each head's output; 0 removes the head. `patch_mask` (B or 1, patches),
        boolean: False removes the patch, so that no token looks at it and no pooling counts it.
        """
        x = self.embed(images)
        key_mask = None if patch_mask is None else self._token_mask(patch_mask)  # (B or 1, N)
        if taps is not None:
            taps["tokens"] = x
        for i, block in enumerate(self.blocks):
            block_taps: Taps | None = None if taps is None else {}
            # the head reads the class token alone: the last block need not compute the others (a fifth of the work
            # at depth 4) unless someone wants to see them
            first_only = self.config.pool == "cls" and i == len(self.blocks) - 1 and taps is None
            x = block(x, block_taps, None if head_mask is None else head_mask[i], key_mask, first_only)
            if taps is not None and block_taps is not None:
                taps.update({f"blocks.{i}.{name}": value for name, value in block_taps.items()})
                taps[f"blocks.{i}.output"] = x
        return self.classify(x, key_mask, taps)

    def classify(self, x: Tensor, key_mask: Tensor | None = None, taps: Taps | None = None) -> Tensor:
        """y = LN(z_L⁰) (Eq. 4; or the mean of all tokens), then the head. Also reads any earlier layer's tokens."""
        if self.config.pool == "cls" and taps is None:
            pooled = self.norm(x[:, 0])  # LN acts on each token alone: only the class token's is needed
        else:
            normed = self.norm(x)
            pooled = self._pool(normed, key_mask)  # (B, D)
            if taps is not None:
                taps.update(normed=normed, pooled=pooled)
        features = pooled if self.pre_logits is None else torch.tanh(self.pre_logits(pooled))
        logits = self.head(features)
        if taps is not None:
            taps["logits"] = logits
        return logits

    def _pool(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.config.pool == "cls":
            return x[:, 0]
        if self.pool_score is not None:  # sequence pooling (CCT): the tokens are weighed by a learned score
            scores = self.pool_score(x)  # (B, N, 1)
            if key_mask is not None:
                scores = scores.masked_fill(~key_mask[..., None], -math.inf)
            return (scores.softmax(dim=1).mT @ x).squeeze(1)
        if key_mask is None:
            return x.mean(dim=1)
        kept = key_mask[..., None].to(x.dtype)
        return (x * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)

    def _token_mask(self, patch_mask: Tensor) -> Tensor:
        return F.pad(patch_mask, (1, 0), value=True) if self.cls_token is not None else patch_mask


def sincos_2d(rows: int, columns: int, dim: int) -> Tensor:
    """Fixed sine-cosine positions, (1, rows·columns, dim): a quarter each for sin/cos of the column and of the row."""
    frequencies = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    row = torch.arange(rows, dtype=torch.float64).repeat_interleave(columns)[:, None] * frequencies
    column = torch.arange(columns, dtype=torch.float64).repeat(rows)[:, None] * frequencies
    return torch.cat([column.sin(), column.cos(), row.sin(), row.cos()], dim=1).float()[None]
