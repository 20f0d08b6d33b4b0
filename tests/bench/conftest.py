"""The benchmarks are scripts beside the package: their folder is put where they import each other from."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.insert(0, BENCH)
