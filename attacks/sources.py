"""Lists, tar shards and parquet files, as training reads them: hostile paths, headers, columns and images."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from attacks.cases import Case, Finding, Verdict, flip_bits, listed, numbered, refused_or, take_turns
from attacks.image_files import bombs, encode, png

TITLE = "sources of images"
SECONDS = 60.0
IMAGES = 12  # of two classes, in every source
_MEGABYTES = 320.0  # pyarrow takes 30, a list of a million columns 200
_RANDOM_CASES = 60  # of each kind
_DAMAGED = ("manifest.csv", "manifest.jsonl", "shard.tar", "table.parquet")

Write = Callable[[Path], None]  # writes a source into a folder
GOOD = encode(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)), "PNG")


def image(number: int) -> bytes:
    return encode(Image.fromarray(np.full((8, 8), 20 * number, np.uint8)), "PNG")


# --- lists ---------------------------------------------------------------------------------------------------------


def _records(folder: Path) -> list[dict[str, object]]:
    for number in range(IMAGES):
        (folder / f"{number}.png").write_bytes(image(number))
    return [{"path": f"{number}.png", "label": "ab"[number % 2]} for number in range(IMAGES)]


def _jsonl(*more: object, wide: int = 0) -> Write:
    def write(folder: Path) -> None:
        rows: list[object] = [*_records(folder), *more]
        rows += [{"path": "0.png", "label": "a", f"key {number}": number} for number in range(wide)]
        (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))

    return write


def _csv(*more: str, header: str = "path,label") -> Write:
    def write(folder: Path) -> None:
        rows = [f"{record['path']},{record['label']}" for record in _records(folder)]
        (folder / "manifest.csv").write_text("\n".join([header, *rows, *more]), newline="")

    return write


def lists() -> dict[str, Write]:
    return {
        "a path to /etc/passwd": _csv("/etc/passwd,a"),
        "a path to /dev/zero": _csv("/dev/zero,a"),
        "a path upwards": _csv("../../../../../../etc/hostname,b"),
        "a path in a home that is not there": _csv("~nosuchuser/a.png,b"),
        "a path of 100,000 characters": _csv(f"{'x' * 100_000},a"),
        "a null character": _csv("a\0b.png,a"),
        "a web address": _csv("file:///etc/passwd,a"),
        "a label of a megabyte": _csv(f"0.png,{'x' * 2**20}"),
        "a formula as a label": _csv('1.png,"=1+1"'),
        "a field without an end": _csv('"0.png,a'),
        "a header of a million columns": _csv(header="path,label," + ",".join(map(str, range(10**6)))),
        "a row of a million fields": _csv("0.png" + ",a" * 10**6),
        "20,000 rows, each with a key of its own": _jsonl(wide=20_000),
        "a number as a path": _jsonl({"path": 7, "label": "a"}),
        "a list as a label": _jsonl({"path": "0.png", "label": ["a"]}),
        "an integer of 100,000 digits": _jsonl({"path": "0.png", "label": "9" * 100_000}),
        "a row that is no object": _jsonl([1, 2]),
        "a surrogate": _jsonl({"path": "\ud800.png", "label": "a"}),
        "100,000 brackets": lambda folder: _write(folder / "manifest.json", b"[" * 100_000),
        "a pipe": lambda folder: os.mkfifo(folder / "manifest.csv"),
    }


# --- tar shards ----------------------------------------------------------------------------------------------------


def _tar(members: Mapping[str, bytes] | None = None, *special: tarfile.TarInfo) -> Write:
    def write(folder: Path) -> None:
        with tarfile.open(folder / "shard.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            everything = {f"{number}.png": image(number) for number in range(IMAGES)}
            everything |= {f"{number}.cls": b"ab"[number % 2 :][:1] for number in range(IMAGES)}
            for name, data in {**everything, **(members or {})}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            for member in special:
                archive.addfile(member)

    return write


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size
    return member


def shards() -> dict[str, Write]:
    return {
        "a name upwards": _tar({"../../escaped.png": GOOD, "../../escaped.cls": b"a"}),
        "an absolute name": _tar({"/tmp/escaped.png": GOOD, "/tmp/escaped.cls": b"a"}),
        "a link to /etc/passwd": _tar(None, _member("link.png", tarfile.SYMTYPE, "/etc/passwd")),
        "a hard link upwards": _tar(None, _member("link.png", tarfile.LNKTYPE, "../../etc/passwd")),
        "a device": _tar(None, _member("zero.png", tarfile.CHRTYPE)),
        "a member of 8 exabytes": _tar(None, _member("large.png", size=2**63 - 1)),
        "a negative size": _negative_size,
        "a header of gigabytes": _tar(None, _member("x", tarfile.XHDTYPE, size=2**33)),
        "a PNG of 50,000×50,000": _bomb_in_tar("50,000×50,000 in one bit"),
        "a PNG whose text unpacks to 200 MB": _bomb_in_tar("text that unpacks to 200 MB"),
        "a PNG of no pixels": _tar({"none.png": png(0, 0), "none.cls": b"a"}),
        "a label of 2 MB": _tar({"long.png": GOOD, "long.cls": b"x" * 2**21}),
        "a label of null characters": _tar({"null.png": GOOD, "null.cls": bytes(5)}),
        "a label that is no UTF-8": _tar({"latin.png": GOOD, "latin.cls": b"\xff\xfe"}),
        "a label of nested JSON": _tar({"deep.png": GOOD, "deep.json": b"[" * 100_000}),
        "a name with a null character": _tar({"a\0b.png": GOOD, "a\0b.cls": b"a"}),
    }


def _bomb_in_tar(name: str) -> Write:
    return lambda folder: _tar({"bomb.png": bombs()[name](), "bomb.cls": b"a"})(folder)


def _negative_size(folder: Path) -> None:
    _tar()(folder)
    data = bytearray((folder / "shard.tar").read_bytes())
    data[124:136] = b"\xff" * 12
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:512]))
    (folder / "shard.tar").write_bytes(data)


# --- parquet -------------------------------------------------------------------------------------------------------


def _parquet(**columns: object) -> Write:
    def write(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        base = {"image": [image(number) for number in range(IMAGES)], "label": ["ab"[n % 2] for n in range(IMAGES)]}
        pq.write_table(pa.table({**base, **columns}), folder / "table.parquet")

    return write


def tables() -> dict[str, Write]:
    images = [image(number) for number in range(IMAGES)]
    one_path = [{"bytes": None, "path": "/etc/passwd"}, *({"bytes": data, "path": None} for data in images[1:])]
    return {
        "a path to /etc/passwd instead of an image": _parquet(image=one_path),
        "numbers instead of images": _parquet(image=list(range(IMAGES))),
        "lists as labels": _parquet(label=[[1]] * IMAGES),
        "no image": _parquet(image=[None, *images[1:]]),
        "not a number as a label": _parquet(label=[float("nan")] * IMAGES),
        "labels with null characters": _parquet(label=["a\0", "b"] * (IMAGES // 2)),
        "a PNG of 50,000×50,000": _parquet(image=[bombs()["50,000×50,000 in one bit"](), *images[1:]]),
        "20,000 columns": _parquet(**{f"column {number}": [0] * IMAGES for number in range(20_000)}),
        "rows that unpack to a gigabyte": _parquet(image=[bytes(2**27)] * 8 + images[8:]),
        "no parquet": lambda folder: _write(folder / "table.parquet", b"PAR1" + bytes(100) + b"PAR1"),
        "a footer of 4 GB": lambda folder: _write(folder / "table.parquet", b"PAR1\0\0\0\0\xff\xff\xff\xffPAR1"),
    }


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


# --- the family ----------------------------------------------------------------------------------------------------

LISTED: dict[str, Callable[[], dict[str, Write]]] = {"lists": lists, "tar shards": shards, "parquet files": tables}


def cases(seed: int) -> Iterator[Case]:
    yield from take_turns(
        *(listed("sources", kind, make(), seed, megabytes=_MEGABYTES) for kind, make in LISTED.items()),
        numbered("sources", "flipped bits", _RANDOM_CASES, seed, megabytes=_MEGABYTES),
        numbered("sources", "truncated", _RANDOM_CASES, seed, megabytes=_MEGABYTES),
    )


def prepare(case: Case, folder: Path) -> None:
    (folder / "input").mkdir()
    if case.kind in LISTED:
        LISTED[case.kind]()[case.name](folder / "input")
        return
    numbers = case.random()
    path = folder / "input" / numbers.choice(_DAMAGED)
    {"csv": _csv(), "jsonl": _jsonl(), "tar": _tar(), "parquet": _parquet()}[path.suffix[1:]](path.parent)
    whole = path.read_bytes()
    path.write_bytes(
        flip_bits(whole, numbers) if case.kind == "flipped bits" else whole[: numbers.randrange(len(whole))]
    )


def warm_up() -> None:
    import torch  # noqa: F401

    from vitreous.data import datasets, prepare  # noqa: F401
    from vitreous.data.sources import find  # noqa: F401


def attack(case: Case, folder: Path) -> Finding:
    found = refused_or(lambda: _load(folder))
    if any(folder.parent.rglob("escaped*")) or Path("/tmp/escaped.png").exists():
        return Finding(Verdict.WRONG, "a file was written outside")
    return found


def _load(folder: Path) -> Finding:
    from vitreous.config import DataConfig
    from vitreous.data.datasets import load_dataset

    (source,) = (path for path in (folder / "input").iterdir() if path.suffix != ".png")
    dataset = load_dataset(DataConfig(name=str(source), image_size=(8, 8), skip_corrupt=True))
    count = len(dataset.train) + len(dataset.val) + len(dataset.test)
    if not 0 < count <= IMAGES + 20_000 or dataset.num_classes < 2:
        return Finding(Verdict.WRONG, f"{count} images of {dataset.num_classes} classes")
    return Finding(Verdict.HANDLED, f"{count} images, {len(dataset.skipped)} left out")
