"""A plan as text of at most 80 columns."""

from __future__ import annotations

from vitreous.planning.plan import KEPT_CHECKPOINTS, Memory, TrainingPlan
from vitreous.reports.formats import percent, plural, rate

_LABEL = 24  # columns
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_DURATIONS = ((365.25 * 86_400, "years"), (86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))

Rows = list[tuple[str, str]]


def plan_text(plan: TrainingPlan) -> str:
    """Return the sections of a plan, one line per figure."""
    kind = "FSDP" if plan.config.train.shard else "DDP"
    gpus = plan.cluster.gpus
    sections: list[tuple[str, Rows]] = [
        (_title(plan), _work_rows(plan)),
        (f"memory of {'each GPU' if gpus > 1 else 'the GPU'}{f' ({kind})' if gpus > 1 else ''}", _memory_rows(plan)),
        *([(f"network ({kind})", _network_rows(plan))] if gpus > 1 else []),
        ("disk", _disk_rows(plan)),
    ]
    lines = []
    for title, rows in sections:
        lines += ["", title, *(f"  {label:<{_LABEL}}{value}" for label, value in rows)]
    return "\n".join(lines[1:])


def _title(plan: TrainingPlan) -> str:
    return f"{plan.config.name} on {plural(plan.work.images, 'image')}, {plural(plan.cluster.gpus, 'GPU')}"


def _work_rows(plan: TrainingPlan) -> Rows:
    work, cluster, train = plan.work, plan.cluster, plan.config.train
    peak = f"{percent(cluster.utilisation)} of {cluster.tflops:g} TFLOP/s, {train.precision}"
    rows = [
        ("parameters", f"{work.parameters:,}"),
        ("FLOPs of an image", f"{si(work.forward_flops, 'FLOP')} forward, {si(work.training_flops, 'FLOP')} trained"),
        ("steps", f"{work.steps:,} of {plural(work.batch_size, 'image')} ({train.epochs:g} epochs)"),
        ("FLOPs in all", si(work.total_flops, "FLOP")),
        ("time", f"{duration(work.seconds)} ({peak})"),
        ("", f"{duration(work.seconds_per_step)} per step, {rate(work.images_per_second)} images/s"),
    ]
    if plan.recomputed is not None:
        rows.append(("… blocks recomputed", duration(plan.seconds_recomputed)))
    return rows


def _memory_rows(plan: TrainingPlan) -> Rows:
    memory, train = plan.memory, plan.config.train
    shared = "gathered blocks" if plan.config.train.shard else "buckets of DDP"
    parts = [
        ("parameters", memory.parameters),
        ("gradients", memory.gradients),
        (f"optimizer ({train.optimizer})", memory.optimizer),
        ("averaged weights", memory.averaged),
        (shared, memory.communication),
        ("weights in bfloat16", memory.cast_weights),
    ]
    rows = [(label, si(value, "B")) for label, value in parts if value]
    rows.append(("activations", f"{si(memory.activations, 'B')} ({plural(plan.work.micro_batch, 'image')} at a time)"))
    rows.append(("total", f"{si(memory.total, 'B')}; {_fitting(memory, plan)}"))
    if (less := plan.recomputed) is not None:
        rows.append(("… blocks recomputed", f"{si(less.total, 'B')}; {_fitting(less, plan)}"))
    return rows


def _fitting(memory: Memory, plan: TrainingPlan) -> str:
    size = f"{plan.cluster.memory_gb:g} GB"
    if not memory.largest_micro_batch:
        return f"not one image fits into {size}"
    return f"{size} take {plural(memory.largest_micro_batch, 'image')} at a time"


def _network_rows(plan: TrainingPlan) -> Rows:
    network = plan.network
    hidden = "behind computing" if plan.config.train.shard else "behind the last backward pass"
    return [
        ("each rank sends", f"{si(network.bytes_per_step, 'B')} per step"),
        ("bandwidth needed", f"{si(network.bytes_per_second, 'B/s')} to hide it {hidden}"),
    ]


def _disk_rows(plan: TrainingPlan) -> Rows:
    disk, size = plan.disk, "×".join(map(str, plan.config.model.image_size))
    return [
        ("prepared images", f"{si(disk.prepared, 'B')} at {size}, read at {si(disk.prepared_per_second, 'B/s')}"),
        ("weights", si(disk.weights, "B")),
        ("checkpoints", f"{si(disk.checkpoints, 'B')}: {KEPT_CHECKPOINTS} of {si(disk.checkpoint, 'B')}"),
    ]


def si(value: float, unit: str) -> str:
    """Return three digits with a unit: "35.1 GFLOP", "0 B"."""
    power = 0
    while value >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{_three_digits(value)} {_PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """Return "3.25 days", "340 seconds"."""
    for size, unit in _DURATIONS:
        if seconds >= 2 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{seconds:.2g} seconds"


def _three_digits(value: float) -> str:
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 99.95 or value == int(value) else f"{value:.3g}"
