"""`look`: what a model sees in an image, whether the picture of it is true, and what the model has learned."""

from vitreous.inspection.examination import Examination, examine
from vitreous.inspection.model_survey import Survey, survey
from vitreous.inspection.report import Against, Look, write_look

__all__ = ["Against", "Examination", "Look", "Survey", "examine", "survey", "write_look"]
