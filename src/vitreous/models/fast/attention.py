"""When torch's fused attention kernel is faster, and attention for training at few tokens, where it is not.

Shapes: B images, N tokens, H heads, K wide; `qkv` is the projection as it comes, (B, N, 3·H·K).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def fused_attention_is_faster(num_tokens: int, head_dim: int) -> bool:
    """Return whether torch's fused CPU kernel beats plain batched products, forward and backward, at this geometry.

    The fused kernel never forms the N × N weights, which is faster once they are large; below that its overhead
    dominates. Over the 21 geometries of `bench/attention.py` (docs/benchmarks.md) a training step's attention by this
    rule takes 1.00 times the better way's time on one thread, 1.04 times on two (at worst 1.34 times, at 101 tokens of
    head width 16).
    """
    return num_tokens * num_tokens >= 160 * head_dim


def packed_attention(qkv: Tensor, num_heads: int) -> Tensor:
    attended: Tensor = PackedAttention.apply(qkv, num_heads)  # type: ignore[no-untyped-call]
    return attended


def _softmax_dtype(rows: Tensor) -> torch.dtype:
    """Return the precision in which a softmax over these rows is fastest.

    torch's bfloat16 kernels compute 32 elements at once and the rest of a row one by one: 17 tokens take a quarter of
    the time in float32, 65 tokens half of it in bfloat16.
    """
    remainder = rows.shape[-1] % 32
    return torch.float32 if rows.dtype == torch.bfloat16 and remainder > 8 else rows.dtype


class PackedAttention(torch.autograd.Function):
    """softmax(q kᵀ / √K) v, heads side by side again: (B, N, H·K).

    Autograd scales q in a separate pass and stacks the gradients of q, k and v in another copy. Without these, forward
    and backward take 8 to 18 % less time at 17 to 65 tokens (docs/log.md). In bfloat16 the softmax may run in float32.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, num_heads: int) -> Tensor:
        B, N, width = qkv.shape
        K = width // 3 // num_heads
        heads = qkv.view(B, N, 3, num_heads, K).permute(2, 0, 3, 1, 4).contiguous().view(3, -1, N, K)  # (3, B·H, N, K)
        q, k, v = heads.unbind(0)
        logits = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=K**-0.5)  # (B·H, N, N)
        weights = logits.softmax(dim=-1, dtype=_softmax_dtype(logits)).to(logits.dtype)
        ctx.save_for_backward(heads, weights)
        ctx.shape = B, N, num_heads, K
        return (weights @ v).view(B, num_heads, N, K).transpose(1, 2).reshape(B, N, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        heads, weights = ctx.saved_tensors
        B, N, num_heads, K = ctx.shape
        q, k, v = heads.unbind(0)
        grad = grad.view(B, N, num_heads, K).transpose(1, 2).reshape(-1, N, K)
        grads = torch.empty_like(heads)  # of q, k and v, written in place
        torch.bmm(weights.mT, grad, out=grads[2])
        grad_weights, dtype = grad @ v.mT, _softmax_dtype(weights)
        grad_logits = torch._softmax_backward_data(grad_weights.to(dtype), weights.to(dtype), -1, dtype).to(v.dtype)
        for target, product, other in ((grads[0], grad_logits, k), (grads[1], grad_logits.mT, q)):
            torch.baddbmm(target, product, other, beta=0, alpha=K**-0.5, out=target)
        return grads.view(3, B, num_heads, N, K).permute(1, 3, 0, 2, 4).reshape(B, N, -1), None
