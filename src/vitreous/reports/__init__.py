"""What all HTML reports share: stylesheet, page frame, colours, figures, and how numbers and lists are written.

`vitreous.css` holds the colours for the browser, `colors.py` the same ones for matplotlib (a test keeps them equal).
"""
