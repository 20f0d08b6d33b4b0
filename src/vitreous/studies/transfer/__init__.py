"""What does pre-training on other images buy when labels are few? Trained on both, measured, written down.

study.py     pre-trains once, then trains every arm at every number of labels, resumably
results.py   accuracies over seeds → gains, tests and a verdict in plain words
report.py    the table, the figure, `transfer.json` and one self-contained HTML report
"""

from vitreous.studies.transfer.report import render_table
from vitreous.studies.transfer.results import Transfer
from vitreous.studies.transfer.study import transfer

__all__ = ["Transfer", "render_table", "transfer"]
