"""The HTTP server: predictions by ONNX Runtime in micro-batches, maps for the page, and the page itself."""
