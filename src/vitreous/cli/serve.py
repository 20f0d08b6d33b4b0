"""`vitreous serve`: serve the page and the API, by `vitreous.serving`."""

from pathlib import Path
from typing import Annotated

from typer import Option


def serve(
    runs: Annotated[list[Path] | None, Option("--run", help="Repeatable; default: the bundled models.")] = None,
    host: Annotated[str, Option(help="Other than loopback: needs --token-file or --no-auth.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any free one.")] = 8000,
    token_file: Annotated[Path | None, Option(help="A file with the bearer token clients must send.")] = None,
    no_auth: Annotated[bool, Option("--no-auth", help="Serve another host without a token.")] = False,
    workers: Annotated[
        int | None, Option(help="Processes; default: 1, or 2 for other machines.", min=1, max=256)
    ] = None,
) -> None:
    """Draw a digit or open an image and see the model think: the page and an HTTP API."""
    from vitreous.runs import Run
    from vitreous.serving.server import serve_runs

    opened = [Run.open(run) for run in runs or []]
    serve_runs(opened, host=host, port=port, token_file=token_file, no_auth=no_auth, workers=workers)
