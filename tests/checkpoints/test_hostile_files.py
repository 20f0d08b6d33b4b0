"""Hostile files are refused with one sentence: no code runs, time and memory are bounded."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitreous.checkpoints import files, load_model, read_checkpoint
from vitreous.checkpoints.files import read_tensors
from vitreous.errors import CheckpointError


def refused(path: Path, match: str, megabytes: float = 8.0) -> None:
    """Assert that the file is refused in one sentence, quickly (in CPU time: the machine may be busy) and in little
    memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(CheckpointError, match=match) as caught:
            read_tensors(path)
        elapsed, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert elapsed < 1
    assert peak < megabytes * 2**20
    assert "\n" not in str(caught.value)


# --- pickles -----------------------------------------------------------------------------------------------


class Canary:
    """Unpickled in full, this creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare pickle", "inside npz", "named safetensors", "named npz"])
def test_a_pickle_that_runs_code_does_not(tmp_path, form):
    canary = tmp_path / "canary"
    payload = {"model": {"cls_token": torch.zeros(1, 1, 4), "patch_embed.proj.weight": Canary(canary)}}
    path = tmp_path / "weights.pth"
    if form in ("zip", "legacy"):
        torch.save(payload, path, _use_new_zipfile_serialization=form == "zip")
    elif form == "bare pickle":
        path.write_bytes(pickle.dumps(payload))
    elif form == "inside npz":
        path = tmp_path / "weights.npz"
        np.savez(path, **{"embedding/kernel": np.array([Canary(canary)], dtype=object)})
    else:
        path = tmp_path / f"weights.{form.split()[1]}"
        path.write_bytes(pickle.dumps(payload))
    found = "posix.mkdir" if form in ("zip", "legacy") else ""
    with pytest.raises(CheckpointError, match=f"refused.*{found}") as caught:
        read_checkpoint(path)
    assert not canary.exists()
    assert "\n" not in str(caught.value)
    # the same file, unpickled in full, does run code
    if form == "bare pickle":
        pickle.loads(path.read_bytes())
        assert canary.exists()


def test_a_tensor_that_grows_when_unpacked(tmp_path):
    torch.save({"x": torch.ones(1).expand(2**33)}, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", "would take 34,359,738,368 bytes")


def test_a_compressed_pth_bomb(tmp_path):
    buffer = io.BytesIO()
    torch.save({"x": torch.zeros(2**25)}, buffer)  # 128 MB of zeros
    with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(tmp_path / "w.pth", "w", 8, compresslevel=1) as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    assert (tmp_path / "w.pth").stat().st_size < 2**20
    refused(tmp_path / "w.pth", "would unpack to")


def test_a_flipped_bit_in_a_pickled_weight(tmp_path):
    """torch.load does not compare the checksums of the zip file: it would return a changed weight."""
    path = tmp_path / "w.pth"
    torch.save({"x": torch.full((100,), 1.5)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<f", 1.5)) + 2] ^= 1
    path.write_bytes(data)
    assert torch.load(path)["x"].unique().numel() == 2
    refused(path, "'w/data/0' does not match its checksum")


def test_lists_that_hold_each_other_and_an_environment_that_runs_code(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")  # would run before any limit
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nested: list = [torch.zeros(2)]
    for _ in range(6):
        nested = [nested] * 100  # 10¹² ways to the one tensor
    torch.save({"x": nested}, tmp_path / "w.pth")
    start = time.monotonic()
    assert len(read_tensors(tmp_path / "w.pth").tensors) == 1
    assert time.monotonic() - start < 60
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"x": inner}])
def test_containers_nested_deeper_than_any_checkpoint_are_refused(tmp_path, wrap):
    """Not skipped: a tensor would be missing without a word."""
    nested = torch.zeros(2)
    for _ in range(10):
        nested = wrap(nested)
    torch.save({"weight": torch.zeros(3), "more": nested}, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", "dictionaries and lists are nested too deeply")


def test_the_child_is_limited_in_memory_and_time(tmp_path, monkeypatch):
    torch.save({"x": torch.zeros(3)}, tmp_path / "w.pth")
    monkeypatch.setattr(files, "_TORCH_ADDRESS_SPACE", 64 * 2**20)
    refused(tmp_path / "w.pth", "ended with|more memory|cannot be read")
    monkeypatch.undo()
    monkeypatch.setattr(files, "_SECONDS", 0.05)
    refused(tmp_path / "w.pth", "took more than 0 seconds")
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # ours is as it was


# --- safetensors -------------------------------------------------------------------------------------------


def safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


FOUR = b"\0" * 16
TWO_SHAPES = f'{{"a": {json.dumps(entry([4], 0, 16))}, "a": {json.dumps(entry([2, 2], 0, 16))}}}'.encode()
LIES = {
    "header of 2**63": ({"a": entry([4], 0, 16)}, FOUR, 2**63, "header too large"),
    "header of 2**64-1": ({}, b"", 2**64 - 1, "header too large"),
    "header past the end": ({"a": entry([4], 0, 16)}, FOUR, 10_000, "invalid header length"),
    "overlap": ({"a": entry([4], 0, 16), "b": entry([2], 8, 16)}, FOUR, None, "invalid offset"),
    "the same bytes twice": ({"a": entry([4], 0, 16), "b": entry([4], 0, 16)}, FOUR, None, "invalid offset"),
    "hole": ({"a": entry([1], 0, 4), "b": entry([2], 8, 16)}, FOUR, None, "invalid offset"),
    "rest": ({"a": entry([2], 0, 8)}, FOUR, None, "not fully covered"),
    "past the end": ({"a": entry([8], 0, 32)}, FOUR, None, "not fully covered"),
    "shape and bytes disagree": ({"a": entry([5], 0, 16)}, FOUR, None, "invalid shape"),
    "overflowing shape": ({"a": entry([2**62, 4, 2**62], 0, 16)}, FOUR, None, "overflow"),
    "shape that wraps to the size": ({"a": entry([2**62 + 1, 4], 0, 16)}, FOUR, None, "overflow"),
    "negative shape": ({"a": entry([-2, -2], 0, 16)}, FOUR, None, "invalid JSON"),
    "empty with a huge side": ({"a": entry([0, 2**62], 0, 0)}, b"", None, "declares the shape"),
    "empty with a side of 2**63": ({"a": entry([0, 2**63], 0, 0)}, b"", None, "declares the shape"),
    "a thousand dimensions": ({"a": entry([1] * 1000, 0, 4)}, b"\0" * 4, None, "declares the shape"),
    "backward offsets": ({"a": entry([4], 16, 0)}, FOUR, None, "invalid offset"),
    "fractions": ({"a": entry([4.0], 0, 16)}, FOUR, None, "invalid JSON"),
    "booleans": ({"a": entry([True, 4], 0, 16)}, FOUR, None, "invalid JSON"),
    "unknown type": ({"a": entry([4], 0, 16, "F33")}, FOUR, None, "invalid JSON"),
    "complex numbers": ({"a": entry([2], 0, 16, "C64")}, FOUR, None, "unsupported dtype C64"),
    "type that is a list": ({"a": entry([4], 0, 16, ["F32"])}, FOUR, None, "invalid JSON"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}}, FOUR, None, "invalid JSON"),
    "entry that is a number": ({"a": 3}, FOUR, None, "invalid JSON"),
    "header that is a list": ([1, 2], b"", None, "invalid JSON"),
    "metadata that are numbers": ({"__metadata__": {"x": 1}}, b"", None, "invalid JSON"),
    "not JSON": (b"{'a': 1}", b"", None, "invalid JSON"),
    "not UTF-8": (b'{"\xff\xfe": 1}', b"", None, "invalid UTF-8"),
    "nested for ever": (b"[" * 100_000, b"", None, "invalid JSON"),
    "one name, two shapes": (TWO_SHAPES, FOUR, None, "repeats a name"),
    "a long number": (b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0], "x": ' + b"9" * 5000 + b"}}", b"",
                      None, "not a complete safetensors file"),
    "too many tensors": ({str(i): entry([0], 0, 0) for i in range(5)}, b"", None, "the limit is 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_safetensors_that_lie(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "MAX_TENSORS", 4)
    header, data, length, match = LIES[name]
    refused(safetensors(tmp_path / "w.safetensors", header, data, length), match)


def test_large_headers(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", 100 * 2**20))
        stream.truncate(200 * 2**20)  # sparse: no disk is used
    refused(path, "header too large")
    monkeypatch.setattr(files, "MAX_HEADER_BYTES", 20)
    refused(safetensors(path, {"a": entry([4], 0, 16)}, FOUR), "the limit is 20")


def test_truncated_at_every_place(tmp_path):
    whole = tmp_path / "whole.safetensors"
    save_file({"a": torch.randn(20, 3), "b": torch.randn(7)}, whole)
    data = whole.read_bytes()
    for length in range(0, len(data), max(len(data) // 50, 1)):
        (tmp_path / "short.safetensors").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="refused"):
            read_tensors(tmp_path / "short.safetensors")


def test_what_is_read_is_what_was_written(tmp_path):
    tensors = {
        "f32": torch.randn(3, 4), "f64": torch.randn(2).double(), "f16": torch.randn(5).half(), "i64": torch.arange(3),
        "bf16": torch.randn(3).bfloat16(), "scalar": torch.tensor(2.5), "u8": torch.arange(3, dtype=torch.uint8),
    }  # fmt: skip
    save_file(tensors, tmp_path / "w.safetensors", metadata={"note": "ä"})
    raw = read_tensors(tmp_path / "w.safetensors")
    assert raw.metadata == {"note": "ä"}
    for name, tensor in tensors.items():
        torch.testing.assert_close(raw.tensors[name], tensor, rtol=0, atol=0)
    # an odd offset, which the library itself never writes
    header = {"a": entry([1], 0, 1, "U8"), "b": entry([1], 1, 5)}
    odd = safetensors(tmp_path / "odd.safetensors", header, b"\1\0\0\x80?")
    assert read_tensors(odd).tensors["b"].item() == 1.0


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x" * 501])
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_names_that_would_break_a_message(tmp_path, name, suffix):
    path = tmp_path / f"w.{suffix}"
    if suffix == "npz":
        np.savez(path, **{name: np.ones(2)})
    else:
        save_file({name: torch.ones(2)}, path)
    refused(path, "it names a tensor .*; expected up to 500 printable characters")


# --- npz ---------------------------------------------------------------------------------------------------


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    raw = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(raw)) + raw + data


def npz(path: Path, contents: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("embedding/kernel.npy", contents)
    return path


HEADERS = {
    "absurd shape": ("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 9999999), }", "the shape"),
    "negative shape": ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }", "declares the shape"),
    "empty with a huge side": ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999), }", "shape"),
    "objects": ("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "never loaded"),
    "text": ("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", "rather than numbers"),
    "long doubles": ("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", "rather than numbers"),
    "records": ("{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }", "never loaded"),
    "code": ("__import__('os').mkdir('canary')", "damaged header"),
    "missing keys": ("{'descr': '<f4'}", "damaged header"),
    "too long": ("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }" + " " * 60_000, "damaged header"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_npy_headers_that_lie(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    header, match = HEADERS[name]
    refused(npz(tmp_path / "w.npz", npy(header, FOUR)), match)
    assert not (tmp_path / "canary").exists()


def test_an_npz_bomb_is_refused_from_its_directory(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        zeros = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (8388608,), }", b"\0" * 2**25)
        for i in range(4):
            archive.writestr(f"a{i}.npy", zeros)
    assert path.stat().st_size < 2**20
    refused(path, r"would unpack to 134,\d+,\d+ bytes")


def test_an_npz_that_understates_its_size(tmp_path):
    """The directory declares 128 bytes, the stream holds 32 MB: only what was declared is ever read."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"
    path = npz(tmp_path / "w.npz", npy(header, b"\0" * 2**25), zipfile.ZIP_DEFLATED)
    raw = bytearray(path.read_bytes())
    central = raw.rindex(b"PK\x01\x02")
    declared = len(npy(header, FOUR))
    raw[central + 24 : central + 28] = struct.pack("<I", declared)
    raw[22:26] = struct.pack("<I", declared)
    path.write_bytes(raw)
    refused(path, "not a complete .npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_strange_compression(tmp_path, method):
    contents = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", FOUR)
    refused(npz(tmp_path / "w.npz", contents, method), "compressed in a way NumPy never uses")


def test_truncated_npz(tmp_path):
    np.savez(tmp_path / "whole.npz", a=np.ones((20, 3), np.float32), b=np.ones(7))
    data = (tmp_path / "whole.npz").read_bytes()
    for length in range(0, len(data), max(len(data) // 50, 1)):
        (tmp_path / "short.npz").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="refused"):
            read_tensors(tmp_path / "short.npz")
    flipped = bytearray(data)
    flipped[200] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(flipped)
    refused(tmp_path / "flipped.npz", "not a complete .npz")


def test_npz_orders_and_types(tmp_path):
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    bf16 = torch.randn(4).bfloat16()
    arrays = {
        "c": grid, "fortran": np.asfortranarray(grid), "big": grid.astype(">f4"), "half": grid.astype(np.float16),
        "count": np.array(3), "bf16": bf16.view(torch.int16).numpy().view("V2"),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "w.npz", **arrays)
    tensors = read_tensors(tmp_path / "w.npz").tensors
    for name in ("c", "fortran", "big", "half"):
        np.testing.assert_array_equal(tensors[name].float().numpy(), grid)
    torch.testing.assert_close(tensors["bf16"], bf16, rtol=0, atol=0)
    assert tensors["count"].item() == 3


# --- any file ----------------------------------------------------------------------------------------------


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(tmp_path / "pipe.safetensors", "not a plain file")
    refused(tmp_path / "none.npz", "No such file")
    (tmp_path / "weights.h5").write_bytes(b"x")
    refused(tmp_path / "weights.h5", "no weights file by its name")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    refused(tmp_path / "empty.safetensors", "refused")


def test_a_sparse_file_of_a_terabyte(tmp_path):
    with (tmp_path / "w.safetensors").open("wb") as stream:
        stream.truncate(2**40)
    refused(tmp_path / "w.safetensors", "the limit is")


@pytest.mark.parametrize("contents", [b"[" * 100_000, b"[1]", b"{", b"\xff"])
def test_a_damaged_config(tmp_path, contents):
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(contents)
    with pytest.raises(CheckpointError, match=r"config\.json' (is not readable as JSON|should hold a JSON object)"):
        read_checkpoint(tmp_path)


def test_small_files_that_imply_huge_models(tmp_path, tiny):
    """Shapes that are true one by one and absurd together; nothing of their size is ever built."""
    state = {name: tensor.clone() for name, tensor in tiny().state_dict().items()}
    huge = torch.zeros(2**20, 3, 1, 1)  # a width of a million: attention alone would be 12 TB
    save_file(state | {"patch_embed.proj.weight": huge}, tmp_path / "wide.safetensors")
    with pytest.raises(CheckpointError, match="is not a whole model"):
        load_model(tmp_path / "wide.safetensors", num_heads=4)
    with pytest.raises(CheckpointError, match=r"implies [\d,]{15,} parameters"):
        load_model(tmp_path / "wide.safetensors", num_heads=4, allow_partial=True)
    many = {f"blocks.{i}.norm1.weight": torch.zeros(1) for i in range(3000)}
    save_file(state | many, tmp_path / "deep.safetensors")
    with pytest.raises(CheckpointError, match="3000 transformer blocks"):
        read_checkpoint(tmp_path / "deep.safetensors", num_heads=4)
    save_file(state | {"blocks.999999.norm1.weight": torch.zeros(1)}, tmp_path / "gap.safetensors")
    with pytest.raises(CheckpointError, match="block 2 is missing"):
        read_checkpoint(tmp_path / "gap.safetensors", num_heads=4)
    save_file(state | {"norm.weight": torch.full((32,), float("nan"))}, tmp_path / "nan.safetensors")
    with pytest.raises(CheckpointError, match=r"NaN or infinity.*norm\.weight"):
        read_checkpoint(tmp_path / "nan.safetensors", num_heads=4)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
STAND_INS = {
    "nothing": (b"", "it is empty: download or save it again"),
    "a Git LFS pointer": (LFS, "it is a Git LFS pointer, not the weights: run `git lfs pull`"),
    "a web page": (b"\n<!DOCTYPE html><html>", "it is a web page, not the weights"),
}


@pytest.mark.parametrize("name", STAND_INS)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".bin"])
def test_what_is_found_in_place_of_weights_is_named(tmp_path, name, suffix):
    contents, words = STAND_INS[name]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(contents)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["weights.zip", "weights.safetensors"])
def test_a_zip_archive_is_to_be_unpacked(tmp_path, name):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("model.safetensors", b"x")
    with pytest.raises(CheckpointError, match="it is a zip archive: unpack it"):
        read_checkpoint(tmp_path / name)
