"""axe-core finds no violation in any state of the page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright")

WEB = Path(__file__).parents[2] / "web"
AXE = WEB / "node_modules/axe-core/axe.min.js"
RUN = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map(({ id, nodes }) => `${id}: ` + nodes.map(({ target, failureSummary }) =>
    `${target} (${failureSummary.split("\\n").slice(1, 3).join(" ").trim()})`).slice(0, 4).join("; "));
}"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, as web/package-lock.json pins it."""
    if not AXE.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core comes from npm, which is not installed")
        installed = subprocess.run([npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=WEB, capture_output=True)
        if installed.returncode or not AXE.exists():
            pytest.skip("axe-core could not be installed: `cd web && npm ci`")
    return AXE.read_text(encoding="utf-8")


STATES = {
    "first": "#test=3",
    "layer": "#test=3&zoom=layer&layer=1",
    "head": "#test=3&zoom=head&layer=1&head=2&from=5",
    "weight": "#test=3&zoom=head&layer=1&head=2&key=3",
    "number": "#test=3&node=embedded&from=5",
    "removed": "#test=3&without=5.6&heads=1-1&view=patch_removal&shift=2_0",
    "blank": "#strokes=",
    **{f"step {step}": f"#test=3&step={step}" for step in range(1, 8)},
}


BRIEFLY = ("first", "weight", "removed", "step 3")  # at the other widths, which share their styles with these


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (1024, "dark"), (1920, "light")]
)
def test_no_violation_in_any_state(open_page: Any, served_site: str, axe: str, width: int, scheme: str) -> None:
    options: dict[str, Any] = {"width": width, "height": 900, "color_scheme": scheme, "reduced_motion": "reduce"}
    if width < 500:
        options |= {"has_touch": True, "is_mobile": True}
    tab = open_page(served_site, "#test=3", **options)
    page = tab.page
    page.evaluate(axe)
    found = {}
    states = STATES if width in (390, 1440) else {name: STATES[name] for name in BRIEFLY}
    for name, fragment in states.items():
        page.evaluate("(fragment) => { location.hash = fragment; }", fragment)
        tab.wait_until_idle(150)
        if violations := page.evaluate(RUN):
            found[name] = violations
    page.evaluate("() => { location.hash = '#test=3'; }")
    tab.wait_until_idle(150)
    page.get_by_role("switch").click()
    page.locator("#break code").first.wait_for()
    if violations := page.evaluate(RUN):
        found["broken"] = violations
    assert found == {}
