"""Reading a folder, a parquet file and a tar shard for the first and the second time: seconds, images/s, memory.

    python bench/reading.py [--quick] [--docs] [--json FILE]

The images are made in a temporary folder, and each start is a process of its own with an empty or a filled cache.
`growth` is how much the peak resident memory of that process exceeds what it had after its imports, and `read` the
same after it has read every image, whose pages the system may drop at any time; `decoders` the most that the resident
memories of the processes it started came to, sampled every 20 ms (Linux). Against another version, set PYTHONPATH to
its sources.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Column, Report, Row, Table, median, parser
from PIL import Image

COLUMNS = (
    Column("images", "images"),
    Column("start", "start"),
    Column("seconds", "s", "{:.2f}"),
    Column("rate", "images/s", "{:,.0f}"),
    Column("growth", "growth MB", "{:.0f}"),
    Column("read", "read MB", "{:.0f}"),
    Column("decoders", "decoders MB", "{:.0f}"),
    Column("prepared", "pixels MB", "{:.0f}"),
    Column("share", "growth / pixels", "{:.2f}"),
    Column("read_share", "read / pixels", "{:.2f}"),
    Column("rounds", "n"),
)

CHILD = """
import contextlib, json, sys, time
import filelock, torch, vitreous.data.folders
with contextlib.suppress(ImportError):  # an earlier version has none
    import vitreous.data.prepare
from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset
def status(key):
    return next(int(line.split()[1]) / 1000 for line in open("/proc/self/status") if line.startswith(key))
size = json.loads(sys.argv[2])
before, start = status("VmRSS"), time.perf_counter()
dataset = load_dataset(DataConfig(name=sys.argv[1], image_size=size))
seconds, growth = time.perf_counter() - start, status("VmHWM") - before
for split in (dataset.train, dataset.val, dataset.test):
    for batch in split.batches(32):
        batch.max()
read = status("VmHWM") - before
shape = [dataset.channels, *dataset.image_size]
count = len(dataset.train) + len(dataset.val) + len(dataset.test)
print(json.dumps({"seconds": seconds, "growth": growth, "read": read, "count": count, "shape": shape}))
"""


def write_images(folder: Path, count: int, side: int, suffix: str) -> None:
    """Write photograph-like images (smooth, with some noise) of ten classes."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 1, side, dtype=np.float32)
    noise = rng.normal(0, 8, (side, side, 3)).astype(np.float32)
    for index in range(count):
        phases = rng.uniform(0, 6.3, (2, 3)).astype(np.float32)
        waves = np.sin(6 * ramp[:, None, None] + phases[0]) + np.cos(5 * ramp[None, :, None] + phases[1])
        pixels = np.clip(127 + 60 * waves + np.roll(noise, index, axis=0), 0, 255).astype(np.uint8)
        path = folder / f"class {index % 10}" / f"{index}{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def write_parquet(folder: Path) -> Path:
    """Write the images of a folder as Hugging Face's `datasets` does; return the file."""
    files = sorted(folder.rglob("*.*"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    path = folder.with_suffix(".parquet")
    pq.write_table(pa.table({"image": images, "label": [file.parent.name for file in files]}), path)
    return path


def write_shard(folder: Path) -> Path:
    """Write the images of a folder as a WebDataset shard; return the file."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for number, file in enumerate(sorted(folder.rglob("*.*"))):
            for suffix, data in ((file.suffix, file.read_bytes()), (".cls", file.parent.name.encode())):
                member = tarfile.TarInfo(f"{number:08}{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def children_megabytes(pid: int) -> float:
    total = 0.0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            total += int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except OSError:  # it has just ended
            continue
    return total


def start_once(source: Path, size: int | None, cache: Path) -> Row:
    """Return what one start takes, in a process of its own."""
    command = [sys.executable, "-c", CHILD, str(source), json.dumps(size and [size, size])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "VITREOUS_CACHE": str(cache)}
    )
    most = 0.0
    while process.poll() is None:
        try:
            most = max(most, children_megabytes(process.pid))
        except OSError:
            break
        time.sleep(0.02)
    assert process.stdout is not None
    result = json.loads(process.stdout.read())
    pixels = result["count"] * int(np.prod(result["shape"])) / 1e6
    return {**result, "decoders": most, "prepared": pixels}


def measure(name: str, source: Path, size: int | None, rounds: int, report: Report) -> list[Row]:
    """Return a row for the first and one for the second start."""
    results: dict[str, list[Row]] = {"first": [], "second": []}
    for _ in range(rounds):
        report.measure_peak(0.1)
        with tempfile.TemporaryDirectory() as cache:
            for found in results.values():
                found.append(start_once(source, size, Path(cache)))
    rows = []
    for start, found in results.items():
        keys = ("seconds", "growth", "read", "decoders", "prepared")
        middle = {key: median([one[key] for one in found]) for key in keys}
        shares = {"share": middle["growth"] / middle["prepared"], "read_share": middle["read"] / middle["prepared"]}
        rate = found[0]["count"] / middle["seconds"]
        rows.append({"images": name, "start": start, **middle, "rate": rate, **shares, "rounds": rounds})
    return rows


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    rounds, scale = (1, 20) if args.smoke else (3, 5) if args.quick else (3, 1)
    sets: dict[str, tuple[int, int, str, int | None]] = {
        "JPEGs of 512 px at 56 px": (2500 // scale, 512, ".jpg", 56),
        "PNGs of 28 px": (20_000 // scale, 28, ".png", None),
    }
    report = Report("reading", "Reading images")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as root:
        for name, (count, side, suffix, size) in sets.items():
            folder = Path(root) / f"{side}"
            folder.mkdir()
            write_images(folder, count, side, suffix)
            rows += measure(f"{count:,} {name}", folder, size, rounds, report)
        for kind, write in (("parquet", write_parquet), ("tar", write_shard)):
            rows += measure(f"{count:,} {kind} {name}", write(folder), size, rounds, report)
    report.tables.append(Table("from files to tensors", COLUMNS, rows))
    by_start: Callable[[str], list[Row]] = lambda start: [row for row in rows if row["start"] == start]  # noqa: E731
    for first, second in zip(by_start("first"), by_start("second"), strict=True):
        report.ratios[f"second_over_first_{first['images'].split()[1].lower()}"] = second["seconds"] / first["seconds"]
    report.finish(args)


if __name__ == "__main__":
    main()
