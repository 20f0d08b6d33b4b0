"""`python -m vitreous`, and `torchrun -m vitreous`."""

import os
import sys
from pathlib import Path

# `-m` puts the current folder first, where a file named typer.py or torch.py would be taken for the library
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != str(Path(__file__).parents[1]):
    del sys.path[0]

from vitreous.cli import main

if __name__ == "__main__":
    main()
