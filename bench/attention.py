"""Compare the fused attention kernel with plain batched products, in the Attention that vitreous ships.

    python bench/attention.py [--quick] [--json FILE] [--docs]

Token counts × head widths × threads, forward only and forward + backward; four heads, about 12,800 tokens per batch
(256 images of 50). `FastAttention.fused` chooses the path; everything else is the same code, linear layers included.
Every geometry is then compared with `fused_attention_is_faster`, the static rule: does it choose the faster path, and
what does following it cost compared with the best choice?
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from common import Column, Report, Row, Table, calls_for, interleave, median, parser, ratio, seconds_per_call

from vitreous import hardware
from vitreous.config import ViTConfig
from vitreous.models.fast.attention import fused_attention_is_faster
from vitreous.models.fast.vit import FastAttention

TOKENS = (17, 50, 65, 101, 145, 197, 257)
HEAD_DIMS = (16, 32, 64)
NUM_HEADS = 4
TOKENS_PER_BATCH = 12_800

COLUMNS = (
    Column("threads", "threads"),
    Column("tokens", "tokens"),
    Column("head_dim", "head width"),
    Column("what", "pass"),
    Column("fused_ms", "fused ms", "{:.2f}"),
    Column("products_ms", "products ms", "{:.2f}"),
    Column("fused_over_products", "fused / products", "{:.2f}"),
    Column("rule", "the rule chooses"),
    Column("agrees", "the faster"),
)


@dataclass(frozen=True)
class Geometry:
    tokens: int
    head_dim: int

    def attention(self) -> FastAttention:
        """Return the attention of a ViT of that geometry: a column of patches, without a class token."""
        config = ViTConfig(
            image_size=(self.tokens, 1), patch_size=1, pool="mean", dim=self.head_dim * NUM_HEADS, num_heads=NUM_HEADS
        )
        assert config.num_tokens == self.tokens
        return FastAttention(config)


def passes(geometry: Geometry) -> dict[str, Callable[[bool], Callable[[], object]]]:
    """Return name of the pass → (fused or not) → a function that runs it once."""
    attention = geometry.attention()
    batch = max(1, TOKENS_PER_BATCH // geometry.tokens)
    x = torch.randn(batch, geometry.tokens, geometry.head_dim * NUM_HEADS, requires_grad=True)
    direction = torch.randn_like(x)

    def forward(fused: bool) -> Callable[[], object]:
        def call() -> object:
            attention.fused = fused
            with torch.inference_mode():
                return attention(x.detach())  # as in inference: no gradients

        return call

    def both(fused: bool) -> Callable[[], object]:
        def call() -> object:
            attention.fused = fused
            return attention(x).backward(direction)

        return call

    return {"forward": forward, "forward + backward": both}


def measure(geometry: Geometry, threads: int, rounds: int, seconds: float) -> list[Row]:
    torch.set_num_threads(threads)
    rows = []
    for what, make in passes(geometry).items():
        calls = {"fused": make(True), "products": make(False)}
        turns = {name: partial(seconds_per_call, call, calls_for(call, seconds)) for name, call in calls.items()}
        times = interleave(turns, rounds)
        quotient = ratio(times, "fused", "products")
        rule = fused_attention_is_faster(geometry.tokens, geometry.head_dim)
        rows.append(
            {
                "threads": threads, "tokens": geometry.tokens, "head_dim": geometry.head_dim, "what": what,
                "fused_ms": median(times["fused"]) * 1e3, "products_ms": median(times["products"]) * 1e3,
                "fused_over_products": quotient, "rule": "fused" if rule else "products",
                "agrees": "yes" if rule == (quotient < 1) else "no",
            }
        )  # fmt: skip
    return rows


def cost_over_best(row: Row) -> float:
    """Return the time of the path that the rule chooses, divided by that of the faster path."""
    quotient = row["fused_over_products"]
    return max(1.0, quotient if row["rule"] == "fused" else 1 / quotient)


def summarise(report: Report, rows: list[Row]) -> None:
    for threads, what in itertools.product(sorted({row["threads"] for row in rows}), ("forward", "forward + backward")):
        some = [row for row in rows if row["threads"] == threads and row["what"] == what]
        costs = [cost_over_best(row) for row in some]
        name = f"rule_over_best_{what.replace(' + ', '_')}_{threads}t"
        report.ratios[name] = math.exp(sum(map(math.log, costs)) / len(costs))
        worst = max(some, key=cost_over_best)
        agreed = sum(row["agrees"] == "yes" for row in some)
        report.notes.append(
            f"{what}, {threads} thread{'s' * (threads > 1)}: the rule chooses the faster path at {agreed} of"
            f" {len(some)} geometries; at worst ({worst['tokens']} tokens × {worst['head_dim']}) it costs"
            f" {cost_over_best(worst):.2f} times the best."
        )


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    rounds, seconds = (5, 0.08) if args.quick else (9, 0.2)
    tokens, head_dims, threads = TOKENS, HEAD_DIMS, (1, 2)
    if args.smoke:
        rounds, seconds, tokens, head_dims, threads = 2, 0.01, (17, 197), (16,), (1,)
    hardware.prepare()
    report = Report("attention", "Attention: fused kernel or batched products")
    report.measure_peak()
    rows: list[Row] = []
    for number, (n, head_dim, count) in enumerate(itertools.product(tokens, head_dims, threads)):
        rows += measure(Geometry(n, head_dim), count, rounds, seconds)
        if number % 6 == 5:
            torch.set_num_threads(report.threads)
            report.measure_peak()
    torch.set_num_threads(report.threads)
    report.measure_peak()
    rows.sort(key=lambda row: (row["threads"], row["what"], row["head_dim"], row["tokens"]))
    report.tables.append(Table("One attention layer, four heads, about 12,800 tokens", COLUMNS, rows))
    summarise(report, rows)
    report.finish(args)


if __name__ == "__main__":
    main()
