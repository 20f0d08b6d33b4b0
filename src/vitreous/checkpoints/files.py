"""Reading other people's weight files: safetensors, `.npz` and `.pth`, each as a suspect.

A weights file comes from a stranger. Every size it declares is checked against the file's own size before memory is
asked for, nothing is unpickled in this process, and what does not add up is refused with one sentence:

- safetensors: the header's length, its JSON, every shape, type and offset; the tensors must tile the file exactly;
- `.npz`: sizes are read from the zip directory first, arrays are streamed with a cap, pickled objects are refused;
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import CheckpointError

MAX_BYTES = 16 * 2**30  # ViT-G is 7 GB in float32
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 100_000
MAX_JSON_BYTES = 16 * 2**20  # a config.json with the names of 21,843 classes has 2 MB

#: Compressed weights shrink by a tenth; only a bomb grows more than this. Small files may: zeros compress well.
_MAX_EXPANSION = 16
_ALWAYS_ALLOWED = 64 * 2**20

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *_PICKLED)

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class RawFile:
    """The tensors of a file under the names they have there, and the text that a safetensors header may carry."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


class _Refused(Exception):
    """Why a file is refused, as the end of a sentence that begins with its name."""


def read_tensors(path: Path) -> RawFile:
    """All tensors of `path`; whatever is wrong with the file becomes one `CheckpointError`."""
    size = regular_file_size(path)
    suffix = path.suffix.lower()
    try:
        if suffix == ".safetensors":
            return _read_safetensors(path, size)
        if suffix == ".npz":
            return RawFile(_read_npz(path, size))
        if suffix in _PICKLED:
            return _read_pickled(path, size)
    except _Refused as refused:
        raise CheckpointError(f"{str(path)!r} is refused: {refused}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    raise CheckpointError(f"{str(path)!r} is no weights file by its name; expected one of {', '.join(SUFFIXES)}")


def regular_file_size(path: Path) -> int:
    """A pipe or a device could be read for ever, so only plain files are."""
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{str(path)!r} is not a plain file")
    if status.st_size > MAX_BYTES:
        raise CheckpointError(f"{str(path)!r} has {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
    return status.st_size


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file beside the weights; None where there is no such file."""
    if not path.exists():
        return None
    if regular_file_size(path) > MAX_JSON_BYTES:
        raise CheckpointError(f"{str(path)!r} is too large for a configuration ({path.stat().st_size:,} bytes)")
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is not readable as JSON: {_short(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} should hold a JSON object, not {type(value).__name__}")
    return value


# --- safetensors -------------------------------------------------------------------------------------------


def _read_safetensors(path: Path, size: int) -> RawFile:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _Refused(
                f"its header claims {length:,} bytes; the file has {size:,}, the limit is {MAX_HEADER_BYTES:,}"
            )
        header = _parse_header(stream.read(length))
        metadata = _check_metadata(header.pop("__metadata__", {}))
        spans = _check_spans(header, size - 8 - length)
        data = bytearray(size - 8 - length)
        if stream.readinto(data) != len(data):
            raise _Refused("it is shorter than it was a moment ago")
    return RawFile({name: _view(data, *span) for name, span in spans.items()}, metadata)


def _parse_header(raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise _Refused("its safetensors header names something twice")
        return dict(pairs)

    try:
        header = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"its safetensors header is not JSON ({_short(error)})") from None
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise _Refused(f"its safetensors header is not an object of at most {MAX_TENSORS:,} tensors")
    return header


def _check_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Refused("the metadata of its safetensors header are not text")
    return metadata


Span = tuple[torch.dtype, tuple[int, ...], int]  # type, shape, first byte


def _check_spans(header: Mapping[str, Any], data_bytes: int) -> dict[str, Span]:
    """Every tensor's type, shape and place; together they must tile the data: no overlap, no hole, no rest."""
    spans: dict[str, Span] = {}
    ends: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise _Refused(f"the entry of tensor {name[:80]!r} lacks a known dtype, a shape or two offsets") from None
        if not isinstance(shape, list) or not all(type(n) is int for n in [*shape, begin, end]):
            raise _Refused(f"the shape or the offsets of tensor {name[:80]!r} are not whole numbers")
        spans[name] = (dtype, _check_shape(name, shape, dtype.itemsize, end - begin), begin)
        ends.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(ends):
        if begin != position:
            what = "overlaps the one before it" if begin < position else "leaves a hole before it"
            raise _Refused(f"tensor {name[:80]!r} {what}")
        position = end
    if position != data_bytes:
        raise _Refused(f"its tensors take {position:,} bytes and the file holds {data_bytes:,}: cut short, or padded")
    return spans


def _check_shape(name: str, shape: list[int] | tuple[int, ...], itemsize: int, nbytes: int) -> tuple[int, ...]:
    if len(shape) > 8 or any(n < 0 or n > MAX_BYTES for n in shape) or math.prod(shape) * itemsize != nbytes:
        shown = str(tuple(shape[:8]))[:120]
        raise _Refused(f"tensor {name[:80]!r} claims the shape {shown} and takes {nbytes:,} bytes")
    return tuple(shape)


def _view(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> Tensor:
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    if begin % dtype.itemsize:  # an odd place in the file; torch wants aligned memory
        data, begin = data[begin : begin + count * dtype.itemsize], 0
    return torch.frombuffer(data, dtype=dtype, count=count, offset=begin).reshape(shape)


# --- npz ---------------------------------------------------------------------------------------------------

_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OverflowError)


def _read_npz(path: Path, size: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip_directory(archive.infolist(), size)
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                with archive.open(entry) as stream:
                    tensors[name] = _read_npy(name, stream, entry.file_size)
    except _BROKEN_ZIP as error:
        raise _Refused(f"it is not a whole .npz file ({_short(error)})") from None
    return tensors


def check_zip_directory(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse a bomb from what its directory declares, before a byte is decompressed."""
    if len(entries) > MAX_TENSORS or len({entry.filename for entry in entries}) != len(entries):
        raise _Refused(f"its zip directory has more than {MAX_TENSORS:,} entries, or names one twice")
    declared = sum(entry.file_size for entry in entries)
    limit = min(MAX_BYTES, max(_ALWAYS_ALLOWED, _MAX_EXPANSION * size))
    if declared > limit:
        raise _Refused(f"it would unpack to {declared:,} bytes from {size:,}; the limit for that is {limit:,}")
    for entry in entries:
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Refused(f"its entry {entry.filename[:80]!r} is encrypted, or compressed in a way NumPy never uses")


def _read_npy(name: str, stream: IO[bytes], declared: int) -> Tensor:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise _Refused(f"array {name[:80]!r} has the unknown format {version}")
    shape, fortran_order, dtype = readers[version](stream)
    if dtype.hasobject or (dtype.kind not in "fiub" and dtype != np.dtype("V2")):
        raise _Refused(f"array {name[:80]!r} holds {dtype} rather than numbers; pickled objects are never loaded")
    nbytes = declared - stream.tell()
    _check_shape(name, shape, dtype.itemsize, nbytes)
    raw = bytearray(stream.read(nbytes))  # zipfile stops at the declared size, which the cap has seen
    if len(raw) != nbytes:
        raise _Refused(f"array {name[:80]!r} is cut short")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran_order else "C")
    if dtype == np.dtype("V2"):  # how NumPy writes bfloat16, which it does not know
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype.newbyteorder("=")))


# --- pickles -----------------------------------------------------------------------------------------------

_UNPICKLE = Path(__file__).with_name("unpickle.py")
_TORCH_ADDRESS_SPACE = 6 * 2**30  # torch alone maps about 1 GB; the rest is room for its allocator
_SECONDS = 60.0


def _read_pickled(path: Path, size: int) -> RawFile:
    """The child sees nothing of this process but the file's name, and can do no more than end."""
    with tempfile.TemporaryDirectory(prefix="vitreous-") as folder:
        seconds = _SECONDS + size / 2**24  # 16 MB/s: a slow disk, twice
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
        _check_child(child.returncode, child.stdout)
        return _read_safetensors(target, target.stat().st_size)


def _check_child(returncode: int, output: bytes) -> None:
    try:
        answer = json.loads(output[-2000:])
    except ValueError:
        answer = {}
    if returncode == 0 and answer == {"done": True}:
        return
    reason = answer.get("refused") if isinstance(answer, dict) else None
    if isinstance(reason, str):
        raise _Refused(_clean(reason))
    raise _Refused(f"the process that read it ended with {returncode}: it broke a limit, or torch could not read it")


def _short(error: BaseException) -> str:
    return _clean(str(error) or type(error).__name__)


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:200]
