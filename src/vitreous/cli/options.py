"""Options that mean the same in every command."""

from pathlib import Path
from typing import Annotated

from typer import Option

RunOption = Annotated[Path | None, Option("--run", help="A run folder; default: bundled:vit.")]
OutOption = Annotated[Path | None, Option("--out", "-o", help="Where to write; default: a new folder in runs/.")]
DataOption = Annotated[
    str | None, Option("--data", help="mnist, fashion-mnist, cifar10, digits, a folder or FILE.npz.")
]
SplitOption = Annotated[str, Option(help="train, val or test.")]
SeedOption = Annotated[int | None, Option("--seed", help="The seed of everything random.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
SetOption = Annotated[list[str] | None, Option("--set", help="Override a setting: --set model.depth=6; repeatable.")]
DeviceOption = Annotated[str, Option("--device", help="auto, cpu, cuda or mps.")]
