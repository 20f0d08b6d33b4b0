"""A training step in bfloat16 and in float32: what `train.precision=auto` rests on.

    python bench/precision.py [PRESET …] [--threads N] [--quick] [--json FILE] [--docs]

Both precisions of every preset take turns, a few steps each, in one process. With `--threads 1`, seconds are those of
CPU time, so that it may run beside other work. A note says what `auto` chooses here.
"""

from __future__ import annotations

import time
from functools import partial

from common import Column, Report, Row, Table, interleave, median, parser, ratio, spread
from tokens import Steps

from vitreous import hardware
from vitreous.config import configure

PRESETS = ("cifar-fast", "fashion-best", "mnist-best", "mnist-cnn", "mnist-plain", "mnist-vit", "vit")
PRECISIONS = ("float32", "bfloat16")
COLUMNS = (
    Column("preset", "preset"),
    Column("float32", "fp32, images/s", "{:,.0f}"),
    Column("float32_spread", "±", "{:.0%}"),
    Column("bfloat16", "bf16, images/s", "{:,.0f}"),
    Column("bfloat16_spread", "±", "{:.0%}"),
    Column("ratio", "bf16 to fp32", "{:.2f} ×"),
)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("presets", nargs="*", default=list(PRESETS))
    options.add_argument("--threads", type=int, help="of a step; default: all cores")
    args = options.parse_args()
    threads = hardware.prepare(args.threads)
    if not hardware.bfloat16_works():
        raise SystemExit("bf16 matrix products do not run on this CPU: there is nothing to compare")
    report = Report("precision", "bfloat16 and float32 in training")
    rounds = 1 if args.smoke else 3 if args.quick else 9
    clock = time.process_time if threads == 1 else time.perf_counter
    rows: list[Row] = []
    for name in args.presets[:1] if args.smoke else args.presets:
        settings = ["data.name=digits", "data.image_size=28"] if args.smoke else []
        steps = {
            precision: Steps(
                configure(name, settings=[*settings, f"train.precision={precision}", f"train.threads={threads}"])
            )
            for precision in PRECISIONS
        }
        for one in steps.values():
            one.seconds()  # warm up
        candidates = {precision: partial(one.seconds, clock) for precision, one in steps.items()}
        times = interleave({**candidates, "peak": partial(report.measure_peak, 0.1)}, rounds)
        row: Row = {"preset": name, "ratio": ratio(times, "float32", "bfloat16")}
        for precision in PRECISIONS:
            row[precision] = steps[precision].batch_size / median(times[precision])
            row[f"{precision}_spread"] = spread(times[precision])
        rows.append(row)
        report.ratios[f"bfloat16_over_float32_{name}"] = row["ratio"]
    clock_name = "CPU time, one thread" if threads == 1 else f"{threads} threads"
    report.tables.append(Table(f"training steps, {clock_name}", COLUMNS, rows))
    chosen = "bfloat16" if hardware.bfloat16_is_faster() else "float32"
    report.notes.append(f"`train.precision=auto` chooses {chosen} on this machine ({hardware.model_name()}).")
    report.finish(args)


if __name__ == "__main__":
    main()
