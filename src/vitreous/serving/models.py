"""The served models: the ONNX graphs, the engine and the /v1/models entry of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from vitreous.config import ViTConfig
from vitreous.export.catalog import Entry
from vitreous.export.served_graphs import onnx_for_serving
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

    @property
    def vit(self) -> ViTConfig | None:
        config = self.run.config.model
        return config if isinstance(config, ViTConfig) else None

    @cached_property
    def full(self) -> Any:
        """The session of the graph with masks and intermediates (ViTs only), opened when first needed."""
        return open_session(onnx_for_serving(self.run, "full"))

    @cached_property
    def torch_model(self) -> nn.Module:
        """The model for relevance, which needs gradients; loaded when first needed."""
        return self.run.load_model()


def input_shape(run: Run) -> tuple[int, int, int]:
    config = run.config.model
    return (config.channels, *config.image_size)


def load_models(runs: Sequence[Run], limits: Limits, metrics: Metrics, *, show_paths: bool) -> dict[str, ServedModel]:
    """Load the graphs; `show_paths`: whether /v1/models names each run's folder, for the page's "copy as command".

    With them go the addresses of the weights, from which the page computes what happens between the layers.
    """
    sessions = [open_session(onnx_for_serving(run, "lean")) for run in runs]
    entries = entries_from_onnx(runs, [session.get_modelmeta().custom_metadata_map for session in sessions])
    models = {}
    for run, session, entry in zip(runs, sessions, entries, strict=True):
        is_bundled = run.path.resolve().is_relative_to(BUNDLED)
        if show_paths and not is_bundled:
            entry["run"] = str(run.path)
        if (show_paths or is_bundled) and entry["kind"] == "vit":  # a server for others keeps its own models' weights
            entry["weights"] = f"v1/weights?model={quote(entry['id'])}"
        kind = run.config.model.kind
        # the attention of the article's ViT mixes the images of a batch, so each image runs alone
        own_limits = replace(limits, batch_images=1) if kind == "post-vit" else limits
        engine = make_engine(session, input_shape(run), own_limits, metrics.batch_images.observe)
        models[entry["id"]] = ServedModel(entry["id"], run, entry, engine)
    return models
