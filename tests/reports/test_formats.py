"""Numbers and lists as text."""

import subprocess
import sys

import pytest

from vitreous.reports import formats
from vitreous.reports.formats import by, join, magnitude, mean_count, number, p_value, percent, plural, rate, seconds


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.99306, 2), "99.31 %"),
        (percent(0.9), "90 %"),
        (percent(0.98765), "98.8 %"),
        (percent(0.0123), "1.2 %"),
        (percent(0.99999), "> 99.9 %"),
        (percent(1.0), "100 %"),
        (percent(0.0001), "< 0.1 %"),
        (percent(0.0), "0.0 %"),
        (number(-1234.5), "−1.23e+03"),
        (number(0.0312, "+.1f"), "+0.0"),
        (number(-3.12, "+.1f"), "−3.1"),
        (number(float("nan")), "–"),
        (number(0.00001), "1.00e−05"),
        (number(float("inf")), "inf"),
        (mean_count(1234.0), "1,234"),
        (mean_count(2.5), "2.5"),
        (mean_count(12.5), "12"),
        (magnitude(1_199_882), "1.20 M"),
        (magnitude(999), "999"),
        (magnitude(999_900), "1.00 M"),
        (magnitude(17_600_000_000), "17.6 G"),
        (seconds(83.24), "83.2 s"),
        (seconds(1234.5), "1,234 s"),
        (rate(12_345), "12,300"),
        (rate(7.123), "7.12"),
        (p_value(0.0001), "p < 0.001"),
        (p_value(0.0123), "p = 0.012"),
        (p_value(0.27), "p = 0.27"),
        (p_value(1.0), "p = 1"),
        (join([]), ""),
        (join(["a"]), "a"),
        (join(["a", "b", 3]), "a, b and 3"),
        (join("abcdef", most=2), "a, b and 4 more"),
        (join("ab", word="or"), "a or b"),
        (by(28, 28), "28×28"),
        (plural(1, "image"), "1 image"),
        (plural(1200, "image"), "1,200 images"),
        (plural(0, "class", "classes"), "0 classes"),
        (formats.shorten("short", 5), "short"),
        (formats.shorten("class number 12", 9), "class …12"),
    ],
)
def test_formats(shown, expected):
    assert shown == expected


@pytest.mark.parametrize("count", [1, 100, 1999])
def test_few_images_give_one_decimal(count):
    assert formats.percent_decimals(count) == 1
    assert formats.percent_decimals(2000) == 2


@pytest.mark.parametrize("most", range(3, 12))
def test_shortened_names_have_the_length_asked_for(most):
    assert len(formats.shorten("a very long name", most)) == most


def test_formats_need_only_the_standard_library():
    """Lower layers use them in error messages."""
    code = "import sys, vitreous.reports.formats; print({'matplotlib', 'jinja2', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
