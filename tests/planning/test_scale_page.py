"""docs/scale.md shows what its commands print. `python tests/planning/test_scale_page.py` writes the blocks anew."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from vitreous.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BLOCK = re.compile(r"```console\n\$ vitreous (plan .*)\n((?:.*\n)*?)```\n")


def output_of(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(shlex.split(command), standalone_mode=False)
    return out.getvalue()


@pytest.mark.parametrize(("command", "shown"), BLOCK.findall(PAGE.read_text(encoding="utf-8")))
def test_the_page_shows_what_the_command_prints(command, shown):
    assert output_of(command) == shown
    assert max(map(len, shown.splitlines())) <= 80


def test_core_days_of_the_page():
    """Planned at 40 %, their difference, and the utilisation that would fit, from the paper's core-days."""
    rows = re.findall(
        r"^\| (ViT-[HL])/.*, (\d+) epochs \| ([\d,]+) \| ([\d,]+) \| ([−+]\d+) % \| (\d+) %",
        PAGE.read_text("utf-8"),
        re.M,
    )
    assert len(rows) == 3
    from vitreous.config import configure
    from vitreous.planning import Cluster, make_plan

    for (model, epochs, paper, planned, off, fits), images in zip(rows, (303e6, 303e6, 14.2e6), strict=True):
        preset = {"ViT-H": "vit-h14", "ViT-L": "vit-l16"}[model]
        config = configure(preset, settings=[f"train.epochs={epochs}", "train.batch_size=4096"])
        days = make_plan(config, int(images), Cluster(tflops=61.5)).work.seconds / 86_400
        core_days = float(paper.replace(",", ""))
        assert f"{days:,.0f}" == planned
        assert f"{100 * (days / core_days - 1):+.0f}".replace("-", "−") == off
        assert f"{40 * days / core_days:.0f}" == fits


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    page = BLOCK.sub(lambda block: f"```console\n$ vitreous {block[1]}\n{output_of(block[1])}```\n", page)
    PAGE.write_text(page, encoding="utf-8")
