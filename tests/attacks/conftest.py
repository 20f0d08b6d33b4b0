"""Put the repository's root on the path, for the package `attacks`, and this folder, for the planted faults."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).parents[2], Path(__file__).parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
