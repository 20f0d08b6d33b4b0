"""Make the font of the site's equations: STIX, which comes with matplotlib, with the constants that MathML needs.

A browser takes the places of indices and bars from a font's MATH table. Not every computer has such a font, and STIX as
matplotlib has it lacks the table; so it is added, and glyphs that no equation uses are left out.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from fontTools import subset
from fontTools.otlLib.builder import buildMathTable
from fontTools.ttLib import TTFont

#: In thousandths of the font's size: TeX's proportions (Knuth, The TeXbook, appendix G).
CONSTANTS = {
    "ScriptPercentScaleDown": 70, "ScriptScriptPercentScaleDown": 55, "AxisHeight": 250, "AccentBaseHeight": 450,
    "MathLeading": 150, "MinConnectorOverlap": 20,
    "SubscriptShiftDown": 190, "SubscriptTopMax": 350, "SubscriptBaselineDropMin": 60, "SubSuperscriptGapMin": 150,
    "SuperscriptShiftUp": 380, "SuperscriptShiftUpCramped": 300, "SuperscriptBottomMin": 110,
    "SuperscriptBaselineDropMax": 300, "SuperscriptBottomMaxWithSubscript": 350, "SpaceAfterScript": 50,
    "FractionRuleThickness": 50, "FractionNumeratorShiftUp": 400, "FractionNumeratorDisplayStyleShiftUp": 650,
    "FractionDenominatorShiftDown": 350, "FractionDenominatorDisplayStyleShiftDown": 650,
    "FractionNumeratorGapMin": 50, "FractionNumDisplayStyleGapMin": 120,
    "FractionDenominatorGapMin": 50, "FractionDenomDisplayStyleGapMin": 120,
    "RadicalVerticalGap": 70, "RadicalDisplayStyleVerticalGap": 120, "RadicalRuleThickness": 50,
    "RadicalExtraAscender": 50, "RadicalKernBeforeDegree": 60, "RadicalKernAfterDegree": -250,
    "DisplayOperatorMinHeight": 1000, "DelimitedSubFormulaMinHeight": 1300,
}  # fmt: skip
#: Basic Latin, Greek, letter-like symbols, arrows, operators, mathematical alphabets, and their own few others
LETTERS = [
    *range(0x20, 0x7F), 0xB1, 0xB7, 0xD7, *range(0x391, 0x3CA), 0x2026, 0x2032, 0x2061, *range(0x2102, 0x2140),
    0x2192, *range(0x2200, 0x2300), 0x22A4, 0x22EF, *range(0x1D400, 0x1D7FF),
]  # fmt: skip


def write(target: Path) -> None:
    options = subset.Options(layout_features=[], name_IDs=[], notdef_outline=True, flavor="woff", drop_tables=["FFTM"])
    font: TTFont = subset.load_font(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf", options)
    chosen = subset.Subsetter(options)
    chosen.populate(unicodes=LETTERS)
    chosen.subset(font)
    scale = font["head"].unitsPerEm / 1000
    constants = {name: value if "Percent" in name else round(value * scale) for name, value in CONSTANTS.items()}
    buildMathTable(font, constants=constants)
    subset.save_font(font, target, options)
