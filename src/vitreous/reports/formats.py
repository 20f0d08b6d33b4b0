"""Numbers and lists as text, for reports and messages alike; standard library only, so that every layer can use it."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percent(share: float, decimals: int | None = None) -> str:
    """Return "99.31 %"; without `decimals`, three significant digits and never a rounded-up certainty."""
    if decimals is not None:
        return f"{100 * share:.{decimals}f} %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.3g} %" if share >= 0.1 else f"{100 * share:.1f} %"


def percent_decimals(count: int) -> int:
    """Return how many decimals of a percentage `count` images can distinguish."""
    return 2 if count >= 2000 else 1


def number(value: float, form: str | None = None) -> str:
    """Return a number with a true minus sign, by default with three digits; a dash for NaN."""
    if math.isnan(value):
        return "–"
    if form is None:
        form = ".2e" if value and math.isfinite(value) and not 1e-3 <= abs(value) < 1e5 else ".3g"
    return format(value, form).replace("-", "−")


def mean_count(value: float) -> str:
    """Return "1,234" for a whole count, "2.5" for a mean of several."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def magnitude(value: float) -> str:
    """Return three digits with a unit prefix: "1.20 M", "12.3 k", "83.2"."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * factor:
            return _three_digits(value / factor) + unit
    return _three_digits(value)


def seconds(value: float) -> str:
    """Return "1,234 s", or three digits below 100 s."""
    return f"{value:,.0f} s" if value >= 99.95 else f"{_three_digits(value)} s"


def rate(value: float) -> str:
    """Return "12,300" for 12,345: three digits, written out."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def p_value(p: float) -> str:
    """Return "p = 0.03", or "p < 0.001"."""
    if p < 0.001:
        return "p < 0.001"
    if p > 0.995:
        return "p = 1"
    return f"p = {p:.2f}" if p >= 0.095 else f"p = {p:.2g}"


def join(names: Iterable[object], *, most: int | None = None, word: str = "and") -> str:
    """Return "a, b and c"; with `most`, "a, b, c and 4 more"."""
    listed = [str(name) for name in names]
    if most is not None and len(listed) > most:
        listed = [*listed[:most], f"{len(listed) - most} more"]
    return f" {word} ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


def by(*sizes: int | str, separator: str = "×") -> str:
    """Return "28×28"."""
    return separator.join(map(str, sizes))


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return "1 image", "1,200 images"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def shorten(name: str, most: int) -> str:
    """Return at most `most` characters of a name, without its middle: names often differ at their end."""
    tail = (most - 1) // 3
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"
