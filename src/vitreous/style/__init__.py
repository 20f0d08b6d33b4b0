"""The visual language that reports, figures and the page share: one stylesheet, one set of colours, one page frame.

`vitreous.css` holds the colours for the browser, `colors.py` the same ones for matplotlib (a test keeps them equal).
"""

from vitreous.style.colors import ModelStyle, diverging_map, model_styles, sequential_map
from vitreous.style.figures import DrawnFigure, figure_style, finish_figure
from vitreous.style.pages import html_page, image_data_uri, page_environment, stylesheet

__all__ = [
    "DrawnFigure",
    "ModelStyle",
    "diverging_map",
    "figure_style",
    "finish_figure",
    "html_page",
    "image_data_uri",
    "model_styles",
    "page_environment",
    "sequential_map",
    "stylesheet",
]
