"""`look`: which parts of an image a prediction depends on, whether the maps are faithful, what the model learned."""

from vitreous.inspection.examination import Examination, examine
from vitreous.inspection.model_survey import Survey, survey
from vitreous.inspection.report import Look, write_look
from vitreous.inspection.subject import ModelInput

__all__ = ["Examination", "Look", "ModelInput", "Survey", "examine", "survey", "write_look"]
