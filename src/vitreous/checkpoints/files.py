"""Read untrusted weight files: safetensors, `.npz` and pickles.

Every declared size is checked against the size of the file before memory is allocated, nothing is unpickled in this
process, and a file with a mistake is refused with one sentence:

- safetensors: read by the library, which checks lengths, shapes and offsets; `_check_header` checks the rest;
- `.npz`: sizes are read from the zip directory first, arrays by `vitreous.data.npy.read_npy`;
- `.pth`, `.pt`, `.bin`: only `torch.load(weights_only=True)`, and only in a child process with limits on memory, time
  and output (`unpickle.py`); its tensors come back as safetensors, which are checked like any other.
"""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.data.npy import NpyError, read_npy
from vitreous.data.npz import check_zip_directory
from vitreous.downloads.files import open_plain, read_plain
from vitreous.errors import CheckpointError, quoted
from vitreous.hardware import require_memory

MAX_BYTES = 16 * 2**30  # ViT-G is 7 GB in float32
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 100_000
MAX_NAME_LENGTH = 500  # characters; published checkpoints have up to 100
MAX_DIMENSIONS = 8
MAX_JSON_BYTES = 16 * 2**20  # a config.json with the names of 21,843 classes has 2 MB

#: Weights compress by about a tenth; only a zip bomb expands more than this. Small files may: zeros compress well.
_MAX_EXPANSION = 16
_ALWAYS_ALLOWED = 64 * 2**20

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *_PICKLED)


@dataclass(frozen=True)
class RawFile:
    """The tensors of a file under the names they have there, and the metadata of a safetensors header."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


class _Refused(Exception):
    """Why a file is refused: the end of a sentence that begins with its name."""


def read_tensors(path: Path) -> RawFile:
    """Return all tensors of `path`; whatever is wrong with the file becomes one `CheckpointError`."""
    size = _regular_file_size(path)
    require_memory(size, f"the weights in {str(path)!r}", "read them on a larger machine")
    suffix = path.suffix.lower()
    try:
        _refuse_stand_ins(path, suffix)
        if suffix == ".safetensors":
            return _check_names(_read_safetensors(path))
        if suffix == ".npz":
            return _check_names(RawFile(_read_npz(path, size)))
        if suffix in _PICKLED:
            return _check_names(_read_pickled(path, size))
    except _Refused as refused:
        raise CheckpointError(f"{str(path)!r} is refused: {refused}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    raise CheckpointError(f"{str(path)!r} is no weights file by its name; expected one of {', '.join(SUFFIXES)}")


#: How a file begins that is often found in place of weights → what it is, what to do.
_STAND_INS = {
    b"version https://git-lfs": "it is a Git LFS pointer, not the weights: run `git lfs pull`, or download the file",
    b"<!doctype html": "it is a web page, not the weights: download the file itself, not the page that shows it",
    b"<html": "it is a web page, not the weights: download the file itself, not the page that shows it",
}


def _refuse_stand_ins(path: Path, suffix: str) -> None:
    with open_plain(path) as file:
        start = file.read(64).lower()
    if not start:
        raise _Refused("it is empty: download or save it again")
    for beginning, what in _STAND_INS.items():
        if start.lstrip().startswith(beginning):
            raise _Refused(what)
    if start.startswith(b"pk\x03\x04") and suffix not in (".npz", *_PICKLED):
        raise _Refused("it is a zip archive: unpack it, and give the file or folder with the weights")


def _check_names(file: RawFile) -> RawFile:
    """Refuse names that would break the messages in which they are listed: control codes, line ends, megabytes."""
    for name in file.tensors:
        if len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise _Refused(
                f"it names a tensor {name[:80]!r}; expected up to {MAX_NAME_LENGTH} printable characters: save it again"
            )
    return file


def _regular_file_size(path: Path) -> int:
    """Return the size; refuse pipes and devices, which could be read for ever."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise CheckpointError(f"cannot read {quoted(str(path))}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{str(path)!r} is not a plain file")
    if status.st_size > MAX_BYTES:
        raise CheckpointError(f"{str(path)!r} has {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
    return status.st_size


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file beside the weights, {} if there is no such file."""
    if not os.path.exists(path):
        return {}
    if (size := _regular_file_size(path)) > MAX_JSON_BYTES:
        raise CheckpointError(f"{str(path)!r} is too large for a configuration ({size:,} bytes)")
    try:
        value = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is not readable as JSON: {_short(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} should hold a JSON object, not {type(value).__name__}")
    return value


# --- safetensors -------------------------------------------------------------------------------------------

_DTYPES = frozenset(["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"])


def _read_safetensors(path: Path) -> RawFile:
    try:
        with safe_open(path, "pt") as file:
            _check_header(path)
            # cloned, because the library maps the file: truncating it later would crash this process
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return RawFile(tensors, file.metadata() or {})
    except (SafetensorError, ValueError, RecursionError) as error:
        raise _Refused(f"it is not a complete safetensors file ({_short(error)})") from None


def _check_header(path: Path) -> None:
    """Refuse what the library accepts: repeated names, dtypes we do not read, many axes, empty but huge shapes."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise _Refused(f"its header has {length:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
        header = json.loads(stream.read(length), object_pairs_hook=_refuse_repeated_names)
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise _Refused(f"it has {len(header):,} tensors; the limit is {MAX_TENSORS:,}")
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise _Refused(f"tensor {name[:80]!r} has the unsupported dtype {entry['dtype']}")
        if len(entry["shape"]) > MAX_DIMENSIONS or any(extent > MAX_BYTES for extent in entry["shape"]):
            raise _Refused(f"tensor {name[:80]!r} declares the shape {str(entry['shape'])[:120]}")


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _Refused("its safetensors header repeats a name")
    return dict(pairs)


# --- npz ---------------------------------------------------------------------------------------------------

_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OverflowError)


def _read_npz(path: Path, size: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    name = ""
    try:
        with open_plain(path) as file, zipfile.ZipFile(file) as archive:
            limit = min(MAX_BYTES, max(_ALWAYS_ALLOWED, _MAX_EXPANSION * size))
            declared = check_zip_directory(archive.infolist(), limit, MAX_TENSORS)
            require_memory(declared, f"the weights in {str(path)!r}", "read them on a larger machine")
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                with archive.open(entry) as stream:
                    tensors[name] = _to_tensor(name, read_npy(stream, entry.file_size))
    except NpyError as error:
        raise _Refused(f"array {name[:80]!r} {_short(error)}" if name else _short(error)) from None
    except _BROKEN_ZIP as error:
        raise _Refused(f"it is not a complete .npz file ({_short(error)})") from None
    return tensors


def _to_tensor(name: str, array: np.ndarray) -> Tensor:
    dtype = array.dtype
    if dtype == np.dtype("V2"):  # how NumPy stores bfloat16, which it does not know
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise _Refused(f"array {name[:80]!r} holds {dtype} rather than numbers that torch knows")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype.newbyteorder("=")))


