"""The Vision Transformer of "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021), whole, top to bottom.

Shapes: B images, C channels, N tokens (the class token included), D width, H heads, K = D // H. Where blank patches are
skipped (`models/blank.py`), N counts those that are kept, unless taps or masks are asked for.
Equations are the paper's. Parameter names are timm's, so most published weights load unmapped.
`models/fast/` computes the same with less time and memory; `build` uses that one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.models import blank
from vitreous.models.input import check_input
from vitreous.models.variants import ConvStem, QuickGELU, sincos_2d

#: The intermediates that a forward pass records, by name; see `ViT.forward`.
Taps = dict[str, Tensor]


class PatchEmbed(nn.Module):
    """Split the image into P × P patches and project each to width D (x_p E of Eq. 1).

    A convolution whose kernel and stride are the patch does both. `patchify` followed by a product with the same
    weights gives the same numbers (tests/models/test_vit.py). Two variants that the paper does not have: a larger
    kernel, so that a token sees a window around its patch, and a hidden layer.
    """

    def __init__(self, channels: int, config: ViTConfig):
        super().__init__()
        self.patch_size, self.window = config.patch_size, config.window or config.patch_size
        (height, width), (ph, pw) = self.window, self.patch_size
        dim, padding = config.embed_hidden or config.dim, ((height - ph) // 2, (width - pw) // 2)
        self.proj = nn.Conv2d(channels, dim, self.window, stride=self.patch_size, padding=padding)
        self.fc = nn.Linear(dim, config.dim) if config.embed_hidden else None

    def forward(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return (B, patches, D); with `kept` (B, patches kept), those patches alone."""
        if kept is None:
            x = self.proj(images).flatten(2).transpose(1, 2)
        else:
            windows = blank.take_windows(images, kept, self.patch_size, self.window)  # (B, patches kept, C·P·P)
            x = F.linear(windows, self.proj.weight.flatten(1), self.proj.bias)
        return x if self.fc is None else self.fc(F.gelu(x))


