"""A run as one checked ONNX file, and the descriptions of models that servers and the static page share."""

from vitreous.export.catalog import model_entries, sample_digits
from vitreous.export.onnx_files import Exported, export_onnx, onnx_for_serving

__all__ = ["Exported", "export_onnx", "model_entries", "onnx_for_serving", "sample_digits"]
