"""A diagnosis in SARIF 2.1.0, which code review tools show beside the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitreous import __version__
from vitreous.doctor.findings import Diagnosis, Finding, explanations
from vitreous.downloads.files import atomic_write_text

_LEVELS = {"broken": "error", "warning": "warning", "note": "note"}


def as_sarif(diagnosis: Diagnosis, target: str) -> dict[str, Any]:
    """Return one SARIF run: a rule per kind of finding, a result per finding."""
    ids = sorted(diagnosis.ids())
    rules = [
        {
            "id": id,
            "shortDescription": {"text": id.replace("-", " ")},
            "fullDescription": {"text": explanations()[id]["why"]},
            "help": {"text": explanations()[id]["fix"]},
            "defaultConfiguration": {"level": _LEVELS[explanations()[id]["level"]]},
        }
        for id in ids
    ]
    driver = {"name": "vitreous doctor", "version": __version__, "rules": rules}
    results = [_result(finding, ids, target) for finding in diagnosis.findings]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def write_sarif(diagnosis: Diagnosis, target: str, path: Path) -> None:
    atomic_write_text(path, json.dumps(as_sarif(diagnosis, target), indent=1))


def _result(finding: Finding, ids: list[str], target: str) -> dict[str, Any]:
    path, _, line = (finding.location or "").rpartition(":")
    name = {"name": finding.module or target, "kind": "module"}
    location: dict[str, Any] = {"logicalLocations": [name]}
    if path:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(path)},
            "region": {"startLine": int(line)},
        }
    return {
        "ruleId": finding.id,
        "ruleIndex": ids.index(finding.id),
        "level": _LEVELS[finding.level],
        "message": {"text": f"{finding.measured} {finding.why} Fix: {finding.fix}"},
        "locations": [location],
    }


def _uri(path: str) -> str:
    """Return the path relative to the current folder where possible, as code review tools expect."""
    resolved = Path(path).resolve()
    here = Path.cwd()
    return resolved.relative_to(here).as_posix() if resolved.is_relative_to(here) else resolved.as_uri()
