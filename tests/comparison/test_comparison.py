"""The comparison report on realistic results: two scikit-learn classifiers take the place of the models."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy import stats
from sklearn import metrics as oracle
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from vitreous.comparison import ModelResult, render_table, write_comparison
from vitreous.errors import DataError, RunError

TRAINED_ON = 400
NAMES = [str(digit) for digit in range(10)]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def images(digits) -> np.ndarray:
    return (digits[0][TRAINED_ON:].reshape(-1, 1, 8, 8) * 15.9).astype(np.uint8)


@pytest.fixture(scope="module")
def labels(digits) -> np.ndarray:
    return digits[1][TRAINED_ON:]


@pytest.fixture(scope="module")
def probabilities(digits) -> dict[str, np.ndarray]:
    pixels, truth = digits
    models = {"vit": LogisticRegression(C=0.001, max_iter=2000), "cnn": KNeighborsClassifier(3)}
    return {
        name: model.fit(pixels[:TRAINED_ON] / 16, truth[:TRAINED_ON])
        .predict_proba(pixels[TRAINED_ON:] / 16)
        .astype("f4")
        for name, model in models.items()
    }


def history(epochs: int, train_seconds: float, with_validation: bool = True) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in range(1, 20 * epochs + 1):
        done = step / (20 * epochs)
        line = {
            "step": step,
            "epoch": step / 20,
            "loss": 2.3 * np.exp(-4 * done) + 0.05,
            "accuracy": 1 - 0.5 ** (5 * done),
        }
        line |= {"lr": 1e-3, "images_per_second": 9000.0, "elapsed_seconds": train_seconds * done}
        if step % 4 == 0:
            lines.append({"event": "train", **line})
        if step % 20 == 0 and with_validation:
            lines.append({"event": "val", **line})
    return lines


@pytest.fixture(scope="module")
def make_result(probabilities, labels):
    def make(name: str, kind: str = "vit", seed: int = 0, **changes: Any) -> ModelResult:
        table = probabilities["cnn" if kind.endswith("cnn") else "vit"]
        result = ModelResult(
            name=name, seed=seed, kind=kind, parameters=1_199_882, flops=24_000_000, train_seconds=83.2,
            images_per_second=8100.0, history=history(5, 83.2), probabilities=table, labels=labels, run=f"runs/{name}",
        )  # fmt: skip
        return replace(result, **changes)

    return make


def jittered(table: np.ndarray, seed: int) -> np.ndarray:
    """Another seed of the same model: its log-probabilities with a little noise."""
    logs = np.log(table + 1e-3) + np.random.default_rng(seed).normal(0, 0.3, table.shape)
    return (np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)).astype(np.float32)


WORDS = {
    "title": "ViT against CNN",
    "data_name": "digits",
    "notes": ["Trained on 400 images."],
    "settings": {"epochs": 5},
}


@pytest.fixture(scope="module")
def two(make_result, images, tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    results = [make_result("vit"), make_result("cnn", "cnn", parameters=800_000, train_seconds=134.0)]
    return write_comparison(results, images, NAMES, out, **WORDS)


class Page(HTMLParser):
    """Balance of tags, and what the page refers to."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(comparison) -> Page:
    page = Page(comparison.report.read_text(encoding="utf-8"))
    for tag, attributes in page.tags:
        for name in ("src", "href", "data", "srcset", "poster", "action"):
            if name in attributes:
                assert re.match("data:|#", attributes[name] or ""), f"<{tag} {name}> leaves the file"
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    raw = comparison.report.read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)|https?://|\bnan\b|<script", raw, flags=re.IGNORECASE)
    return page