def patchify(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return x_p: (B, C, H, W) to (B, patches, C·P·P), row by row, each patch in the order of the conv's kernel."""
    B, C, height, width = images.shape
    ph, pw = patch_size
    patches = images.reshape(B, C, height // ph, ph, width // pw, pw)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * ph * pw)


class Attention(nn.Module):
    """Multi-head self-attention (Eq. 5–8 of the appendix): softmax(q kᵀ / √K) v, heads side by side, then U_msa."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.dim, config.dim)
        self.relative = config.positions == "relative"
        if self.relative:  # appendix D.4: a learned vector per offset between two tokens, which queries meet as a key
            N = config.num_tokens
            self.rel_pos = nn.Parameter(torch.zeros(2 * N - 1, config.head_dim))
            self.offsets: Tensor  # (N, N): the offset of every pair of tokens
            offsets = torch.arange(N)[:, None] - torch.arange(N)[None, :] + N - 1
            self.register_buffer("offsets", offsets, persistent=False)

    def forward(
        self, x: Tensor, taps: Taps | None = None, head_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        B, N, D = x.shape
        qkv = self.qkv(x).view(B, N, 3, self.num_heads, D // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, N, K)
        scaled = q * q.shape[-1] ** -0.5
        logits = scaled @ k.mT  # (B, H, N, N)
        if self.relative:
            by_offset = scaled @ self.rel_pos.mT  # (B, H, N, 2N - 1)
            logits = logits + by_offset.gather(-1, self.offsets.expand(*logits.shape))
        if key_mask is not None:  # no token attends to a removed one
            logits = logits.masked_fill(~key_mask[:, None, None, :], -math.inf)
        weights = logits.softmax(dim=-1)
        heads = weights @ v  # (B, H, N, K)
        if head_mask is not None:
            heads = heads * head_mask.view(1, -1, 1, 1)
        if taps is not None:
            taps.update(q=q, k=k, v=v, attention_logits=logits, attention=weights, heads=heads)
        return self.proj(heads.transpose(1, 2).reshape(B, N, D))


class Mlp(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.mlp_dim)
        self.act = QuickGELU() if config.gelu == "quick" else nn.GELU("tanh" if config.gelu == "tanh" else "none")
        self.drop = nn.Dropout(config.dropout)
        self.fc2 = nn.Linear(config.mlp_dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(self.act(self.fc1(x))))


class Block(nn.Module):
    """One encoder layer: z' = MSA(LN(z)) + z (Eq. 2), then z = MLP(LN(z')) + z' (Eq. 3)."""

    attention_class: type[Attention] = Attention

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attn = self.attention_class(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def forward(
        self, x: Tensor, taps: Taps | None = None, head_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        x = x + self.branch(self.attn(self.norm1(x), taps, head_mask, key_mask))
        if taps is not None:
            taps["middle"] = x
        return x + self.branch(self.mlp(self.norm2(x)))

    def branch(self, x: Tensor) -> Tensor:
        """Apply dropout and, in training, stochastic depth: whole branches of single images are skipped."""
        x = self.drop(x)
        if not self.training or self.drop_path == 0:
            return x
        keep = 1 - self.drop_path
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)


class ViT(nn.Module):
    """Map normalised images (B, C, height, width) to logits (B, classes)."""

    block_class: type[Block] = Block

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config.check_geometry()
        D = config.dim
        self.stem = ConvStem(config.channels, config.stem_channels, config.stem_depth) if config.stem_channels else None
        in_channels = config.stem_channels[-1] if config.stem_channels else config.channels
        self.patch_embed = PatchEmbed(in_channels, config)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D)) if config.has_class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, D)) if config.registers else None
        self._make_positions()
        if config.knows_background:
            self.background: Tensor  # as the model's input has it: normalised
            self.register_buffer("background", torch.zeros(config.channels, 1, 1))
        self.norm_pre = nn.LayerNorm(D, eps=config.norm_eps) if config.pre_norm else None
        self.drop = nn.Dropout(config.dropout)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(self.block_class(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = nn.LayerNorm(D, eps=config.norm_eps)
        self.pool_score = nn.Linear(D, 1) if config.pool == "seq" else None
        hidden = (config.head_hidden or D) if config.head == "mlp" else D
        self.pre_logits = nn.Linear(D, hidden) if config.head == "mlp" else None
        self.head = nn.Linear(hidden, config.num_classes)
        self.initialise()

    def _make_positions(self) -> None:
        config, (rows, columns) = self.config, self.config.grid
        if config.positions == "learned":  # 1-D: one vector per token, the class token's first
            self.pos_embed = nn.Parameter(torch.zeros(1, config.num_tokens - config.registers, config.dim))
        elif config.positions == "learned-2d":  # half of the width encodes the row, half the column
            self.pos_embed_row = nn.Parameter(torch.zeros(rows, config.dim // 2))
            self.pos_embed_column = nn.Parameter(torch.zeros(columns, config.dim // 2))
        elif config.positions == "sincos-2d":
            self.pos_fixed: Tensor
            self.register_buffer("pos_fixed", sincos_2d(rows, columns, config.dim), persistent=False)

    def positions(self) -> Tensor | None:
        """Return E_pos for all tokens, (1, N, D); None where positions are not added to the tokens."""
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
        # the class token needs none: a position would only be added to a vector that is learned already
        return F.pad(grid, (0, 0, 1, 0)) if self.cls_token is not None else grid

    @torch.no_grad()
    def initialise(self) -> None:
        """The paper's code (Flax): Xavier matrices, biases ~ N(0, 1e-6), positions ~ N(0, 0.02), class token zero."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # q, k and v are three matrices
                for matrix in module.weight.chunk(3) if name.endswith("qkv") else [module.weight]:
                    nn.init.xavier_uniform_(matrix)
                if module.bias is not None:
                    nn.init.normal_(module.bias, std=1e-6) if ".mlp." in name else nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):  # LeCun normal, as Flax does
                std = module.weight[0].numel() ** -0.5 / 0.87962566  # truncated at 2σ, its deviation is 1 / √fan-in
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)  # torch's bounds are not in σ
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.startswith("pos_embed") or name.endswith(("rel_pos", "reg_token")):
                nn.init.normal_(parameter, std=0.02)
        if self.config.zero_head:
            nn.init.zeros_(self.head.weight)

    def embed(self, images: Tensor, all_patches: bool = False) -> Tensor:
        """z_0 = [x_class; x_p¹E; …; x_pᴺE] + E_pos (Eq. 1), with `all_patches` of those too that would be skipped."""
        kept = None if all_patches else self.choose_patches(images)
        if self.config.window is not None and self.stem is None:
            images = images - self.background  # so that the zeros beyond the border are background
        x = self.fit(self.stem(images) if self.stem is not None else images)
        patches = self.patch_embed(x) if kept is None else self.patch_embed(x, kept)
        return self.drop(self.add_class_token_and_positions(patches, kept))

    def choose_patches(self, images: Tensor) -> Tensor | None:
        """Return which patches become tokens, (B, patches kept), in the order of the grid; None: all."""
        config = self.config
        if config.kept_patches == config.num_patches:
            return None
        deviation = (images - self.background).abs().sum(dim=1, keepdim=True)
        return blank.largest(blank.per_patch(deviation, config), config.kept_patches)

    def add_class_token_and_positions(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """(B, patches, D) → (B, N, D); registers, which have no position, follow the class token."""
        positions, first = self.positions(), int(self.cls_token is not None)
        assert x.shape[1] == (self.config.num_patches if kept is None else kept.shape[1]), "x has other patches"
        if kept is not None and positions is not None:  # each image has its own
            x = x + F.embedding(kept, positions[0, first:])
            positions = F.pad(positions[:, :first], (0, 0, 0, kept.shape[1]))
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x if positions is None else x + positions
        if self.reg_token is not None:
            x = torch.cat([x[:, :first], self.reg_token.expand(x.shape[0], -1, -1), x[:, first:]], dim=1)
        return x if self.norm_pre is None else self.norm_pre(x)

    def fit(self, x: Tensor) -> Tensor:
        """Pad or resize to a multiple of the patch, as `config.fit` says."""
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
        """Return the logits. With `taps={}` the same pass also records, by name:

        `tokens` (z_0), and for each block i: `blocks.i.q`, `.k`, `.v`, `.attention_logits`, `.attention`
        (B, H, N, N), `.heads` (B, H, N, K), `.middle` (z'_l), `.output` (z_l); then `normed` LN(z_L), `pooled` (y),
        `logits`. With `norm_after_pool`, `normed` is z_L, `mean` its mean and `pooled` LN(mean). Where patches are
        removed or skipped, `kept` (B or 1, patches) is False for these; where blank ones are skipped, `chosen` (B,
        patches kept) has the numbers of the others.

        `head_mask` (depth, H) multiplies each head's output; 0 removes the head. `patch_mask` (B or 1, patches),
        boolean: False removes the patch, so that no token attends to it and no pooling counts it.
        """
        check_input(images, self.config)
        if taps is None and patch_mask is None:
            x, key_mask = self.embed(images), None
        else:  # every patch has its place: skipped ones are computed, and no token attends to them
            x, chosen = self.embed(images, all_patches=True), self.choose_patches(images)
            if chosen is not None:
                not_blank = torch.zeros_like(x[:, : self.config.num_patches, 0]).scatter(1, chosen, 1.0) > 0
                patch_mask = not_blank if patch_mask is None else not_blank & patch_mask
                if not self.config.num_prefix_tokens:  # a mask cannot remove all tokens: then it removes none
                    nothing_left = patch_mask.to(x.dtype).sum(dim=1, keepdim=True) == 0
                    patch_mask = patch_mask | (not_blank & nothing_left)
            key_mask = None if patch_mask is None else self.token_mask(patch_mask)  # (B or 1, N)
            if taps is not None:
                taps |= {name: value for name, value in (("chosen", chosen), ("kept", patch_mask)) if value is not None}
        if taps is not None:
            taps["tokens"] = x
        for i, block in enumerate(self.blocks):
            block_taps: Taps | None = None if taps is None else {}
            x = block(x, block_taps, None if head_mask is None else head_mask[i], key_mask)
            if taps is not None and block_taps is not None:
                taps.update({f"blocks.{i}.{name}": value for name, value in block_taps.items()})
                taps[f"blocks.{i}.output"] = x
        return self.classify(x, key_mask, taps)

    def classify(self, x: Tensor, key_mask: Tensor | None = None, taps: Taps | None = None) -> Tensor:
        """y = LN(z_L⁰) (Eq. 4; or a pooling of all tokens), then the head. Also reads any earlier layer's tokens."""
        after = self.config.norm_after_pool
        normed = x if after else self.norm(x)
        pooled = mean = self._pool(normed, key_mask)  # (B, D)
        if after:
            pooled = self.norm(mean)
        features = pooled if self.pre_logits is None else torch.tanh(self.pre_logits(pooled))
        logits = self.head(features)
        if taps is not None:
            taps.update(normed=normed, pooled=pooled, logits=logits)
            if after:
                taps["mean"] = mean
        return logits

    def _pool(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.config.pool == "cls":
            return x[:, 0]
        x = x[:, self.config.registers :]  # without a class token, the other tokens are the patches
        key_mask = None if key_mask is None else key_mask[:, self.config.registers :]
        if self.pool_score is not None:  # sequence pooling (CCT): tokens are weighted by a learned score
            scores = self.pool_score(x)  # (B, N, 1)
            if key_mask is not None:
                scores = scores.masked_fill(~key_mask[..., None], -math.inf)
            return (scores.softmax(dim=1).mT @ x).squeeze(1)
        if key_mask is None:
            return x.mean(dim=1)
        kept = key_mask[..., None].to(x.dtype)
        return (x * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)

    def token_mask(self, patch_mask: Tensor) -> Tensor:
        """(B or 1, patches) → (B or 1, N): the class token and the registers are always kept."""
        prefix = self.config.num_prefix_tokens
        return F.pad(patch_mask, (prefix, 0), value=True) if prefix else patch_mask
