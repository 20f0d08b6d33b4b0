"""Metrics against scikit-learn, scipy and figures worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as oracle

from vitreous.errors import DataError
from vitreous.evaluation import metrics


@pytest.fixture(scope="module")
def scored() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, probabilities and labels of a fairly good, over-confident model."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 7, 500)
    logits = generator.normal(size=(500, 7)) * 2
    logits[np.arange(500), labels] += 3
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits, exponentials / exponentials.sum(axis=1, keepdims=True), labels


def test_accuracy_nll_and_confusion_agree_with_scikit_learn(scored):
    logits, probabilities, labels = scored
    predictions = logits.argmax(axis=1)
    assert metrics.accuracy(logits, labels) == oracle.accuracy_score(labels, predictions)
    assert metrics.nll(logits, labels) == pytest.approx(oracle.log_loss(labels, probabilities), rel=1e-12)
    assert metrics.image_nll(probabilities, labels).mean() == pytest.approx(metrics.nll(logits, labels), rel=1e-12)
    assert (metrics.confusion_matrix(logits, labels) == oracle.confusion_matrix(labels, predictions)).all()


def test_nll_takes_logits_and_log_probabilities_alike_as_torch_does(scored):
    logits, _, labels = (torch.from_numpy(array) for array in scored)
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics.nll(logits, labels) == pytest.approx(expected, rel=1e-12)
    assert metrics.nll(logits.log_softmax(dim=1), labels) == pytest.approx(expected, rel=1e-12)


def test_a_confident_mistake_costs_much_but_not_infinity():
    assert metrics.image_nll(np.array([[1.0, 0.0]]), np.array([1]))[0] == pytest.approx(87.3, abs=0.1)


def test_confusion_matrix_keeps_classes_that_never_occur():
    matrix = metrics.confusion_matrix(np.eye(4)[[0, 0, 2]], np.array([0, 2, 2]))
    assert matrix.shape == (4, 4)
    assert matrix[2, 0] == matrix[2, 2] == matrix[0, 0] == 1


def test_calibration_error_by_hand():
    # bin (0.6, 0.667]: confidence 0.65, right; bin (0.867, 0.933]: confidence 0.9, one of two right
    probabilities = np.array([[0.65, 0.35], [0.9, 0.1], [0.9, 0.1]])
    labels = np.array([0, 0, 1])
    assert metrics.calibration_error(probabilities, labels) == pytest.approx((0.35 + 2 * 0.4) / 3)


def test_calibration_error_agrees_with_binned_statistic(scored):
    _, probabilities, labels = scored
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    gaps, *_ = stats.binned_statistic(confidence, confidence - right, "sum", bins=15, range=(0, 1))
    assert metrics.calibration_error(probabilities, labels) == pytest.approx(np.abs(gaps).sum() / len(labels))


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (10, 10), (9038, 10000), (9755, 10000), (1, 3)])
def test_wilson_interval_agrees_with_scipy(hits, count):
    expected = stats.binomtest(hits, count).proportion_ci(method="wilson")
    interval = metrics.wilson_interval(hits, count)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.integers(1, 10**6).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_interval_holds_its_share(pair):
    interval = metrics.wilson_interval(*pair)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_seed_interval_agrees_with_scipy():
    accuracies = [0.9912, 0.9923, 0.9905, 0.9931]
    low, high = stats.t.interval(0.95, df=3, loc=np.mean(accuracies), scale=stats.sem(accuracies))
    interval = metrics.seed_interval(accuracies)
    assert (interval.value, interval.low, interval.high) == pytest.approx((np.mean(accuracies), low, high))
    with pytest.raises(DataError, match="at least two"):
        metrics.seed_interval([0.99])


def _predictions(both: int, only_first: int, only_second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    counts = [both, only_first, only_second, neither]
    return np.repeat([True, True, False, False], counts), np.repeat([True, False, True, False], counts)


@settings(deadline=None)
@given(st.integers(0, 80), st.integers(0, 80))
def test_mcnemar_agrees_with_the_binomial_test(only_first, only_second):
    result = metrics.mcnemar(*_predictions(100, only_first, only_second, 5))
    assert (result.both_right, result.both_wrong) == (100, 5)
    assert (result.only_first, result.only_second) == (only_first, only_second)
    if only_first + only_second:
        expected = stats.binomtest(only_first, only_first + only_second, 0.5).pvalue
        assert result.p_value == pytest.approx(expected, rel=1e-9)
    else:
        assert result.p_value == 1


def test_mcnemar_in_words():
    better = metrics.mcnemar(*_predictions(9889, 22, 42, 47)).in_words("vit", "cnn")
    assert better == (
        "cnn is better: 99.31 % against 99.11 %; on 64 images only one of them is correct,"
        " cnn on 42 and vit on 22 (McNemar p = 0.017)."
    )
    equal = metrics.mcnemar(*_predictions(9900, 30, 36, 34)).in_words("vit", "cnn")
    assert equal.startswith("No significant difference: cnn and vit have 99.36 % against 99.30 %")
    assert "p = 0.54" in equal
    same = metrics.mcnemar(*_predictions(90, 0, 0, 10)).in_words("a", "b")
    assert same == "No difference: a and b are correct on the same images."


def test_t_tests_agree_with_scipy():
    generator = np.random.default_rng(1)
    first, second = generator.normal(0.99, 0.001, 5), generator.normal(0.988, 0.003, 5)
    assert metrics.welch_t_test(first, second[:4]) == pytest.approx(
        stats.ttest_ind(first, second[:4], equal_var=False).pvalue
    )
    assert metrics.paired_t_test(first - second) == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_t_tests_stay_finite_without_spread():
    assert metrics.welch_t_test([0.9, 0.9], [0.9, 0.9]) == 1
    assert metrics.welch_t_test([0.9, 0.9], [0.8, 0.8]) == 0
    assert metrics.paired_t_test([0.0, 0.0, 0.0]) == 1


def test_holm_by_hand():
    assert metrics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert metrics.holm([0.5]) == [0.5]


@pytest.mark.parametrize(
    ("scores", "labels", "fault"),
    [
        (np.zeros((3, 2)), np.zeros(4, dtype=int), "as many labels"),
        (np.full((3, 2), np.nan), np.zeros(3, dtype=int), "NaN"),
        (np.zeros((3, 2)), np.array([0, 1, 2]), "2 classes"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "as many labels"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_sentence(scores, labels, fault):
    with pytest.raises(DataError, match=fault):
        metrics.accuracy(scores, labels)


def test_welch_interval_agrees_with_scipy():
    first, second = [0.991, 0.987, 0.995], [0.971, 0.985, 0.978, 0.969]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    interval = metrics.welch_interval(first, second)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert interval.value == pytest.approx(np.mean(first) - np.mean(second))
    assert metrics.welch_interval([0.5, 0.5], [0.4, 0.4]) == metrics.Interval(*[pytest.approx(0.1)] * 3)
    with pytest.raises(DataError, match="at least two seeds"):
        metrics.welch_interval([0.9], [0.8, 0.7])