def test_numbers_agree_with_scikit_learn_and_scipy(two, probabilities, labels):
    found = json.loads(two.results.read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(two.as_dict()))
    right = {}
    for model in found["models"]:
        table = probabilities[model["name"]].astype(np.float64)
        right[model["name"]] = table.argmax(axis=1) == labels
        hits = int(right[model["name"]].sum())
        interval = stats.binomtest(hits, len(labels)).proportion_ci(method="wilson")
        floored = np.maximum(table, np.finfo(np.float32).tiny)
        assert model["accuracy"] == pytest.approx(oracle.accuracy_score(labels, table.argmax(axis=1)))
        assert model["accuracy_interval"] == pytest.approx([interval.low, interval.high])
        assert model["nll"] == pytest.approx(-np.log(floored[np.arange(len(labels)), labels]).mean())
        assert 0 < model["calibration_error"] < 1
        assert [seed["seed"] for seed in model["seeds"]] == [0]
    assert (found["models"][0]["parameters"], found["models"][0]["flops"]) == (1_199_882, 24_000_000)
    pair = found["paired"]["pairs"][0]
    only_vit, only_cnn = (right["vit"] & ~right["cnn"]).sum(), (right["cnn"] & ~right["vit"]).sum()
    assert pair["only_right"] == {"vit": only_vit, "cnn": only_cnn}
    assert pair["p_value"] == pytest.approx(stats.binomtest(int(only_vit), int(only_vit + only_cnn)).pvalue)
    assert found["data"] == {"name": "digits", "test_images": len(labels), "classes": NAMES}
    assert found["hardware"]["cores"] >= 1


def test_report_is_one_whole_file_with_the_verdict(two):
    page = read(two)
    assert two.verdict.startswith("cnn is better")
    assert two.verdict in page.text.replace("\u00a0", " ")
    for heading in ("The table", "While they trained", "What they confuse", "Their worst mistakes"):
        assert heading in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 16
    assert "Trained on 400 images." in page.text


def test_every_figure_is_there_as_svg_and_png_and_explained(two):
    names = {figure.stem for figure in two.figures}
    assert names == {
        "accuracy", "loss", "accuracy-over-time", "confusion-vit", "confusion-cnn", "mistakes-vit", "mistakes-cnn"
    }  # fmt: skip
    for figure in two.figures:
        assert figure.read_text(encoding="utf-8").lstrip().startswith("<?xml")
        with Image.open(figure.with_suffix(".png")) as picture:
            assert min(picture.size) > 200
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", two.report.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(captions) == 5
    for caption in captions:
        assert 1 <= len(re.findall(r"[.:;]?\.(?:\s|$|<)", caption)) <= 4  # a heading and at most three sentences


def test_best_cell_is_marked_only_where_the_difference_is_significant(two, make_result, images, tmp_path):
    assert two.best["accuracy"] == "cnn"
    assert two.best["parameters"] == "cnn"
    assert two.best["flops"] is None  # equal
    assert two.best["train_seconds"] == "vit"
    same = [make_result("a"), make_result("b", train_seconds=80.0)]
    comparison = write_comparison(same, images, NAMES, tmp_path, **WORDS)
    assert set(comparison.best.values()) == {None}
    assert comparison.verdict == "No difference: a and b are correct on the same images."
    assert 'class="best"' not in comparison.report.read_text(encoding="utf-8")


def test_seeds_give_t_intervals_and_two_p_values(make_result, probabilities, images, labels, tmp_path):
    results = [
        make_result(name, name, seed, probabilities=jittered(probabilities[name], seed), run=f"runs/{name}-{seed}")
        for name in ("vit", "cnn")
        for seed in range(4)
    ]
    comparison = write_comparison(results, images, NAMES, tmp_path, **WORDS)
    accuracies = {
        name: [oracle.accuracy_score(labels, r.probabilities.argmax(axis=1)) for r in results if r.name == name]
        for name in ("vit", "cnn")
    }
    low, high = stats.t.interval(0.95, 3, np.mean(accuracies["vit"]), stats.sem(accuracies["vit"]))
    assert (comparison.models[0].accuracy.low, comparison.models[0].accuracy.high) == pytest.approx((low, high))
    pair = comparison.pairs[0]
    assert pair.p_seeds == pytest.approx(stats.ttest_ind(*accuracies.values(), equal_var=False).pvalue)
    assert pair.p_value == max(pair.p_seeds, pair.p_images)
    assert "on average over 4 seeds" in comparison.verdict
    counts = pair.both_right + pair.only_first + pair.only_second + pair.both_wrong
    assert counts == pytest.approx(len(labels))
    read(comparison)


