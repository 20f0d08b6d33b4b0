"""`vitreous env`: report the environment, by `vitreous.hardware`."""

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result


def env(as_json: JsonOption = False) -> None:
    """Print what a bug report needs: versions, CPU, threads, probes; nothing private."""
    from rich.table import Table
    from rich.text import Text

    from vitreous.hardware import describe_environment

    facts = describe_environment()
    table = Table.grid(padding=(0, 1))
    for key, value in facts.items():
        table.add_row(Text(key), Text(str(value), overflow="fold"))
    print_result(table, value=facts, as_json=as_json)
