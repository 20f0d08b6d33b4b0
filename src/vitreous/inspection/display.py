"""How a look is shown: in one line, in a notebook, as a data frame."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitreous.reports.notebook import data_frame, html_card, html_figure

if TYPE_CHECKING:
    from vitreous.inspection.report import Look


def look_line(look: Look) -> str:
    return f"Look({look.summary} report {str(look.report)!r})"


def look_html(look: Look) -> str:
    advice = {"maps": look.advice[0]} if look.advice else {}
    alt = " ".join(["Maps of what the prediction depends on.", *advice.values()])
    drawn = [each for each in look.figures if each.suffix == ".svg" and each.stem.endswith("maps")]
    maps = [html_figure(each, alt) for each in drawn]
    return html_card(look.summary, {"report": look.report, **advice}, *maps)


def look_frame(look: Look) -> Any:
    """Return a data frame with a row per map: how faithful it is to what the model computes."""
    scores = [asdict(score) for score in look.examination.faithfulness.scores]
    return data_frame({name: [score[name] for score in scores] for name in scores[0]})