def test_several_models_are_corrected_and_ranked(make_result, probabilities, images, tmp_path):
    bad = np.full_like(probabilities["vit"], 0.1)
    results = [make_result("vit"), make_result("cnn", "cnn"), make_result("guess", "mlp", probabilities=bad)]
    results.append(make_result("vit", seed=1, probabilities=jittered(probabilities["vit"], 1), run="runs/vit-1"))
    comparison = write_comparison(results, images, NAMES, tmp_path, **WORDS)
    assert len(comparison.pairs) == 3
    holm = "corrected for several pairs (Holm)"  # two seeds of one model, one of the others: every pair has its test
    assert (
        f"<dt>Paired test</dt><dd>vit and cnn; vit and guess: paired t over images, {holm}<br>"
        f"cnn and guess: McNemar, exact, two-sided, {holm}</dd>"
    ) in comparison.report.read_text(encoding="utf-8")
    assert "threads" not in comparison.hardware  # of the trainings, which these results do not state
    assert comparison.as_dict()["paired"]["correction"] == "Holm"
    assert comparison.verdict.startswith("cnn is best: ")
    tied = [make_result("a", "cnn"), make_result("b", "cnn"), make_result("c", probabilities=bad)]
    verdict = write_comparison(tied, images, NAMES, tmp_path, **WORDS).verdict
    assert verdict.startswith("No single best: a (")
    assert verdict.endswith("is significantly worse than a.")


def test_six_models_without_validation_and_with_broken_history_lines(make_result, images, tmp_path):
    broken = [{"event": "train", "step": 1}, {"event": "val", "loss": float("nan"), "epoch": 1.0, "accuracy": None}]
    histories = [
        [],
        broken,
        history(3, 10.0, with_validation=False),
        history(9, 20.0),
        history(1, 5.0),
        history(2, 6.0),
    ]
    results = [
        make_result(f"m{index}", "cnn" if index % 2 else "vit", history=lines) for index, lines in enumerate(histories)
    ]
    comparison = write_comparison(results, images, NAMES, tmp_path, **WORDS)
    page = read(comparison)
    assert "Two by two" in page.text
    assert len(comparison.pairs) == 15
    alone = write_comparison(
        [make_result("a", history=[]), make_result("b", "cnn", history=[])], images, NAMES, tmp_path, **WORDS
    )
    assert "loss" not in {figure.stem for figure in alone.figures}
    read(alone)


def test_article_models_show_published_figures_and_both_evaluations(make_result, images, tmp_path):
    evaluations = {
        "batches of 32": {"accuracy": 0.8295, "nll": 0.55, "correct": 8295, "count": 10000},
        "one image at a time": {"accuracy": 0.4615, "nll": 1.91, "correct": 4615, "count": 10000},
    }
    published = {"accuracy": 0.9038, "nll": 0.3118, "source": "the article"}
    results = [
        make_result("post-vit", "post-vit", extra_evaluations=evaluations, published=published),
        make_result("post-cnn", "post-cnn", published={"accuracy": 0.9755, "nll": 0.0810, "source": "the article"}),
    ]
    comparison = write_comparison(results, images, NAMES, tmp_path, **WORDS)
    text = read(comparison).text.replace("\u00a0", " ")
    for words in ("90.38 %", "97.55 %", "82.95 %", "46.15 %", "0.3118", "mixes the images of a batch"):
        assert words in text
    model = comparison.as_dict()["models"][0]
    assert model["published"] == published
    assert model["seeds"][0]["extra_evaluations"] == evaluations


HOSTILE = [
    "<b>one</b>",
    "$x_{",
    "\"quoted\" & 'single'",
    "#0b7f7c",
    "very long name of a class indeed",
    "雪",
    "a\\b",
    "{{7*7}}",
    "9",
    "%s",
]


def test_hostile_names_are_only_names(make_result, images, tmp_path):
    results = [make_result("<script>alert(1)</script>"), make_result("../cnn {{ 7*7 }} $", "cnn")]
    comparison = write_comparison(results, images, HOSTILE, tmp_path, **{**WORDS, "title": "<u>t</u> & co"})
    page = read(comparison)
    assert {"script", "b", "u"} & {tag for tag, _ in page.tags} == set()
    assert "<b>one</b>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert all(figure.parent == tmp_path / "figures" for figure in comparison.figures)
    assert len({figure.name for figure in comparison.figures}) == len(comparison.figures)
    terminal = Console(file=io.StringIO(), record=True, width=200)
    terminal.print(render_table(comparison))
    assert "<script>alert(1)</script>" in terminal.export_text()


