"""A study's findings in Markdown, for docs/studies/, and in the terminal; and the list of studies."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.downloads.files import atomic_write_bytes, atomic_write_text
from vitreous.reports.formats import plural
from vitreous.studies.definition import GridStudy, bundled_studies, load_study
from vitreous.studies.study import StudyResult
from vitreous.studies.transfer import Transfer, render_table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_HEAD = "<!-- Written by `{command}`, never by hand. -->\n"


def list_table() -> tuple[RichTable, list[dict[str, Any]]]:
    """Return the studies that come with the package: a table, and the same as plain values."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("study", "runs", "quick", "the claim"):
        table.add_column(Text(heading, style="bold"), justify="right" if heading in ("runs", "quick") else "left")
    values = []
    for name in bundled_studies():
        study = load_study(name)
        full, quick = (_count_runs(study, is_quick) for is_quick in (False, True))
        shown = ["–" if count is None else str(count) for count in (full, quick)]
        table.add_row(Text(name, style="bold"), *shown, Text(study.claim))
        facts: dict[str, Any] = {"name": name, "title": study.title, "claim": study.claim, "source": study.source}
        values.append(facts | {"runs": full, "quick_runs": quick, "seeds": study.seeds, "quick": study.quick.how})
    return table, values


def _count_runs(study: Any, quick: bool) -> int | None:
    """Return how many trainings a study takes; None for `transfer`, where that depends on the learning rates tried."""
    if not isinstance(study, GridStudy):
        return None
    from vitreous.studies.jobs import quickly

    asked = quickly(study) if quick else study
    trained = sum(arm.same_runs is None for arm in asked.arms)
    return trained * (len(asked.points.values) if asked.points else 1) * asked.seeds


def terminal_tables(result: StudyResult | Transfer) -> list[RichTable]:
    if isinstance(result, Transfer):
        return [render_table(result)]
    return [table.as_rich() for table in result.tables]


def write_page(result: StudyResult | Transfer, folder: Path) -> Path:
    """Write NAME.md and NAME.svg, and the positions where there are some, into a folder; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(result, Transfer):
        name, text, figures = "transfer", _transfer_page(result), {"": result.figure}
    else:
        name, text = result.name, _study_page(result)
        figures = {"" if figure.name == "figure" else f"-{figure.name}": figure for figure in result.figures}
    for suffix, figure in figures.items():
        atomic_write_bytes(folder / f"{name}{suffix}.svg", figure.svg.encode())
    page = folder / f"{name}.md"
    atomic_write_text(page, text)
    return page


def _study_page(result: StudyResult) -> str:
    study = result.study
    parts = [
        _HEAD.format(command=f"{result.command} --docs") + f"# {study.title}",
        f"**The claim.** {study.claim} ({study.source})",
        "**The verdict.**\n\n" + "\n".join(f"- {verdict.sentence}" for verdict in result.verdicts),
        f"![{_plain(result.figures[0].alt)}]({result.name}.svg)",
    ]
    for figure in result.figures[1:]:
        parts.append(f"![{_plain(figure.alt)}]({result.name}-{figure.name}.svg)")
    if study.note:
        parts.append(study.note)
    parts += [f"**{table.title}**\n\n{table.as_markdown()}" for table in result.tables]
    how = f" {study.quick.how}" if result.quick else ""
    parts.append(
        f"`{result.command}`, {date.today().isoformat()}: {plural(result.num_runs, 'run')},"
        f" {plural(study.seeds, 'seed')} each, {result.data}, {plural(result.cells.test_images, 'test image')};"
        f" {result.hardware}. Times are wall-clock seconds of a machine that may have been busy.{how} Differences are"
        " in percentage points, ± half of a 95 % interval"
        + (
            ", the wider of the one over seeds and the one over test images"
            + (" (over images alone where both sides are the same weights)" if _has_shared_runs(study) else "")
            if study.seeds > 1
            else ", over test images alone: one seed cannot show what another would give"
        )
        + "; p is corrected (Holm) for all comparisons of the study."
    )
    return "\n\n".join(parts) + "\n"


def _has_shared_runs(study: GridStudy) -> bool:
    return any(arm.same_runs is not None for arm in study.arms)


def _transfer_page(result: Transfer) -> str:
    parts = [
        _HEAD.format(command="vitreous study transfer --docs") + f"# {result.title}",
        result.verdict,
        f"![{_plain(result.figure.alt)}](transfer.svg)",
        result.as_markdown(),
        f"{date.today().isoformat()}: {result.seeds} seeds, {plural(result.test_images, 'test image')},"
        f" {result.hardware}; mean ± half of the 95 % interval over seeds; gains and p are paired by seed, p corrected"
        " (Holm) for the numbers of labels. [transfer.md](../transfer.md) explains the study.",
    ]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")
