"""A Vision Transformer you can see through."""

__version__ = "0.1.0"
