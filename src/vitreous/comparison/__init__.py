"""Which model is better, by how much, and is the difference real? Evaluated runs → a table, figures, one HTML report.

    results.py    the plain data it starts from, summed up over seeds     verdict.py   paired tests and their sentence
    curves.py, confusion.py, mistakes.py   the figures                     table.py     the rows, for terminal and page
    published.py  a published figure beside ours                          report.py    writes everything

`results_from_runs` (run folders → `ModelResult`) belongs in `from_runs.py`; nothing here imports `train`.
"""

from vitreous.comparison.report import write_report
from vitreous.comparison.results import Comparison, ModelResult, ModelSummary
from vitreous.comparison.table import render_table

__all__ = ["Comparison", "ModelResult", "ModelSummary", "render_table", "write_report"]
