"""Diagnose any ViT: run the model, measure, and report what is wrong and how to fix it.

    diagnosis = diagnose(model)              # or with your own images, labels, test_images
    render(diagnosis)

Everything is measured on the running model; source code and class names are never read. A check that cannot observe
what it needs is reported as not measured. `diagnose_curves` examines the curves of a training run instead.
"""

from vitreous.doctor.checks import CHECKS
from vitreous.doctor.curves import diagnose_curves
from vitreous.doctor.diagnosis import diagnose
from vitreous.doctor.findings import Diagnosis, Finding, NotMeasured
from vitreous.doctor.pages import explain
from vitreous.doctor.render import plain_text, render
from vitreous.doctor.sarif import as_sarif, write_sarif
from vitreous.doctor.target import diagnose_target, target_model

__all__ = [
    "CHECKS", "Diagnosis", "Finding", "NotMeasured", "as_sarif", "diagnose", "diagnose_curves", "diagnose_target",
    "explain", "plain_text", "render", "target_model", "write_sarif",
]  # fmt: skip
