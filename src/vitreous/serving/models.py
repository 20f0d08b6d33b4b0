"""The models being served: each one's ONNX graphs, its engine, and what /v1/models says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.config import ViTConfig
from vitreous.export import model_entries, onnx_for_serving
from vitreous.export.catalog import Entry, model_ids, parse_metadata
from vitreous.runs import BUNDLED, Run
from vitreous.serving.engine import Engine, make_engine, open_session
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics

if TYPE_CHECKING:
    from torch import nn

#: Attention in the post's ViT runs over the images of a batch: each must be alone to be answered for itself.
MIXES_ITS_BATCH = frozenset({"post-vit"})


@dataclass(frozen=True)
class ServedModel:
    ident: str
    run: Run
    entry: Entry
    engine: Engine
    full_path: Path | None  # None: nothing to look into

    @property
    def vit(self) -> ViTConfig | None:
        config = self.run.config.model
        return config if isinstance(config, ViTConfig) else None

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.run.class_names

    @cached_property
    def full(self) -> Any:
        """The session to look into; opened when first asked for."""
        assert self.full_path is not None
        return open_session(self.full_path)

    @cached_property
    def torch_model(self) -> nn.Module:
        """For relevance, which needs gradients; loaded when first asked for."""
        import torch

        torch.set_num_threads(1)
        return self.run.load_model()


def box_runs() -> list[Run]:
    """The models in the box, ViT and CNN."""
    return [Run.open(name) for name in ("box:vit", "box:cnn")]


def export_for_serving(runs: Sequence[Run]) -> None:
    """Have every graph in the cache, so that workers start at once."""
    for run in runs:
        onnx_for_serving(run, full=False)
        if isinstance(run.config.model, ViTConfig):
            onnx_for_serving(run, full=True)


def load_models(runs: Sequence[Run], limits: Limits, metrics: Metrics, *, tell_paths: bool) -> dict[str, ServedModel]:
    """`tell_paths`: whether /v1/models names each run's folder, for the page's "copy as command"."""
    idents = model_ids(runs)
    sessions = [open_session(onnx_for_serving(run, full=False)) for run in runs]
    described = {
        ident: parse_metadata(session.get_modelmeta().custom_metadata_map)
        for ident, session in zip(idents, sessions, strict=True)
    }
    entries = model_entries(described)
    served = {}
    for ident, run, session, entry in zip(idents, runs, sessions, entries, strict=True):
        if tell_paths and not run.path.resolve().is_relative_to(BUNDLED):
            entry["run"] = str(run.path)
        kind = run.config.model.kind
        shape = (run.config.model.channels, *run.config.model.image_size)
        engine = make_engine(session, shape, limits, metrics.count_batch, one_at_a_time=kind in MIXES_ITS_BATCH)
        full_path = onnx_for_serving(run, full=True) if kind == "vit" else None
        served[ident] = ServedModel(ident, run, entry, engine, full_path)
    return served
