"""The files that the hostile command lines name: pipes, sockets, damaged data and runs, and a few good ones."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.config import configure
from vitreous.training.loop import fit


def prepare(folder: Path) -> None:
    """Make the hostile files, a small data set and a small run in `folder`, which becomes the current folder."""
    os.chdir(folder)
    for name in ("fifo", "fifo.png", "fifo.npz", "fifo.toml", "fifo.safetensors"):
        os.mkfifo(name)
    for name in ("socket.png", "socket.npz"):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
    for name in ("loop", "loop.png"):
        os.symlink(name, name)
    for name in ("empty.png", "empty.npz", "empty.toml", "empty.safetensors"):
        Path(name).touch()
    for name in ("folder", "folder.png", "folder.npz", "folder.toml"):
        Path(name).mkdir()
    Path("deep.toml").write_text("name = " + "[" * 100_000)
    Path("digits.toml").write_text("seed = " + "9" * 5000)
    Path("latin.toml").write_bytes(b'name = "caf\xe9"')
    Path("null.toml").write_text('[data]\nname = "a\\u0000b"')
    Path("tables.toml").write_text("[" + ".".join("a" * 3000) + "]")
    Path("good.toml").write_text("[model]\ndepth = 1")
    Path("token").write_text("0123456789abcdef" * 3)
    images, labels = np.random.default_rng(0).integers(0, 255, (60, 28, 28), np.uint8), np.arange(60) % 10
    np.savez("good.npz", images=images, labels=labels)
    np.savez("surrogate.npz", images=images, labels=labels, class_names=np.array([*"abcdefghi", "\ud800"]))
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (2**29, 1, 1)})
        for _ in range(512):
            stream.write(bytes(2**20))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**20, 2**20)})
    with zipfile.ZipFile("lying.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(100))
        with archive.open("labels.npy", "w") as stream:
            np.save(stream, labels)
    with zipfile.ZipFile("twice.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue())
        archive.writestr("images", header.getvalue())
    Image.fromarray(images[0]).save("ok.png")
    for name in ("latin-classes", "fifo-classes"):
        for sub in (b"one", b"caf\xe9" if name == "latin-classes" else b"two"):
            inner = Path(name) / os.fsdecode(sub)
            inner.mkdir(parents=True)
            Image.fromarray(images[0]).save(inner / "1.png")
    os.mkfifo("fifo-classes/two/2.png")
    for name, content in {"run-deep": b"[" * 100_000, "run-latin": b'{"a": "\xe9"}', "run-list": b"[]"}.items():
        Path(name).mkdir()
        Path(name, "config.json").write_bytes(content)
    for name in ("run-empty", "run-fifo"):
        Path(name).mkdir()
    os.mkfifo("run-fifo/config.json")
    settings = ["model.depth=1", "model.dim=16", "model.mlp_dim=16", "train.epochs=0.1", "data.train_per_class=2"]
    fit(configure("vit", settings=settings, data="digits"), "run", progress=False)
