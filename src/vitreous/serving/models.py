"""The served models: the ONNX graphs, the engine and the /v1/models entry of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.config import ViTConfig
from vitreous.export import onnx_for_serving
from vitreous.export.catalog import Entry
from vitreous.runs import BUNDLED, Run
from vitreous.serving.engine import Engine, make_engine, open_session
from vitreous.serving.limits import Limits
from vitreous.serving.pages import entries_from_onnx

if TYPE_CHECKING:
    from torch import nn

    from vitreous.serving.metrics import Metrics


@dataclass(frozen=True)
class ServedModel:
    id: str
    run: Run
    entry: Entry
    engine: Engine
    full_path: Path | None  # the graph with masks and intermediates; None: not a ViT

    @property
    def vit(self) -> ViTConfig | None:
        config = self.run.config.model
        return config if isinstance(config, ViTConfig) else None

    @cached_property
    def full(self) -> Any:
        """The session of the full graph, opened when first needed."""
        assert self.full_path is not None
        return open_session(self.full_path)

    @cached_property
    def torch_model(self) -> nn.Module:
        """The model for relevance, which needs gradients; loaded when first needed."""
        return self.run.load_model()


def input_shape(run: Run) -> tuple[int, int, int]:
    config = run.config.model
    return (config.channels, *config.image_size)


def export_for_serving(runs: Sequence[Run]) -> None:
    """Export every graph to the cache, where the workers find it."""
    for run in runs:
        onnx_for_serving(run, full=False)
        if isinstance(run.config.model, ViTConfig):
            onnx_for_serving(run, full=True)


def load_models(runs: Sequence[Run], limits: Limits, metrics: Metrics, *, show_paths: bool) -> dict[str, ServedModel]:
    """Load the graphs; `show_paths`: whether /v1/models names each run's folder, for the page's "copy as command"."""
    sessions = [open_session(onnx_for_serving(run, full=False)) for run in runs]
    entries = entries_from_onnx(runs, [session.get_modelmeta().custom_metadata_map for session in sessions])
    models = {}
    for run, session, entry in zip(runs, sessions, entries, strict=True):
        if show_paths and not run.path.resolve().is_relative_to(BUNDLED):
            entry["run"] = str(run.path)
        kind = run.config.model.kind
        # the attention of the article's ViT mixes the images of a batch, so each image runs alone
        own_limits = replace(limits, batch_images=1) if kind == "post-vit" else limits
        engine = make_engine(session, input_shape(run), own_limits, metrics.batch_images.observe)
        full_path = onnx_for_serving(run, full=True) if kind == "vit" else None
        models[entry["id"]] = ServedModel(entry["id"], run, entry, engine, full_path)
    return models
