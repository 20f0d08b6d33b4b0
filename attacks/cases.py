"""What an attack is made of: a case, what the attacked code did, and how that is judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from vitreous.errors import VitreousError

MEBIBYTE = 2**20
LONGEST_SENTENCE = 8000  # characters; it may repeat a long path


class Verdict(StrEnum):
    REFUSED = "refused in one sentence"
    HANDLED = "handled"  # accepted, and the result is correct
    IDENTICAL = "identical"  # as if there had been no damage
    CRASH = "traceback or crash"
    WRONG = "silently wrong"
    HANG = "hang"
    MEMORY = "memory above the bound"

    @property
    def passed(self) -> bool:
        return self in (Verdict.REFUSED, Verdict.HANDLED, Verdict.IDENTICAL)


@dataclass(frozen=True)
class Case:
    """One hostile input, determined by these fields: `prepare` takes every random choice from `random()`."""

    family: str
    kind: str  # a row of the table
    name: str  # unique within the kind
    seed: int = 0
    megabytes: float = 256.0  # the most memory it may take, above that of an idle process

    @property
    def title(self) -> str:
        return f"{self.family}: {self.kind}: {self.name}"

    def random(self) -> random.Random:
        return random.Random(f"{self.title} {self.seed}")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """What the attacked code did with a case."""

    verdict: Verdict
    detail: str = ""
    megabytes: float | None = None  # where another process than the case's own is measured


@dataclass(frozen=True)
class Result:
    case: Case
    verdict: Verdict
    detail: str
    megabytes: float  # peak, above that of an idle process
    seconds: float


class Family(Protocol):
    """A module of attacks."""

    TITLE: str
    SECONDS: float  # after which a case counts as a hang

    def warm_up(self) -> None: ...  # once per child process, before the first case
    def cases(self, seed: int) -> Iterator[Case]: ...
    def prepare(self, case: Case, folder: Path) -> None: ...  # write the input
    def attack(self, case: Case, folder: Path) -> Finding: ...  # run the code on it; the folder is the current one


def judge_refusal(error: VitreousError) -> Finding:
    """A refusal is one sentence; indented lines below it may list details."""
    return judge_message(str(error))


def judge_message(text: str) -> Finding:
    first, *rest = text.strip().splitlines() or [""]
    if not first or len(first) > LONGEST_SENTENCE or "Traceback (most recent call last)" in text:
        return Finding(Verdict.CRASH, f"no sentence: {text[:300]!r}")
    if any(line and not line.startswith((" ", "To ")) for line in rest):
        return Finding(Verdict.CRASH, f"more than one sentence: {text[:300]!r}")
    return Finding(Verdict.REFUSED, first)


def refused_or(function: Callable[[], Finding]) -> Finding:
    """Judge a call: a VitreousError is a refusal; any other exception becomes a traceback in `child.py`."""
    try:
        return function()
    except VitreousError as error:
        return judge_refusal(error)


def numbered(family: str, kind: str, count: int, seed: int, **more: Any) -> Iterator[Case]:
    """Return `count` random cases of one kind."""
    for number in range(count):
        yield Case(family, kind, str(number), seed, **more)


def listed(family: str, kind: str, names: Iterable[str], seed: int, **more: Any) -> Iterator[Case]:
    """Return one case per name of one kind."""
    for name in names:
        yield Case(family, kind, name, seed, **more)


def take_turns(*sources: Iterator[Case]) -> Iterator[Case]:
    """Interleave cases, so that every kind gets its share of a short time."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            case = next(source, None)
            if case is None:
                waiting.remove(source)
            else:
                yield case


def flip_bits(data: bytes, random_numbers: random.Random, most: int = 4) -> bytes:
    damaged = bytearray(data)
    for _ in range(random_numbers.randint(1, most)):
        position = random_numbers.randrange(8 * len(damaged))
        damaged[position // 8] ^= 1 << position % 8
    return bytes(damaged)
