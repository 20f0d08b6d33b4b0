"""`vitreous compare` of presets: how settings reach them, and how runs are reused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitreous.config import configure
from vitreous.config.presets import preset
from vitreous.errors import RunError
from vitreous.studies import compare as study
from vitreous.studies.grid import train_or_reuse

SETTINGS = ["data.name=mnist", "train.epochs=0.2", "model.depth=1", "train.threads=1"]


def test_later_sources_win(tmp_path: Path):
    file = tmp_path / "c.toml"
    file.write_text('seed = 3\n[data]\nname = "cifar10"\n[model]\ndepth = 2\ndim = 32\n')
    assert configure("vit") == preset("vit")
    from_file = configure("vit", file=file)
    assert (from_file.seed, from_file.data.name, from_file.model.depth, from_file.model.dim) == (3, "cifar10", 2, 32)
    both = configure("vit", file=file, settings=SETTINGS)
    assert (both.data.name, both.model.depth, both.model.dim) == ("mnist", 1, 32)
    flags = configure(from_file, settings=[*SETTINGS, "seed=4"], data="digits", seed=5)
    assert (flags.data.name, flags.model.depth, flags.seed) == ("digits", 1, 5)


def test_compare_and_train_resolve_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """--data wins over --set data.name, in both; `model.depth` is for the ViT alone."""
    trained = []

    def record(config, path, device, progress):
        trained.append(config)
        raise RunError("enough")

    monkeypatch.setattr(study, "train_or_reuse", record)
    for name in ("vit", "cnn"):
        other = "vit" if name == "cnn" else "cnn"
        with pytest.raises(RunError, match="enough"):
            study.compare((name, other), data="digits", settings=SETTINGS, out=tmp_path)
    vit, cnn = trained
    assert vit == configure("vit", settings=SETTINGS, data="digits")
    assert vit.data.name == cnn.data.name == "digits"
    assert cnn == configure("cnn", settings=[one for one in SETTINGS if "depth" not in one], data="digits")


def test_a_run_is_reused_only_for_the_same_settings(tmp_path: Path):
    config = configure("vit", settings=[*SETTINGS, "model.dim=16", "model.mlp_dim=16"], data="digits")
    run = train_or_reuse(config, tmp_path / "run", "cpu", progress=False)
    before = (tmp_path / "run" / "config.json").stat().st_mtime_ns
    assert train_or_reuse(config, tmp_path / "run", "cpu", progress=False).config == run.config
    assert (tmp_path / "run" / "config.json").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="other settings"):
        train_or_reuse(config.replace(seed=1), tmp_path / "run", "cpu", progress=False)
