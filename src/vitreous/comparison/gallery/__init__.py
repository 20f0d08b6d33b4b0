"""What a trained model finds hardest, with the files' names: where a wrong label is found and mended.

findings.py   a run and a split → every image's loss, the classes, the confusions, doubles of training images
report.py     `gallery.json`, `by-loss.csv`, the figures and one self-contained HTML page
"""

from vitreous.comparison.gallery.findings import ClassAccuracy, Gallery, HardImage, gallery
from vitreous.comparison.gallery.report import write_gallery

__all__ = ["ClassAccuracy", "Gallery", "HardImage", "gallery", "write_gallery"]
