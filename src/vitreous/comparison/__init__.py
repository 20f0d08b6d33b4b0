"""Which model is better, by how much, and is the difference significant? Evaluated runs → a table and an HTML report.

from_runs.py   run folders → `ModelResult`              verdict.py    paired tests, and the verdict in a sentence
results.py     results, summarised over seeds           table.py      the rows of the table, for terminal and page
figures.py     accuracy, loss, accuracy over time       published.py  published figures beside ours
report.py      writes the comparison                    mistakes.py   `vitreous mistakes`: one run's hardest images
hard_images.py the images that models get wrong
"""

from vitreous.comparison.report import write_comparison
from vitreous.comparison.results import Comparison, ModelResult, ModelSummary
from vitreous.comparison.table import render_table

__all__ = ["Comparison", "ModelResult", "ModelSummary", "render_table", "write_comparison"]
