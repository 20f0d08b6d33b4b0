"""The program of one process of a study: a run per line of standard input, until the input ends.

A request is a line of JSON: configuration, folder, batch sizes, device. The responses are lines of JSON: `fraction` of
the training that is done, then `done`, or `stopped` (it is saved, and can go on), or `error` with a sentence. SIGTERM
stops a training after its step.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    responses = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library may print is no response

    def respond(**values: Any) -> None:
        responses.write(json.dumps(values) + "\n")
        responses.flush()

    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        for line in sys.stdin:
            _work(json.loads(line), respond)
    os._exit(0)  # without the flush of `responses`, whose reader may be gone


def _work(request: dict[str, Any], respond: Any) -> None:
    from vitreous.config import Config, build_config
    from vitreous.errors import VitreousError
    from vitreous.studies.grid import train_and_evaluate
    from vitreous.training.loop import TrainingInterrupted

    try:
        train_and_evaluate(
            build_config(Config, request["config"]), Path(request["path"]), request["batch_sizes"], request["device"],
            lambda fraction: respond(fraction=fraction),
        )  # fmt: skip
    except TrainingInterrupted as stop:
        respond(stopped=stop.signal_number)
    except VitreousError as error:
        respond(error=str(error))
    except MemoryError:
        respond(error="the memory is full: run fewer at once, with --jobs 1")
    else:
        respond(done=True)


if __name__ == "__main__":
    main()
