"""Image files, as `predict` and the data folders read them: every kind of file that is not what it should be."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from attacks.cases import MEBIBYTE, Case, Finding, Verdict, flip_bits, listed, numbered, refused_or, take_turns
from attacks.image_files import COLOURS, LISTED, correct, encode
from vitreous.data.images import MAX_PIXELS

TITLE = "image files"
SECONDS = 30.0
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
INPUT, EXPECTED = "image", "expected.npy"
_BASE_MEGABYTES = 128.0  # the file itself, up to 32 MB, in a few forms
_BYTES_PER_PIXEL = 40  # of an image that is accepted, as serving/limits.py states
_RANDOM_CASES = 400  # of each kind

PATHS = (
    "a pipe", "a folder", "a dangling link", "a link to itself", "/dev/zero", "/dev/full", "/proc/self/mem", "a socket",
    "no permission", "a long name", "a long path", "no such file", "a home that is not there",
)  # fmt: skip
RANDOM = ("truncated", "flipped bits")


def cases(seed: int) -> Iterator[Case]:
    others = {"odd but valid": correct(), "paths that are no file": PATHS}
    yield from take_turns(
        *(_with_bounds(kind, make(), seed) for kind, make in LISTED.items()),
        *(listed("images", kind, names, seed, megabytes=_BASE_MEGABYTES) for kind, names in others.items()),
        *(numbered("images", kind, _RANDOM_CASES, seed, megabytes=_BASE_MEGABYTES) for kind in RANDOM),
    )


def _with_bounds(kind: str, names: Iterable[str], seed: int) -> Iterator[Case]:
    for name in names:
        yield Case("images", kind, name, seed, megabytes=_bound(name))


def _bound(name: str) -> float:
    """Return the most megabytes for a file: in proportion to the pixels that its name states, if they are allowed."""
    stated = re.match(r"([\d,]+)×([\d,]+) ", name) or re.search(r"scans, ([\d,]+)×([\d,]+)", name)
    pixels = math.prod(int(side.replace(",", "")) for side in stated.groups()) if stated else 0
    return _BASE_MEGABYTES + (pixels * _BYTES_PER_PIXEL / MEBIBYTE if pixels <= MAX_PIXELS else 0)


def prepare(case: Case, folder: Path) -> None:
    path = folder / INPUT
    if case.kind in LISTED:
        path.write_bytes(LISTED[case.kind]()[case.name]())
    elif case.kind == "odd but valid":
        make, expected = correct()[case.name]
        path.write_bytes(make())
        np.save(folder / EXPECTED, expected)
    elif case.kind == "paths that are no file":
        _make_path(case.name, folder)
    else:
        _damage(case, folder)


def _damage(case: Case, folder: Path) -> None:
    numbers = case.random()
    kind = numbers.choice(FORMATS)
    pixels = COLOURS if numbers.random() < 0.5 else np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    whole = encode(Image.fromarray(pixels), kind)
    truncated = case.kind == "truncated"
    damaged = whole[: numbers.randrange(len(whole))] if truncated else flip_bits(whole, numbers)
    (folder / INPUT).write_bytes(damaged)
    if kind == "PNG":  # the one format with checksums: damaged pixels must not pass
        np.save(folder / EXPECTED, pixels)


def _make_path(name: str, folder: Path) -> None:
    path = folder / INPUT
    if name == "a pipe":
        os.mkfifo(path)
    elif name == "a folder":
        path.mkdir()
    elif name == "a dangling link":
        path.symlink_to(folder / "nowhere")
    elif name == "a link to itself":
        path.symlink_to(path)
    elif name.startswith(("/dev/", "/proc/")):
        path.symlink_to(name)
    elif name == "a socket":
        with socket.socket(socket.AF_UNIX) as end:
            os.chdir(folder)  # the address may have 100 characters only
            end.bind(INPUT)
    elif name == "no permission":
        path.write_bytes(b"")
        path.chmod(0)


def _path_of(case: Case) -> Path:
    special = {
        "a long name": "x" * 5000 + ".png",
        "a long path": "/".join(["x" * 200] * 25),
        "a home that is not there": "~nosuchuser/image.png",
    }
    return Path(special.get(case.name, INPUT))


# --- the attack ----------------------------------------------------------------------------------------------------


def warm_up() -> None:
    from vitreous.evaluation import prediction  # noqa: F401
    from vitreous.runs import run  # noqa: F401


def attack(case: Case, folder: Path) -> Finding:
    valid = case.kind == "odd but valid"
    finding = refused_or(lambda: _decode(Path(INPUT), folder) if valid else _predict(_path_of(case), folder))
    if valid and finding.verdict is Verdict.REFUSED:
        return Finding(Verdict.WRONG, f"a valid file is refused: {finding.detail}")
    return finding


def _decode(path: Path, folder: Path) -> Finding:
    from vitreous.data.images import decode_image

    pixels = decode_image(path).pixels
    height, width, channels = pixels.shape
    if pixels.dtype != np.uint8 or channels not in (1, 3) or not pixels.size:
        return Finding(Verdict.WRONG, f"decoded to {pixels.dtype} of shape {pixels.shape}")
    expected = folder / EXPECTED
    if expected.is_file() and (difference := _difference(pixels, np.load(expected))):
        return Finding(Verdict.WRONG, difference)
    return Finding(Verdict.HANDLED, f"{height}×{width}×{channels}")


def _predict(path: Path, folder: Path) -> Finding:
    from vitreous.evaluation.prediction import predict_images
    from vitreous.runs import open_run

    decoded = _decode(path, folder)
    if decoded.verdict is Verdict.WRONG:
        return decoded
    (prediction,) = predict_images(open_run("bundled:vit"), [path])
    total = sum(prediction.probabilities.values())
    if not abs(total - 1) < 1e-3 or prediction.label not in prediction.probabilities:
        return Finding(Verdict.WRONG, f"the probabilities sum to {total}")
    return Finding(Verdict.HANDLED, prediction.label)


def _difference(pixels: np.ndarray, expected: np.ndarray) -> str:
    expected = expected[:, :, None] if expected.ndim == 2 else expected
    if pixels.shape != expected.shape:
        return f"decoded to the shape {pixels.shape}, expected {expected.shape}"
    largest = int(np.abs(pixels.astype(int) - expected).max())
    return f"pixels differ by up to {largest}" if largest > 4 else ""  # 4: lossy formats
