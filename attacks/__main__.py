"""`python -m attacks`: run the attacks, print and write the table, exit with 1 if one of them succeeded."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from attacks import families, table
from attacks.cases import Case, Result
from attacks.runner import ROOT, replay, run_family

FAILURES = ROOT / "attacks" / "failures"
MINUTES = 12.0  # plus the start of the last cases: at most 15 in all


def main() -> None:
    options = _parser().parse_args()
    if options.replay is not None:
        sys.exit(_replay(options.replay))
    names = options.only or families.NAMES
    start = time.monotonic()
    results = run_all(names, options.seed, options.minutes, options.cases, options.failures)
    minutes = (time.monotonic() - start) / 60
    command = " ".join(["python -m attacks", *sys.argv[1:]])
    titles = {families.load(name).TITLE: results[name] for name in names}
    text = table.markdown(titles, command, minutes)
    print(text)
    if options.table is not None or not options.only:
        table.write(options.table or table.DOCS, text)
    failed = [result for family in results.values() for result in family if not result.verdict.passed]
    for result in failed:
        print(f"{result.verdict}: {result.case.title} (seed {result.case.seed}): {result.detail}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} attacks succeeded; run one again: python -m attacks --replay {options.failures}/….json",
              file=sys.stderr)  # fmt: skip
    sys.exit(1 if failed else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--only", action="append", choices=families.NAMES, metavar="NAME",
                        help=f"one family, repeatable: {', '.join(families.NAMES)}")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all of them (default: {MINUTES:g})")
    parser.add_argument("--cases", type=int, help="at most this many per family")
    parser.add_argument("--table", type=Path, help="the file with the table (default: docs/reliability.md, if all ran)")
    parser.add_argument("--failures", type=Path, default=FAILURES, help="where the inputs of failed cases are kept")
    parser.add_argument("--replay", type=Path, metavar="FILE.json", help="run one kept case again")
    return parser


def run_all(
    names: Sequence[str], seed: int, minutes: float, cases: int | None, failures: Path
) -> dict[str, list[Result]]:
    """Run the families in two lanes; a family gets its share of the time that its lane has left."""
    results: dict[str, list[Result]] = {name: [] for name in names}
    errors: list[BaseException] = []
    end = time.monotonic() + 60 * minutes

    def run_lane(shares: dict[str, float]) -> None:
        try:
            while shares:
                name = next(iter(shares))
                left = max(0.0, end - time.monotonic())
                seconds = left * shares[name] / sum(shares.values())
                del shares[name]
                results[name] = _run_one(name, seed, seconds, cases, failures)
        except BaseException as error:
            errors.append(error)

    lanes = [{name: share for name, share in lane.items() if name in names} for lane in families.LANES]
    threads = [threading.Thread(target=run_lane, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _run_one(name: str, seed: int, seconds: float, most: int | None, failures: Path) -> list[Result]:
    family = families.load(name)
    all_cases = list(family.cases(seed))
    start = time.monotonic()

    def report(result: Result) -> None:
        if not result.verdict.passed:
            print(f"{result.case.title}: {result.verdict}", file=sys.stderr, flush=True)

    results = run_family(family, families.module_of(name), spread(all_cases, most), seconds, failures, report)
    print(
        f"{name}: {len(results)} of {len(all_cases)} cases in {time.monotonic() - start:.0f} s,"
        f" {sum(not result.verdict.passed for result in results)} failed",
        file=sys.stderr,
        flush=True,
    )
    return results


def spread(cases: Sequence[Case], most: int | None) -> list[Case]:
    """Return at most so many cases, evenly from the first to the last."""
    if most is None or most >= len(cases):
        return list(cases)
    return [cases[number * len(cases) // most] for number in range(most)]


def _replay(description: Path) -> int:
    name = json.loads(description.read_text(encoding="utf-8"))["case"]["family"]
    result = replay(description, families.load(name), families.module_of(name))
    print(f"{result.case.title}: {result.verdict}: {result.detail} ({result.megabytes:.0f} MB, {result.seconds:.1f} s)")
    return 0 if result.verdict.passed else 1


if __name__ == "__main__":
    main()
