"""What the doctor says: findings, what it could not measure, and what it measured and found in order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["broken", "warning", "note"]
LEVELS: tuple[Level, ...] = ("broken", "warning", "note")  # worst first


class NotMeasured(Exception):
    """Raised by a check that cannot observe what it is about; the message says why."""


@dataclass(frozen=True)
class Finding:
    """One fault. The three sentences stand alone: a person who reads only `measured` knows what is the matter."""

    id: str  # stable, kebab-case: scripts and tests rely on it
    level: Level
    measured: str  # what was measured, the number included
    why: str  # why it matters
    mend: str  # what to do


@dataclass(frozen=True)
class Unmeasured:
    id: str
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """The whole visit. `healthy` names the checks that were carried out and found nothing."""

    findings: tuple[Finding, ...]
    not_measured: tuple[Unmeasured, ...]
    healthy: tuple[str, ...]
    elapsed_seconds: float

    @property
    def exit_code(self) -> int:
        """1 if anything is broken or deserves a warning; notes alone are no alarm."""
        return int(any(finding.level != "note" for finding in self.findings))

    def ids(self, *levels: Level) -> set[str]:
        """The ids found, of all levels or of those named."""
        return {finding.id for finding in self.findings if finding.level in (levels or LEVELS)}

    def as_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        return {
            "exit_code": self.exit_code,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "not_measured": [dataclasses.asdict(unmeasured) for unmeasured in self.not_measured],
            "healthy": list(self.healthy),
            "elapsed_seconds": round(self.elapsed_seconds, 2),
        }
