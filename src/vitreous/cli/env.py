"""`vitreous env`: report the environment, by `vitreous.hardware`."""

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result


def env(as_json: JsonOption = False) -> None:
    """Print what a bug report needs: versions, CPU, threads, probes; nothing private."""
    from vitreous.hardware import describe_environment

    facts = describe_environment()
    print_result(*(f"{key:22} {value}" for key, value in facts.items()), value=facts, as_json=as_json)
