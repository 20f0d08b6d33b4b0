"""Several predictions: a list with the labels and probabilities of all, a data frame, and a table for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from vitreous.reports.formats import join, percent, plural
from vitreous.reports.notebook import data_frame, html_card, html_table
from vitreous.reports.tiles import image_data_uri

if TYPE_CHECKING:
    from vitreous.evaluation.prediction import Prediction


class Predictions(list["Prediction"]):
    """The predictions of several images, in their order."""

    @property
    def labels(self) -> list[str]:
        return [one.label for one in self]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self[0].probabilities) if self else ()

    @property
    def probabilities(self) -> np.ndarray:
        """(n, classes), in the order of `class_names`."""
        rows = [list(one.probabilities.values()) for one in self]
        return np.array(rows) if rows else np.zeros((0, 0))

    def to_pandas(self) -> Any:
        """Return a data frame: label, probability, novelty (where the run measures it), and a column per class."""
        table = self.probabilities
        by_class = {f"p({name})": table[:, index] for index, name in enumerate(self.class_names)}
        probabilities = [one.probability for one in self]
        novelty = {} if any(one.novelty is None for one in self) else {"novelty": [one.novelty for one in self]}
        return data_frame({"label": self.labels, "probability": probabilities, **novelty, **by_class})

    def __repr__(self) -> str:
        shown = join((f"{one.label} ({percent(one.probability)})" for one in self), most=6)
        return f"Predictions({plural(len(self), 'image')}{': ' + shown if self else ''})"

    def _repr_html_(self) -> str:
        rows = ((html_image(one), one.label, percent(one.probability), notes_in_words(one)) for one in self)
        return html_card(plural(len(self), "image"), {}, html_table(("image", "label", "probability", "notes"), rows))


def html_image(prediction: Prediction) -> Markup:
    """Return what the model saw, as an image."""
    source = image_data_uri(prediction.pixels)
    style = "height:56px;image-rendering:pixelated"
    return Markup(
        f'<img alt="What the model saw, predicted {escape(prediction.label)}" style="{style}" src="{source}">'
    )


def notes_in_words(prediction: Prediction) -> str:
    return "; ".join([*prediction.notes, *(["unlike the training images"] if prediction.unlike else [])])
