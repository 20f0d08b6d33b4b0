"""A run as ONNX: one file that any ONNX Runtime reads, or a static folder with the page and its models."""

from vitreous.exporting.catalog import model_entries, sample_digits
from vitreous.exporting.onnx_files import Exported, export_onnx, onnx_for_serving
from vitreous.exporting.static_page import ExportedPage, export_page

__all__ = [
    "Exported", "ExportedPage", "export_onnx", "export_page", "model_entries", "onnx_for_serving", "sample_digits",
]  # fmt: skip