# --- pickles -----------------------------------------------------------------------------------------------

_UNPICKLE = Path(__file__).with_name("unpickle.py")
_TORCH_ADDRESS_SPACE = 6 * 2**30  # torch alone maps about 1 GB; the rest is room for its allocator
_SECONDS = 60.0


def _read_pickled(path: Path, size: int) -> RawFile:
    """Unpickle in a child process that receives only the file's name and can do nothing but write tensors."""
    with tempfile.TemporaryDirectory(prefix="vitreous-") as folder:
        seconds = _SECONDS + size / 2**24  # 16 MB/s: half the speed of a slow disk
        target = Path(folder) / "tensors.safetensors"
        job = {
            "source": str(path.resolve()),
            "target": str(target),
            "import_path": [entry for entry in sys.path if entry],
            "address_space": _TORCH_ADDRESS_SPACE + 4 * size,
            "cpu_seconds": math.ceil(seconds),
            "tensor_bytes": min(MAX_BYTES, max(_ALWAYS_ALLOWED, 2 * size)),
        }
        # -I: neither environment variables nor the current folder run code at start-up; torch is found where ours was
        command = [sys.executable, "-I", str(_UNPICKLE), json.dumps(job)]
        environment = {"OMP_NUM_THREADS": "1", "HOME": folder, "TMPDIR": folder, "PATH": os.defpath}
        environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        try:
            child = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise _Refused(f"reading it took more than {seconds:.0f} seconds") from None
        if child.returncode:
            cause = "it exceeded a limit, or torch could not read the file"
            raise _Refused(f"the child process ended with {child.returncode}: {cause}")
        if child.stdout:
            raise _Refused(_short(child.stdout.decode("utf-8", "replace")))
        return _read_safetensors(target)


def _short(message: object) -> str:
    """Return the start of an untrusted message on one line."""
    text = str(message) or type(message).__name__
    return "".join(c if c.isprintable() else " " for c in text)[:200]
