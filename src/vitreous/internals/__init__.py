"""`look`: what a model sees in an image, whether the picture of it is true, and what the model has learned."""

from vitreous.internals.examination import Examination, examine
from vitreous.internals.model_survey import Survey, survey
from vitreous.internals.report import Against, Look, write_look

__all__ = ["Against", "Examination", "Look", "Survey", "examine", "survey", "write_look"]
