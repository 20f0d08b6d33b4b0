"""How an evaluation and a prediction are shown: in one line, in a notebook, as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous.evaluation import metrics
from vitreous.evaluation.predictions import html_image, notes_in_words
from vitreous.reports.colors import light
from vitreous.reports.confusion import draw_confusion
from vitreous.reports.formats import percent, percent_decimals, plural
from vitreous.reports.notebook import data_frame, html_card, html_figure, html_table

if TYPE_CHECKING:
    from vitreous.evaluation.prediction import Evaluation, Prediction

_MOST_CLASSES = 5


def evaluation_line(evaluation: Evaluation) -> str:
    accuracy = percent(evaluation.accuracy, percent_decimals(evaluation.count))
    return f"Evaluation({accuracy} of {plural(evaluation.count, 'image')} correct, nll {evaluation.nll:.4f})"


def evaluation_html(evaluation: Evaluation) -> str:
    names = _names(evaluation)
    counts = metrics.confusion_matrix(evaluation.logits, evaluation.labels).astype(float)
    interval = metrics.wilson_interval(evaluation.correct, evaluation.count)
    decimals = percent_decimals(evaluation.count)
    facts = {
        "accuracy": f"{percent(evaluation.accuracy, decimals)} ({evaluation.correct:,} of {evaluation.count:,})",
        "95 % interval": f"{100 * interval.low:.{decimals}f}–{percent(interval.high, decimals)}",
        "negative log likelihood": f"{evaluation.nll:.4f}",
        "calibration error": percent(evaluation.calibration_error, 1),
    }
    figure = draw_confusion(counts, names, name="confusion", title="Confusions", color=light("vit"))
    return html_card("Evaluation", facts, html_figure(figure))


def evaluation_frame(evaluation: Evaluation) -> Any:
    """Return a data frame with a row per image: label, prediction, correct, and a column per class."""
    names, table = _names(evaluation), evaluation.probabilities
    predicted = evaluation.logits.argmax(axis=1)
    return data_frame(
        {
            "label": [names[label] for label in evaluation.labels],
            "prediction": [names[label] for label in predicted],
            "correct": predicted == evaluation.labels,
            **{f"p({name})": table[:, index] for index, name in enumerate(names)},
        }
    )


def _names(evaluation: Evaluation) -> tuple[str, ...]:
    return evaluation.class_names or tuple(map(str, range(evaluation.logits.shape[1])))


def prediction_line(prediction: Prediction) -> str:
    unlike = ", unlike the training images" if prediction.unlike else ""
    return f"Prediction({prediction.label!r}, {percent(prediction.probability)}{unlike})"


def prediction_html(prediction: Prediction) -> str:
    best = sorted(prediction.probabilities.items(), key=lambda entry: -entry[1])[:_MOST_CLASSES]
    table = html_table(("class", "probability"), [(name, percent(share)) for name, share in best])
    found = notes_in_words(prediction)
    title = f"{prediction.label} ({percent(prediction.probability)})"
    return html_card(title, {"notes": found} if found else {}, str(html_image(prediction)), table)


def prediction_frame(prediction: Prediction) -> Any:
    """Return a data frame with a row per class."""
    return data_frame({"class": list(prediction.probabilities), "probability": list(prediction.probabilities.values())})
