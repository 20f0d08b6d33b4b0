"""The result of a diagnosis: findings, checks that could not be measured, and checks that found nothing.

The level of each finding, why it matters and how to fix it are in findings.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from vitreous.doctor.examples import example_diff
from vitreous.errors import VitreousError
from vitreous.reports.formats import join

Level = Literal["broken", "warning", "note"]
LEVELS: tuple[Level, ...] = ("broken", "warning", "note")  # worst first


class NotMeasured(Exception):
    """Raised by a check that cannot observe what it needs; the message gives the reason."""


class MissingModule(VitreousError):
    """The model needs a package that is not installed."""


@dataclass(frozen=True)
class Finding:
    """One fault. `measured` is understandable on its own."""

    id: str  # stable, kebab-case: scripts and tests rely on it
    level: Level
    measured: str  # includes the number
    why: str  # why it matters
    fix: str
    diff: str = ""  # the fix as a change of the smallest model that has this fault
    module: str = ""  # the name of the module it was measured in, "" for the whole model
    location: str = ""  # file:line of that module's class, where it has a source file


@cache
def explanations() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("vitreous.doctor").joinpath("findings.toml").read_text(encoding="utf-8"))


def finding(id: str, measured: str, *, level: Level | None = None, module: str = "") -> Finding:
    """Return a finding with its explanation; `level` overrides the usual one."""
    known = explanations()[id]
    return Finding(id, level or known["level"], measured, known["why"], known["fix"], example_diff(id), module)


@dataclass(frozen=True)
class Unmeasured:
    id: str
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `healthy` lists the checks that were carried out and found nothing."""

    findings: tuple[Finding, ...]
    not_measured: tuple[Unmeasured, ...]
    healthy: tuple[str, ...]
    elapsed_seconds: float
    notes: tuple[str, ...] = ()  # on how it was examined
    cpu_seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """1 if anything is broken or a warning, 0 for notes alone."""
        return int(any(finding.level != "note" for finding in self.findings))

    def ids(self, *levels: Level) -> set[str]:
        """Return the ids of the findings, of all levels or of those given."""
        return {finding.id for finding in self.findings if finding.level in (levels or LEVELS)}

    def _repr_html_(self) -> str:
        """Return the findings as a table, for a notebook."""
        from vitreous.doctor.render import as_html

        return as_html(self)

    def as_json(self) -> dict[str, Any]:
        seconds = {"elapsed_seconds": round(self.elapsed_seconds, 2), "cpu_seconds": round(self.cpu_seconds, 2)}
        return {"exit_code": self.exit_code, **asdict(self), **seconds}


def quoted(names: Iterable[str]) -> str:
    """Return "`a`, `b`, `c` and 4 more"."""
    return join((f"`{name}`" for name in names), most=3)
