"""Rows of the conformance report, the items of paper.toml, and the model that is compared with them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from vitreous.config import Config, ModelConfig, ViTConfig
from vitreous.conformance.measurements import position_kind
from vitreous.conformance.parts import Parts, take_apart
from vitreous.models import build
from vitreous.reports.formats import by

Verdict = Literal["same", "differs", "does not apply"]


@dataclass(frozen=True)
class Row:
    """One item of the paper. `note` states the difference, or a qualification of "same"."""

    id: str
    item: str
    paper: str
    here: str
    verdict: Verdict
    note: str = ""
    unconfirmed: str = ""  # what could not be confirmed about the paper


@dataclass(frozen=True)
class Item:
    """One item of the paper, as in paper.toml."""

    id: str
    item: str
    paper: str
    unconfirmed: str = ""
    without_tokens: str = ""  # how a CNN differs; empty: the item does not apply to it
    any_model: bool = False  # measured on a CNN too
    tex: str = ""  # the equation, for pages that set it; `paper` is for the terminal


_PAPER = resources.files("vitreous.conformance").joinpath("paper.toml").read_text(encoding="utf-8")
ITEMS = tuple(Item(id, **fields) for id, fields in tomllib.loads(_PAPER).items())  # in the order of the paper


@dataclass
class Subject:
    """A configuration, and the model built or trained from it."""

    model_config: ModelConfig
    config: Config | None = None  # None: training settings are unknown
    given: nn.Module | None = None  # the model itself; None: only its configuration

    @cached_property
    def fresh_config(self) -> ModelConfig:
        return reduced(self.model_config)

    @cached_property
    def fresh(self) -> nn.Module:
        """A freshly initialised model, smaller where the configuration is large: the same code at another size."""
        with torch.random.fork_rng(devices=[]):  # always the same model, and the caller's random state is kept
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
        """A remark about the size at which a row was measured."""
        if self.given is not None or self.fresh_config == self.model_config:
            return ""
        config: Any = self.fresh_config
        return f" (on a small copy: depth {config.depth}, width {config.dim}, {by(*config.grid)} patches)"

    @cached_property
    def parts(self) -> Parts:
        return take_apart(self.model, self.measured_config)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.measured_config.channels, *self.measured_config.image_size

    @cached_property
    def position_kind(self) -> str:
        return position_kind(self.parts)


def reduced(config: ModelConfig) -> ModelConfig:
    """Return a configuration of the same kind that is quick to measure: depth 2, width 64, a grid of 4 × 4."""
    if not isinstance(config, ViTConfig) or config.dim <= 128:
        return config
    image_size = config.image_size
    if not config.stem_channels and config.fit == "exact":
        image_size = (4 * config.patch_size[0], 4 * config.patch_size[1])
    return config.replace(
        image_size=image_size,
        depth=min(config.depth, 2),
        dim=64,
        num_heads=4,
        mlp_dim=max(64 * config.mlp_dim // config.dim, 1),
        num_classes=min(config.num_classes, 20),
    )


# --- measurements --------------------------------------------------------------------------------------------


class Measurement(NamedTuple):
    """The fields of a row that depend on the model."""

    here: str
    verdict: Verdict
    note: str = ""


def same(here: str, note: str = "") -> Measurement:
    return Measurement(here, "same", note)


def differs(here: str, note: str) -> Measurement:
    return Measurement(here, "differs", note)


def does_not_apply(why: str) -> Measurement:
    return Measurement("–", "does not apply", why)


def same_unless(faults: list[str], here: str, note: str = "") -> Measurement:
    return differs(here, "; ".join(faults)) if faults else same(here, note)
