"""`FastViT`: the readable ViT with faster attention and a last block that computes only what the head reads.

It has the parameters, names and initial values of `ViT`. Where taps or masks are asked for, the readable code runs.
Shapes: B images, N tokens, D width, H heads, K = D // H.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.models.fast.attention import fused_attention_is_faster, packed_attention
from vitreous.models.fast.dropout import Dropout
from vitreous.models.input import check_input
from vitreous.models.vit import Attention, Block, Taps, ViT


def _autograd_records(x: Tensor) -> bool:
    """Return whether eager autograd wants gradients, on the CPU: compilers and torch.func derive their own backward."""
    others = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return x.requires_grad and x.device.type == "cpu" and not others


class FastAttention(Attention):
    """Attention by torch's fused kernel, by `packed_attention` or by plain products, whichever is fastest."""

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        self.fused = fused_attention_is_faster(config.kept_tokens, config.head_dim) and not self.relative

    def forward(
        self,
        x: Tensor,
        taps: Taps | None = None,
        head_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> Tensor:
        """With `first_only`, return the output of the first token alone, (B, 1, D)."""
        if self.relative or taps is not None or head_mask is not None or key_mask is not None:
            return super().forward(x, taps, head_mask, key_mask)
        if first_only:
            return self._first_token(x)
        if not self.fused and _autograd_records(x):
            return self.proj(packed_attention(self.qkv(x), self.num_heads))
        return self._attend(x)

    def _first_token(self, x: Tensor) -> Tensor:
        """Attend with one query, without keys and values: q·(W_k x) is (q W_k)·x, and Σ a W_v x is W_v Σ a x.

        So the two largest products over all tokens become one with H columns each (docs/log.md). The keys' bias adds
        the same to every logit, which softmax removes.
        """
        D, H = x.shape[-1], self.num_heads
        w_q, w_k, w_v = self.qkv.weight.view(3, D, D).unbind(0)
        b_q, b_v = (None, None) if self.qkv.bias is None else (self.qkv.bias[:D], self.qkv.bias[2 * D :])
        q = F.linear(x[:, 0], w_q, b_q) * (D // H) ** -0.5
        q_keys = q.unflatten(1, (H, -1)).transpose(0, 1) @ w_k.unflatten(0, (H, -1))  # (H, B, D)
        weights = (q_keys.transpose(0, 1) @ x.mT).softmax(dim=-1)  # (B, H, N)
        heads = (weights @ x).transpose(0, 1) @ w_v.unflatten(0, (H, -1)).mT  # (H, B, K)
        attended = heads.transpose(0, 1).flatten(1)  # (B, D)
        return self.proj(attended if b_v is None else attended + b_v)[:, None]

    def _attend(self, x: Tensor) -> Tensor:
        """Attend by torch's kernel or by plain products."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)  # each (B, H, N, K), so that products read rows
        if self.fused:
            heads = F.scaled_dot_product_attention(q, k, v)  # (B, H, N, K)
        else:
            heads = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(dim=-1) @ v
        return self.proj(heads.transpose(1, 2).flatten(2))


class FastBlock(Block):
    attention_class = FastAttention

    def forward(
        self,
        x: Tensor,
        taps: Taps | None = None,
        head_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> Tensor:
        """With `first_only`, return the first token's row alone, (B, 1, D); by a call, so that hooks see it."""
        if not first_only:
            return super().forward(x, taps, head_mask, key_mask)
        x = x[:, :1] + self.branch(self.attn(self.norm1(x), first_only=True))
        return x + self.branch(self.mlp(self.norm2(x)))


class FastViT(ViT):
    block_class = FastBlock

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        for module in self.modules():
            if type(module) is nn.Dropout:
                module.__class__ = Dropout

    @property
    def reads_first_token(self) -> bool:
        """Whether the head reads the class token alone, so that the last block can compute its row alone."""
        return self.config.pool == "cls" and self.config.positions != "relative"

    def forward(
        self,
        images: Tensor,
        taps: Taps | None = None,
        *,
        head_mask: Tensor | None = None,
        patch_mask: Tensor | None = None,
    ) -> Tensor:
        if not self.reads_first_token or taps is not None or head_mask is not None or patch_mask is not None:
            return super().forward(images, taps, head_mask=head_mask, patch_mask=patch_mask)
        check_input(images, self.config)
        x = self.embed(images)
        for block in self.blocks[:-1]:
            x = block(x)
        return self.classify(self.blocks[-1](x, first_only=True))  # a fifth of the work less at depth 4


def readable(model: FastViT) -> ViT:
    """Return a copy that computes every step as the paper writes it, for those who look at the steps."""
    model = copy.deepcopy(model)
    written: dict[type, type] = {FastAttention: Attention, FastBlock: Block, FastViT: ViT, Dropout: nn.Dropout}
    for module in model.modules():
        module.__class__ = written.get(type(module), type(module))
    return model
