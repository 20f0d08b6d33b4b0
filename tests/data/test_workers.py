"""Decoding in processes: the same bytes as `Preprocessing.prepare`, in order, and one sentence for whatever fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data import workers
from vitreous.data.decoding import Decoded, Measured
from vitreous.data.items import Item
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.target import Target
from vitreous.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """Eighty images of many sizes, formats and kinds; every eighth is not one."""
    folder = tmp_path_factory.mktemp("files")
    items = []
    for index in range(80):
        height, width = RNG.integers(5, 300, 2)
        smooth = np.linspace(0, 255, height * width * 3).reshape(height, width, 3)
        pixels = np.clip(smooth + RNG.normal(0, 20, smooth.shape), 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels if index % 3 else pixels[..., 0])
        suffix = ["png", "jpg", "webp", "bmp", "gif", "tif", "JPEG"][index % 7]
        path = folder / f"{index} é.{suffix}"
        image.save(path, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()))
        if index % 8 == 7:
            path.write_bytes(path.read_bytes()[: int(RNG.integers(0, 40))])
        items.append(Item(path.name, str(path), 0))
    return items


@pytest.mark.parametrize("fit", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize("digits", [False, True])
def test_the_bytes_of_prepare(files: list[Item], fit: str, digits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, in others, and one at a time: the same pixels, notes and errors."""
    preprocessing = Preprocessing(
        image_size=(20, 24), channels=1 if digits else 3, mean=(0.5,) * (1 if digits else 3),
        std=(0.5,) * (1 if digits else 3), resize="mnist" if digits else "bilinear", polarity="as-is", fit=fit,
    )  # fmt: skip
    monkeypatch.setattr(workers, "available_cores", lambda: 3)
    elsewhere = list(workers.decode(files, preprocessing.target))
    monkeypatch.setattr(workers, "FEWEST", 1000)
    here = list(workers.decode(files, preprocessing.target))
    assert len(elsewhere) == len(here) == len(files)
    for item, one, other in zip(files, elsewhere, here, strict=True):
        assert (one.error, one.digest, one.is_gray, one.notes, one.changes) == (
            other.error, other.digest, other.is_gray, other.notes, other.changes,
        )  # fmt: skip
        if one.pixels is None:
            with pytest.raises(DataError) as error:
                preprocessing.prepare(Path(item.path), item.name)
            assert str(error.value) == one.error
            continue
        prepared = preprocessing.prepare(Path(item.path), item.name)
        np.testing.assert_array_equal(one.pixels, prepared.pixels)
        np.testing.assert_array_equal(one.pixels, other.pixels)
        assert (*one.notes, *one.changes) == prepared.notes
    assert sum(one.error is not None for one in here) >= 10


def test_extents_and_parts_of_files(files: list[Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    monkeypatch.setattr(workers, "FEWEST_HEADERS", 10)
    shard, parts = tmp_path / "shard", []
    with shard.open("wb") as stream:
        for item in files:
            data = Path(item.path).read_bytes()
            stream.write(b"head")
            parts.append(Item(item.name, str(shard), 0, "train", stream.tell(), len(data)))
            stream.write(data)
    assert list(workers.measure(parts)) == list(workers.measure(files))
    target = Target((8, 9))
    for whole, part in zip(workers.decode(files, target), workers.decode(parts, target), strict=True):
        assert (whole.error, whole.digest) == (part.error, part.digest)
        assert whole.pixels is part.pixels is None or np.array_equal(whole.pixels, part.pixels)
    for item, measured, decoded in zip(files, workers.measure(files), workers.decode(files, target), strict=True):
        if decoded.error is None:
            with Image.open(item.path) as image:
                assert measured == Measured((image.height, image.width))


def test_few_images_start_no_process(files: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_Worker", None)
    assert len(list(workers.decode(files[: workers.FEWEST - 1], Target((4, 4))))) == workers.FEWEST - 1


def test_in_flight_is_bounded(files: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow consumer keeps the source from being read far ahead."""
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    taken = 0

    def many():  # type: ignore[no-untyped-def]
        nonlocal taken
        for item in files * 40:
            taken += 1
            yield item

    results = workers.decode(many(), Target((4, 4)))
    next(results)
    time.sleep(1.0)
    assert taken <= (2 * 2 + 2 + 2) * workers.CHUNK + workers.FEWEST
    results.close()  # type: ignore[attr-defined]


def _children() -> set[int]:
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "vitreous.data.worker" in line}


def test_a_killed_process_is_one_sentence(files: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    results = workers.decode(files * 200, Target((4, 4)))
    next(results)
    os.kill(min(_children()), signal.SIGKILL)
    with pytest.raises(DataError, match=r"was ended by signal 9 at one of 32 files, .* to .*: is there enough memory"):
        list(results)
    assert not _children()


def test_a_hung_process_is_one_sentence(files: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    results = workers.decode(files * 200, Target((4, 4)))
    next(results)
    for child in _children():
        os.kill(child, signal.SIGSTOP)
    monkeypatch.setattr(workers, "SILENCE", 1.0)
    with pytest.raises(DataError, match="have not answered for 1 s"):
        list(results)
    assert not _children()


def test_an_error_of_the_source_arrives(files: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 2)

    def broken():  # type: ignore[no-untyped-def]
        yield from files * 2
        raise DataError("the manifest ends here")

    with pytest.raises(DataError, match="the manifest ends here"):
        list(workers.decode(broken(), Target((4, 4))))


SCRIPT = """
import sys, time
from vitreous.data import workers
from vitreous.data.items import Item
from vitreous.data.target import Target
workers.available_cores = lambda: 2
items = [Item(sys.argv[1], sys.argv[1], 0)] * 100_000
results = workers.decode(items, Target((8, 8)))  # at the top level, without `if __name__ == "__main__"`
assert next(results).error is None
print("started", flush=True)
for _ in results:
    time.sleep(0.001)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(files: list[Item], number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, str(script), files[0].path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent.pid)], capture_output=True, text=True)
    children = [int(pid) for pid in listed.stdout.split()]
    assert len(children) == 2
    parent.send_signal(number)
    parent.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(_is_alive, children)):
        time.sleep(0.05)
    assert not any(map(_is_alive, children))


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_process_imports_no_torch() -> None:
    code = "import sys; import vitreous.data.worker; print({'torch', 'pydantic', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_decoded_is_what_it_says(files: list[Item]) -> None:
    good, bad = workers.decode([files[0], Item("gone.png", "/nowhere/gone.png", 0)], Target((8, 9), 3))
    assert isinstance(good, Decoded)
    assert good.pixels is not None
    assert good.pixels.shape == (3, 8, 9)
    assert bad.error == "there is no file gone.png"
