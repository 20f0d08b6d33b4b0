"""What a conformance row is, what it is asked about, and how rows are declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from vitreous.config import Config, ModelConfig, ViTConfig
from vitreous.conformance.parts import Parts, take_apart
from vitreous.models import build

Verdict = Literal["same", "differs", "does not apply"]


@dataclass(frozen=True)
class Row:
    """One item of the paper. `note` says what differs, or what the person should know although it is the same."""

    id: str
    item: str
    paper: str
    here: str
    verdict: Verdict
    note: str = ""
    unconfirmed: str = ""  # what could not be confirmed about the paper's side

    def __str__(self) -> str:
        return self.verdict + (f": {self.note}" if self.note else "")


@dataclass
class Subject:
    """What is asked about: a configuration, and the model made from it (or one that was trained from it)."""

    model_config: ModelConfig
    config: Config | None = None  # None: nothing is known about training
    given: nn.Module | None = None  # the model itself; None: only its configuration
    fresh_config: ModelConfig = field(init=False)
    memo: dict[str, str] = field(default_factory=dict)  # what several rows ask and need not measure twice

    def __post_init__(self) -> None:
        self.fresh_config = reduced(self.model_config)

    @cached_property
    def fresh(self) -> nn.Module:
        """A freshly initialised model, smaller where the configuration is large: the same code at another size."""
        with torch.random.fork_rng(devices=[]):  # the same model whenever it is asked about, and no one's random state
            torch.manual_seed(0)
            return build(self.fresh_config)

    @property
    def model(self) -> nn.Module:
        return self.fresh if self.given is None else self.given

    @property
    def measured_config(self) -> ModelConfig:
        return self.fresh_config if self.given is None else self.model_config

    @property
    def scale(self) -> str:
        """What the reader should know about the size at which a row was measured."""
        if self.given is not None or self.fresh_config == self.model_config:
            return ""
        config: Any = self.fresh_config
        rows, columns = config.grid
        return f" (on a small copy: depth {config.depth}, width {config.dim}, {rows}×{columns} patches)"

    @cached_property
    def parts(self) -> Parts | None:
        return take_apart(self.model, self.measured_config)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.measured_config.channels, *self.measured_config.image_size

    @property
    def width(self) -> int:
        return int(getattr(self.measured_config, "dim"))  # noqa: B009 - only the transformers have one


def reduced(config: ModelConfig) -> ModelConfig:
    """A configuration of the same kind, small enough to measure at once: depth 2, width 64, a grid of 4 × 4."""
    if not isinstance(config, ViTConfig) or config.dim <= 128:
        return config
    changes: dict[str, object] = {
        "depth": min(config.depth, 2), "dim": 64, "num_heads": 4, "mlp_dim": max(64 * config.mlp_dim // config.dim, 1),
        "num_classes": min(config.num_classes, 20),
    }  # fmt: skip
    if not config.stem_channels and config.fit == "exact":
        changes["image_size"] = (4 * config.patch_size[0], 4 * config.patch_size[1])
    return config.replace(**changes)


# --- declaring items -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """One item of the paper and the function that measures it; calling it gives the whole row."""

    id: str
    item: str
    paper: str
    measure: Callable[[Subject], Row]
    unconfirmed: str = ""

    def __call__(self, subject: Subject) -> Row:
        found = self.measure(subject)
        return replace(
            found, id=self.id, item=self.item, paper=found.paper or self.paper,
            unconfirmed=found.unconfirmed or self.unconfirmed,
        )  # fmt: skip


def item(id: str, name: str, paper: str, unconfirmed: str = "") -> Callable[[Callable[[Subject], Row]], Item]:
    """Make a measurement an item of the sheet; the measurement returns `same`, `differs` or `does_not_apply`."""
    return lambda measure: Item(id, name, paper, measure, unconfirmed)


def same(here: str, note: str = "", paper: str = "") -> Row:
    return Row("", "", paper, here, "same", note)


def differs(here: str, note: str, paper: str = "") -> Row:
    return Row("", "", paper, here, "differs", note)


def does_not_apply(why: str, paper: str = "") -> Row:
    return Row("", "", paper, "–", "does not apply", why)
