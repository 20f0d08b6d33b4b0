"""Write the bundled models' calibration, graphs and samples again: `python -m vitreous.export.bundle`.

Needed after new weights, a changed graph or a changed calibration; tests/test_bundled.py notices. It needs MNIST, which
it downloads where it is not in the cache.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from vitreous.downloads.files import atomic_write_text
from vitreous.evaluation.calibration import calibrate_run, in_words
from vitreous.export.broken import write_findings
from vitreous.export.catalog import BUNDLED_SAMPLES, digit_samples
from vitreous.export.onnx_files import export_onnx
from vitreous.export.served_graphs import graph_kinds, write_verified
from vitreous.runs import BUNDLED, CONFIG, Run
from vitreous.runs.folders import LOCK


def bundle() -> None:
    paths = [config.parent for config in sorted(BUNDLED.glob(f"*/{CONFIG}"))]
    runs = [Run.open(path) for path in paths if path.name != "broken"]  # whose probabilities nobody should trust
    for run in runs:
        print(in_words(calibrate_run(run)))
        (run.path / LOCK).unlink(missing_ok=True)  # a package has none
        for kind in graph_kinds(run):
            with tempfile.TemporaryDirectory(prefix="vitreous-bundle-") as folder:
                graph = export_onnx(run, Path(folder, "model.onnx"), full=kind == "full").path.read_bytes()
            for old in run.path.glob(f"{kind}-*.onnx"):
                old.unlink()
            print(write_verified(run.path, kind, graph))
    atomic_write_text(BUNDLED_SAMPLES, json.dumps(digit_samples(runs[0])) + "\n")
    print(BUNDLED_SAMPLES)
    write_findings()


if __name__ == "__main__":
    bundle()
