"""A run as ONNX: one file that any ONNX Runtime reads, or a static folder with the page and its models."""

from vitreous.export.catalog import model_entries, sample_digits
from vitreous.export.onnx_files import Exported, export_onnx, onnx_for_serving

__all__ = [
    "Exported", "export_onnx", "model_entries", "onnx_for_serving", "sample_digits",
]  # fmt: skip
