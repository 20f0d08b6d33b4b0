"""Shared by all HTML reports: stylesheets, page frame, colours, figures, image tiles, number and text formats.

`vitreous.css` holds the colours for the browser, `colors.py` the same ones for matplotlib (a test keeps them equal).
"""
