"""`vitreous train --find-lr`: suggest a learning rate, by `vitreous.training.lr_finder`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.cli.output import log, print_result
from vitreous.errors import ConfigError, quoted

if TYPE_CHECKING:
    from vitreous.config import Config
    from vitreous.training.auto import AutoRequest

#: Settings that are not repeated: the learning rates are the result, and the seconds were for the search.
_REPLACED = ("train.lr", "train.muon_lr", "train.budget_seconds")


def suggest_lr(
    config: Config | AutoRequest,
    settings: Sequence[str],
    arguments: Mapping[str, object],
    device: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the suggestion and the command that trains with it, and write a plot."""
    from vitreous.downloads.files import atomic_write_bytes
    from vitreous.runs.folders import run_name
    from vitreous.training import auto
    from vitreous.training.lr_finder import RULE, find_lr

    if out is not None and (out.suffix.lower() != ".png" or out.is_dir()):
        raise ConfigError(f"--find-lr writes a picture: name it with -o FILE.png, not {quoted(str(out))}")
    sweep = find_lr(auto.choose(config, log) if isinstance(config, auto.AutoRequest) else config, device=device)
    file = out or Path("runs") / f"find-lr-{run_name(sweep.config)}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(file, sweep.figure().png)

    words = [word for flag, value in arguments.items() if value is not None for word in (flag, str(value)) if word]
    for setting in settings:
        words += [] if setting.partition("=")[0].strip() in _REPLACED else ["--set", setting]
    for name, value in sweep.settings.items():
        words += ["--set", f"{name}={value:g}"]
    command = shlex.join(["vitreous", "train", *words])
    ours, theirs = sweep.suggested, sweep.config.train.lr
    close = ", which is close: no need to change it" if 0.5 <= ours / theirs <= 2 else ""
    print_result(
        f"train.lr={ours:g} suggested, {RULE}; {sweep.config.name} has {theirs:g}{close}",
        command,
        f"plot: {file}",
        value={**sweep.as_json(), "command": command, "figure": str(file)},
        as_json=as_json,
    )
