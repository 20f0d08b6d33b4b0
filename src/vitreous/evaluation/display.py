"""How an evaluation and a prediction are shown: in one line, in a notebook, as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous.evaluation import metrics
from vitreous.evaluation.predictions import html_image
from vitreous.reports.colors import light
from vitreous.reports.confusion import draw_confusion
from vitreous.reports.formats import percent, percent_decimals, plural
from vitreous.reports.notebook import data_frame, html_card, html_figure, html_table

if TYPE_CHECKING:
    from vitreous.evaluation.prediction import Evaluation, Prediction

    _Evaluation, _Prediction = Evaluation, Prediction
else:
    _Evaluation = _Prediction = object

_MOST_CLASSES = 5


class EvaluationDisplay:
    """The base of `Evaluation`."""

    def __repr__(self: _Evaluation) -> str:
        accuracy = percent(self.accuracy, percent_decimals(self.count))
        return f"Evaluation({accuracy} of {plural(self.count, 'image')} correct, nll {self.nll:.4f})"

    def _repr_html_(self: _Evaluation) -> str:
        names = _names(self)
        counts = metrics.confusion_matrix(self.logits, self.labels).astype(float)
        interval = metrics.wilson_interval(self.correct, self.count)
        decimals = percent_decimals(self.count)
        facts = {
            "accuracy": f"{percent(self.accuracy, decimals)} ({self.correct:,} of {self.count:,})",
            "95 % interval": f"{100 * interval.low:.{decimals}f}–{percent(interval.high, decimals)}",
            "negative log likelihood": f"{self.nll:.4f}",
            "calibration error": percent(self.calibration_error, 1),
        }
        figure = draw_confusion(counts, names, name="confusion", title="Confusions", color=light("vit"))
        return html_card("Evaluation", facts, html_figure(figure))

    def to_pandas(self: _Evaluation) -> Any:
        """Return a data frame with a row per image: label, prediction, correct, and a column per class."""
        names, table = _names(self), self.probabilities
        predicted = self.logits.argmax(axis=1)
        return data_frame(
            {
                "label": [names[label] for label in self.labels],
                "prediction": [names[label] for label in predicted],
                "correct": predicted == self.labels,
                **{f"p({name})": table[:, index] for index, name in enumerate(names)},
            }
        )


def _names(evaluation: Evaluation) -> tuple[str, ...]:
    return evaluation.class_names or tuple(map(str, range(evaluation.logits.shape[1])))


class PredictionDisplay:
    """The base of `Prediction`."""

    def __repr__(self: _Prediction) -> str:
        return f"Prediction({self.label!r}, {percent(self.probability)})"

    def _repr_html_(self: _Prediction) -> str:
        best = sorted(self.probabilities.items(), key=lambda entry: -entry[1])[:_MOST_CLASSES]
        table = html_table(("class", "probability"), [(name, percent(share)) for name, share in best])
        notes = {"notes": "; ".join(self.notes)} if self.notes else {}
        return html_card(f"{self.label} ({percent(self.probability)})", notes, str(html_image(self)), table)

    def to_pandas(self: _Prediction) -> Any:
        """Return a data frame with a row per class."""
        return data_frame(
            {"class": list(self.probabilities), "probability": list(self.probabilities.values())}
        )
