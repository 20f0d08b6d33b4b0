"""Weights that are split over several files."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from vitreous.checkpoints import read_checkpoint, save_model
from vitreous.errors import CheckpointError


def test_parts_of_a_folder(tiny, tmp_path):
    """An index must list what its parts hold, and parts in its own folder."""
    save_model(tiny(), tmp_path / "hf", "hf", mean=(0.5,) * 3, std=(0.5,) * 3)
    whole = load_file(tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / "model.safetensors").unlink()
    names = sorted(whole)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, names_there in parts.items():
        save_file({name: whole[name] for name in names_there}, tmp_path / "hf" / part)
    index = tmp_path / "hf" / "model.safetensors.index.json"
    listed = {name: part for part, names_there in parts.items() for name in names_there}
    index.write_text(json.dumps({"weight_map": listed}))
    for path in (tmp_path / "hf", index):
        assert read_checkpoint(path).report.endswith("none left over")
    for wrong, match in (
        ({}, "should list files"), (listed | {"x": "a.safetensors"}, "does not hold the tensors"),
        (listed | {names[0]: "../a.safetensors"}, "not in its folder"),
        (listed | {"x": "c.safetensors"}, "lists 'c.safetensors', which is not there: download it"),
        ({name: listed[name] for name in names[1:]}, "does not hold the tensors"),
    ):  # fmt: skip
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(CheckpointError, match=match):
            read_checkpoint(tmp_path / "hf")