@pytest.mark.parametrize(
    ("classes", "shape"), [(2, (3, 20, 40)), (13, (1, 28, 28)), (30, (3, 32, 32)), (100, (3, 90, 64))]
)
def test_any_number_of_classes_and_any_images(classes, shape, tmp_path):
    generator = np.random.default_rng(0)
    truth = generator.integers(0, classes, 240)
    results = []
    for seed, (name, kind) in enumerate([("vit", "vit"), ("cnn", "cnn")]):
        logits = np.random.default_rng(seed).normal(size=(240, classes))
        logits[np.arange(240), truth] += 2
        table = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        results.append(
            ModelResult(
                name, 0, kind, 10, 10, 1.0, 1.0, history(2, 1.0), table.astype(np.float32), truth, f"runs/{name}"
            )
        )
    pictures = generator.integers(0, 256, (240, *shape), dtype=np.uint8)
    comparison = write_comparison(results, pictures, [f"class {index}" for index in range(classes)], tmp_path, **WORDS)
    page = read(comparison)
    assert ("Too many classes for a matrix" in page.text) == (classes > 30)


def test_perfect_models_have_no_mistakes_to_show(labels, images, make_result, tmp_path):
    perfect = np.eye(10, dtype=np.float32)[labels]
    comparison = write_comparison(
        [make_result("a", probabilities=perfect), make_result("b", probabilities=perfect)],
        images,
        NAMES,
        tmp_path,
        **WORDS,
    )
    assert "No mistakes on these images." in read(comparison).text
    assert comparison.models[0].accuracy.value == 1


def test_worst_mistakes_are_the_most_confident_ones(two, probabilities, labels):
    html = two.report.read_text(encoding="utf-8")
    shown = [int(index) for index in re.findall(r'alt="Image (\d+), labelled', html)][:8]
    table = probabilities["vit"]
    wrong = np.flatnonzero(table.argmax(axis=1) != labels)
    confidences = table[shown].max(axis=1)
    assert set(shown) <= set(wrong)
    assert all(first >= second for first, second in pairwise(confidences))
    assert confidences[-1] >= np.sort(table[wrong].max(axis=1))[-8] - 1e-6


def test_table_for_the_terminal(two):
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(render_table(two))
    text = console.export_text()
    for words in ("vit", "cnn", "1.20 M", "134 s", "24.0 M", "Calibration error", "●"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_results_that_cannot_be_compared_are_refused_in_a_sentence(make_result, images, labels, tmp_path):
    def refused(
        results: list[ModelResult], fault: str, pictures: np.ndarray = images, names: list[str] = NAMES
    ) -> None:
        with pytest.raises(DataError, match=fault) as caught:
            write_comparison(results, pictures, names, tmp_path, **WORDS)
        assert "\n" not in str(caught.value)

    vit, cnn = make_result("vit"), make_result("cnn", "cnn")
    refused([vit], "2 to 6 models, not 1")
    refused([make_result(str(index)) for index in range(7)], "not 7")
    refused([vit, replace(vit, run="runs/other")], "both called 'vit' with seed 0")
    refused([vit, replace(cnn, labels=labels[::-1])], "other test images")
    refused([vit, replace(cnn, probabilities=cnn.probabilities[:, :9])], "one column per class")
    refused([vit, replace(cnn, probabilities=cnn.probabilities * 2)], "not probabilities")
    refused([vit, replace(cnn, probabilities=np.full_like(cnn.probabilities, np.nan))], "not probabilities")
    refused([vit, replace(cnn, name="vit", seed=1)], "not seeds of one model")
    refused([vit, cnn], "test images", pictures=images[:5])


def test_a_folder_that_cannot_be_written_is_a_sentence(make_result, images, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RunError, match="cannot write the report"):
        write_comparison([make_result("a"), make_result("b", "cnn")], images, NAMES, blocked, **WORDS)
