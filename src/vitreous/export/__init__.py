"""A run as one checked ONNX file, and the descriptions of models that servers and the static page share."""
