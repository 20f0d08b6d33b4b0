"""The attention of a ViT's last block, of which the head reads the class token alone: three ways to compute it.

    python bench/last_block.py [--quick] [--json FILE] [--docs]

"all queries" computes every token, "keys and values" one query against all keys and values, and "one query" is what
vitreous does (`FastAttention`, first_only): it computes neither, since q·(W_k x) is (q W_k)·x. The output projection is
included. One thread, CPU time: other work may run beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from common import Column, Report, Row, Table, calls_for, interleave, median, parser, ratio
from torch import Tensor

from vitreous import hardware
from vitreous.config import ViTConfig
from vitreous.models.fast.vit import FastAttention

#: (images, tokens, width, heads): mnist-vit, the small ViT of throughput.py, mnist-best, cifar-fast, ViT-B/16
GEOMETRIES = ((128, 17, 64, 2), (128, 50, 64, 4), (256, 29, 96, 4), (128, 65, 128, 4), (8, 197, 768, 12))
COLUMNS = (
    Column("images", "images"),
    Column("tokens", "tokens"),
    Column("dim", "width"),
    Column("heads", "heads"),
    Column("what", "pass"),
    Column("all_queries", "all queries, ms", "{:.2f}"),
    Column("keys_values", "keys and values, ms", "{:.2f}"),
    Column("one_query", "one query, ms", "{:.2f}"),
    Column("gain", "keys and values / one query", "{:.1f} ×"),
)


def all_queries(attention: FastAttention, x: Tensor) -> Tensor:
    return attention(x)[:, :1]


def keys_and_values(attention: FastAttention, x: Tensor) -> Tensor:
    B, N, D = x.shape
    weight, bias = attention.qkv.weight, attention.qkv.bias
    q = F.linear(x[:, :1], weight[:D], bias[:D]).view(B, 1, attention.num_heads, -1).transpose(1, 2)
    k, v = F.linear(x, weight[D:], bias[D:]).view(B, N, 2, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    weights = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(dim=-1)
    return attention.proj((weights @ v).transpose(1, 2).flatten(2))


def one_query(attention: FastAttention, x: Tensor) -> Tensor:
    return attention(x, first_only=True)


WAYS = {"all_queries": all_queries, "keys_values": keys_and_values, "one_query": one_query}


def cpu_seconds(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def measure(images: int, tokens: int, dim: int, heads: int, rounds: int, seconds: float) -> list[Row]:
    attention = FastAttention(ViTConfig(image_size=(tokens, 1), patch_size=1, pool="mean", dim=dim, num_heads=heads))
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, direction = torch.randn(images, tokens, dim, requires_grad=True), torch.randn(images, 1, dim)
    inputs = [x, *attention.parameters()]
    for way in WAYS.values():
        torch.testing.assert_close(way(attention, x), all_queries(attention, x), rtol=1e-4, atol=1e-4)

    def infer(way: Callable[[FastAttention, Tensor], Tensor]) -> None:
        with torch.inference_mode():
            way(attention, x)

    def train(way: Callable[[FastAttention, Tensor], Tensor]) -> None:
        torch.autograd.grad(way(attention, x), inputs, direction)

    rows = []
    for what, run in (("forward", infer), ("forward + backward", train)):
        calls = {name: partial(run, way) for name, way in WAYS.items()}
        times = interleave(
            {name: partial(cpu_seconds, call, calls_for(call, seconds)) for name, call in calls.items()}, rounds
        )
        row: Row = {"images": images, "tokens": tokens, "dim": dim, "heads": heads, "what": what}
        row |= {name: median(times[name]) * 1e3 for name in WAYS}
        rows.append(row | {"gain": ratio(times, "keys_values", "one_query")})
    return rows


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    rounds, seconds = (2, 0.01) if args.smoke else (5, 0.1) if args.quick else (11, 0.2)
    hardware.prepare(1)
    report = Report("last-block", "The last block's attention with one query")
    rows: list[Row] = []
    for geometry in GEOMETRIES[:1] if args.smoke else GEOMETRIES:
        report.measure_peak()
        rows += measure(*geometry, rounds, seconds)
    report.tables.append(Table("attention of the last block, CPU time, one thread", COLUMNS, rows))
    for row in rows:
        name = f"last_block_{row['what'].replace(' + ', '_')}_{row['tokens']}x{row['dim']}"
        report.ratios[name] = row["gain"]
    report.finish(args)


if __name__ == "__main__":
    main()
