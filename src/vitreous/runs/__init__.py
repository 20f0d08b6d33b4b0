"""A run: the plain folder that `train` writes and everything else reads.

config.json (record.py) · model.safetensors · novelty-….safetensors · metrics.jsonl · resume/ (while training) ·
report/. Nothing is unpickled.
"""

from vitreous.runs.calibration import Fitted, novelty_file_name, novelty_statistics, write_calibration
from vitreous.runs.data import load_run_data, require_same_data
from vitreous.runs.folders import BUNDLED, bundled_path, free_folder, is_run, is_taken, new_run_path, report_folder
from vitreous.runs.record import (
    CONFIG,
    FORMAT,
    Calibration,
    NoveltyRecord,
    Resolved,
    RunRecord,
    TestResults,
    WeightsRecord,
)
from vitreous.runs.resume import ResumePoint
from vitreous.runs.run import WEIGHTS, Run, open_run

__all__ = [
    "BUNDLED", "CONFIG", "FORMAT", "WEIGHTS", "Calibration", "Fitted", "NoveltyRecord", "Resolved", "ResumePoint",
    "Run", "RunRecord", "TestResults", "WeightsRecord", "bundled_path", "free_folder", "is_run", "is_taken",
    "load_run_data", "new_run_path", "novelty_file_name", "novelty_statistics", "open_run", "report_folder",
    "require_same_data", "write_calibration",
]  # fmt: skip
