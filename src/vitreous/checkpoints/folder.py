"""Find the weights in a folder: one file, or the parts that an index lists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vitreous.checkpoints.files import MAX_TENSORS, RawFile, read_json, read_tensors
from vitreous.errors import CheckpointError, quoted

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"
_MOST_PARTS = 1000


def open_weights(path: Path) -> tuple[RawFile, dict[str, Any]]:
    """Return the tensors of a file, a folder or an index, and the config.json beside them, {} if there is none."""
    is_folder = os.path.isdir(path)  # Path.is_dir raises where the name is too long
    file = _weights_in(path) if is_folder else path
    config = read_json(file.parent / "config.json")
    if is_folder and isinstance(config.get("config"), dict):
        raise CheckpointError(f"{str(path)!r} is a run of vitreous: give it where a run is expected, with --run")
    return (_read_parts(file) if file.name.endswith(_INDEX) else read_tensors(file)), config


def _weights_in(folder: Path) -> Path:
    for name in (*WEIGHT_FILES, *(name + _INDEX for name in WEIGHT_FILES)):
        if (folder / name).exists():
            return folder / name
    raise CheckpointError(
        f"the folder {str(folder)!r} holds neither {' nor '.join(WEIGHT_FILES)}, nor an index of parts"
    )


def _read_parts(index: Path) -> RawFile:
    """Read the files that an index lists; they must hold exactly the tensors it lists for them."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise CheckpointError(f"{str(index)!r} should list files by tensor in 'weight_map': save the model again")
    files = sorted(set(listed.values()))
    if len(listed) > MAX_TENSORS or len(files) > _MOST_PARTS:
        raise CheckpointError(
            f"{str(index)!r} lists {len(listed):,} tensors in {len(files):,} files, which is too many"
        )
    parts = RawFile({}, {})
    for name in files:
        if Path(name).name != name:
            raise CheckpointError(f"{str(index)!r} lists the file {quoted(name)}, which is not in its folder")
        if not (index.parent / name).exists():
            raise CheckpointError(f"{str(index)!r} lists {quoted(name)}, which is not there: download it as well")
        part = read_tensors(index.parent / name)
        wanted = {tensor for tensor, file in listed.items() if file == name}
        if part.tensors.keys() != wanted:
            first = min(part.tensors.keys() ^ wanted)
            raise CheckpointError(
                f"{name!r} does not hold the tensors that {str(index)!r} lists for it: {quoted(first)}"
            )
        parts.tensors.update(part.tensors)
        parts.metadata.update(part.metadata)
    return parts
