"""A run: the plain folder that `train` writes and everything else reads.

config.json (record.py) · model.safetensors · metrics.jsonl · resume/ (while training) · report/. Nothing is unpickled.
"""

from vitreous.runs.data import load_run_data, require_same_data
from vitreous.runs.folders import BUNDLED, bundled_path, free_folder, is_run, is_taken, new_run_path, report_folder
from vitreous.runs.record import CONFIG, FORMAT, Resolved, RunRecord, TestResults, WeightsRecord
from vitreous.runs.resume import ResumePoint
from vitreous.runs.run import WEIGHTS, Run, open_run, require_free

__all__ = [
    "BUNDLED", "CONFIG", "FORMAT", "WEIGHTS", "Resolved", "ResumePoint", "Run", "RunRecord", "TestResults",
    "WeightsRecord", "bundled_path", "free_folder", "is_run", "is_taken", "load_run_data", "new_run_path", "open_run",
    "report_folder", "require_free", "require_same_data",
]  # fmt: skip
