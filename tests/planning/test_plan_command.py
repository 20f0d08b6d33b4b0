"""`vitreous plan`: text of 80 columns, JSON, and one sentence for a mistake."""

from __future__ import annotations

import json
import re

import pytest

from vitreous.cli import app
from vitreous.errors import ConfigError
from vitreous.planning.text import duration, si


def run(capsys, *arguments: str) -> str:
    app(["plan", *arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_json_has_every_figure(capsys):
    flags = ("--gpus", "4", "--epochs", "3", "--batch-size", "64", "--precision", "bfloat16", "--shard", "--json")
    found = json.loads(run(capsys, "vit", "--images", "1000", *flags))
    assert found["work"]["steps"] == 45
    assert found["work"]["batch_size"] == 64
    assert found["cluster"] == {"gpus": 4, "tflops": 312.0, "utilisation": 0.4, "memory_gb": 80.0, "shard": True}
    assert found["memory"]["cast_weights"] > 0
    assert found["memory_recomputed"]["total"] < found["memory"]["total"]
    parts = {key: value for key, value in found["memory"].items() if key not in ("total", "largest_micro_batch")}
    assert found["memory"]["total"] == pytest.approx(sum(parts.values()))


def test_auto_precision_is_bfloat16_on_gpus(capsys):
    flags = ("vit", "--images", "1000", "--gpus", "4", "--json")
    assert run(capsys, *flags, "--precision", "auto") == run(capsys, *flags, "--precision", "bfloat16")


def test_peak_follows_the_precision_unless_it_is_given(capsys):
    assert "19.5 TFLOP/s, float32" in run(capsys, "vit", "--images", "1000")
    assert "990 TFLOP/s, float32" in run(capsys, "vit", "--images", "1000", "--gpu-tflops", "990")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("vitt", "--images", "10"), "no preset 'vitt'"),
        (("post-vit", "--images", "10"), "'post-vit' is for small digits alone"),
        (("vit-b16", "--images", "10", "--gpus", "7"), "cannot be shared equally by 7 GPUs"),
        (("vit", "--images", "10", "--utilisation", "40"), "--utilisation 40 is the share"),
        (("vit", "--images", "10", "--gpu-tflops", "0"), "--gpu-tflops 0 must be above 0"),
        (("vit", "--images", "10", "--gpu-tflops", "nan"), "--gpu-tflops nan must be above 0"),
        (("vit", "--images", "10", "--gpu-memory=-1"), "--gpu-memory -1 must be above 0"),
        (("vit", "--images", "10", "--precision", "int8"), "train.precision"),
        (("vit", "--images", "10", "--epochs", "0"), "train.epochs"),
        (("vit", "--images", "10", "--set", "model.patch_size=5"), "does not divide the images"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, arguments, sentence):
    with pytest.raises(ConfigError) as raised:
        run(capsys, *arguments)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("arguments", [("vit",), ("vit-h14", "--gpus", "1024", "--batch-size", "4096"), ("cnn",)])
def test_lines_have_at_most_80_columns(capsys, arguments):
    text = run(capsys, *arguments, "--images", "999999999999", "--precision", "bfloat16")
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"nan|inf\b", text)
    assert ("network" in text) == ("--gpus" in arguments)


def test_figures_have_three_digits_and_a_unit():
    assert [si(value, "B") for value in (0, 1, 999, 999.6, 1234, 35.14e9, 4.2621e21)] == [
        "0 B", "1 B", "999 B", "1 kB", "1.23 kB", "35.1 GB", "4.26 ZB",
    ]  # fmt: skip
    assert [duration(value) for value in (0.0123, 1.5, 90, 121, 7300, 3e5, 1e8)] == [
        "0.012 seconds", "1.5 seconds", "90 seconds", "2.02 minutes", "2.03 hours", "3.47 days", "3.17 years",
    ]  # fmt: skip
