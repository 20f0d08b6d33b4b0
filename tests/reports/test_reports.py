"""The shared parts of reports: colours in CSS and Python, self-contained pages, figures, tiles, writing."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

from vitreous.errors import RunError
from vitreous.reports import colors, confusion, figures, pages, tiles
from vitreous.reports.colors import AMOUNT_STEPS, THEME, amount_colors


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: str, second: str) -> float:
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_stylesheet_and_python_name_the_same_colours():
    in_css = dict(re.findall(r"--([\w-]+): light-dark\((#\w+, #\w+)\)", pages.stylesheet()))
    assert in_css == {name: f"{light}, {dark}" for name, (light, dark) in THEME.items()}


def test_figure_style_uses_the_light_colours():
    style = (Path(pages.__file__).parent / "vitreous.mplstyle").read_text(encoding="utf-8")
    used = dict(re.findall(r"^(\S+): ([0-9a-f]{6})$", style, flags=re.MULTILINE))
    names = {"ink": "text.color", "ink-soft": "axes.labelcolor", "line": "axes.edgecolor", "paper": "figure.facecolor"}
    assert {name: f"#{used[key]}" for name, key in names.items()} == {name: colors.light(name) for name in names}
    assert {f"#{value}" for value in used.values()} == {colors.light(name) for name in names}


def test_light_values_are_unique_so_that_a_figure_can_be_restyled():
    assert len({light for light, _ in THEME.values()}) == len(THEME)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(theme):
    paper = THEME["paper"][theme]
    assert _contrast(THEME["ink"][theme], paper) > 12
    assert _contrast(THEME["ink-soft"][theme], paper) > 4.5
    for name in ("vit", "cnn", "model-3", "model-4", "model-5", "model-6"):
        assert _contrast(THEME[name][theme], paper) > 3.5
    by_light_value = {values[0]: values for values in THEME.values()}
    for level in range(1, AMOUNT_STEPS + 1):
        fill, ink = (by_light_value[color][theme] for color in amount_colors(level))
        assert _contrast(fill, ink) > 4, level


def test_first_vit_is_teal_and_first_cnn_ochre_whatever_the_order():
    styles = colors.model_styles({"b": "cnn", "x": "post-vit", "a": "vit", "y": "post-cnn"})
    assert (styles["a"].color_name, styles["b"].color_name) == ("vit", "cnn")
    assert len({s.color_name for s in styles.values()}) == len({s.marker for s in styles.values()}) == 4
    article = colors.model_styles({"post-vit": "post-vit", "post-cnn": "post-cnn"})
    assert [s.color_name for s in article.values()] == ["vit", "cnn"]
    six = colors.model_styles({str(i): "vit" for i in range(6)})
    assert len({s.path for s in six.values()}) == 6


def test_maps_have_the_right_ends():
    white = colors.diverging_map()(0.5)
    assert np.allclose(white[:3], 1, atol=0.02)
    below, above = colors.diverging_map()(0.0), colors.diverging_map()(1.0)
    assert below[2] > below[0]
    assert above[0] > above[2]
    assert colors.sequential_map().name == "cividis"


def test_figure_is_written_and_inlined_with_variables(tmp_path: Path):
    with figures.figure_style("lines", 320, 200) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], "o-", color=THEME["vit"][0])
        axes.set_title("cost in $ and #0b7f7c, <b>")  # neither a formula nor a colour
        drawn = figures.finish_figure(figure, "lines", alt='what it "shows"')
    drawn.write(tmp_path)
    assert (tmp_path / "lines.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "lines.svg").read_text(encoding="utf-8") == drawn.svg
    inline = drawn.inline()
    assert "var(--vit)" in inline
    assert "var(--ink)" in inline
    assert "cost in $ and #0b7f7c, &lt;b&gt;" in inline
    assert 'role="img" aria-label="what it &#34;shows&#34;"' in inline
    assert "http" not in inline
    assert all(name.startswith("lines-") for name in re.findall(r'\bid="([^"]+)"', inline))
    references = re.findall(r'(?:url\(|href=")#([^")]+)', inline)
    assert set(references) <= set(re.findall(r'\bid="([^"]+)"', inline))


def test_the_same_figure_gives_the_same_file():
    svgs = []
    for _ in range(2):
        with figures.figure_style("same", 160, 120) as figure:
            figure.add_subplot().plot([0, 1], [1, 0], "s-")
            svgs.append(figures.finish_figure(figure, "same").svg)
    assert svgs[0] == svgs[1]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 40), (2, 8, 8), (4, 8, 8), (3, 900, 700)])
def test_images_become_small_png_addresses(shape):
    uri = tiles.image_data_uri(np.zeros(shape, dtype=np.uint8))
    assert uri.startswith("data:image/png;base64,")
    assert len(uri) < 3000


def test_figures_depend_on_no_installed_font(tmp_path: Path):
    """Names of any length and script leave the tiles where they are (a warning would be an error here)."""
    pixels = np.zeros((3, 20, 40), dtype=np.uint8)
    lines = [("very long name " * 9 + "99.9 %", "#000000"), ("雪 $x_{", "#000000")]
    drawn = tiles.draw_tiles([(pixels, lines)] * 5, "tiles", columns=4)
    assert "DejaVu Sans" in drawn.svg
    assert "99.9 %" in drawn.svg
    assert drawn.png.startswith(b"\x89PNG")


def test_confusion_needs_only_counts():
    counts = np.array([[8.0, 2.0, 0.0], [1.0, 9.0, 0.0], [0.0, 0.0, 0.0]])
    names = ["cat", "dog", "none"]
    assert confusion.commonest_confusions(counts, names, 5) == [("cat", "dog", 2.0), ("dog", "cat", 1.0)]
    drawn = confusion.draw_confusion(counts, names, name="c", title="model", color="#000000")
    assert drawn.caption == "3 mistakes; most often cat taken for dog (2×) and dog taken for cat (1×)."
    assert drawn.alt.startswith("Confusion matrix of model, 3 classes.")
    none = confusion.draw_confusion(np.eye(3), names, name="c", title="model", color="#000000", seeds=2)
    assert none.caption == "No mistakes."


def test_report_is_written_whole_with_its_figures_and_files(tmp_path: Path):
    template = tmp_path / "t.html.jinja"
    main = "<p>{{ share | percent(1) }}</p>{{ text }}{{ html }}"
    template.write_text('{% extends "base.html.jinja" %}{% block main %}' + main + "{% endblock %}")
    with figures.figure_style("one", 160, 120) as figure:
        figure.add_subplot().plot([0, 1])
        drawn = figures.finish_figure(figure, "one")
    values = {"title": "<i>a & b</i>", "description": "99 % < 100 %", "figures": [drawn], "share": 0.5}
    values |= {"text": "<script>alert(1)</script>", "html": Markup("<b>kept</b>")}
    beside = {"r.json": {"é": 1.5}, "r.csv": "a,b\n", "r.bin": b"\xff\n"}
    page = pages.write_report(tmp_path / "new" / "r.html", template, **values, beside=beside)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<title>&lt;i&gt;a &amp; b&lt;/i&gt;</title>" in text
    assert "<h1>&lt;i&gt;a &amp; b&lt;/i&gt;</h1>" in text
    assert "<script>" not in text
    assert "<b>kept</b>" in text
    assert "--vit:" in text
    assert not re.search(r"https?://", text)
    assert "99\u00a0% &lt; 100\u00a0%" in text
    assert "<p>50.0 %</p>" in text
    assert {path.name for path in page.parent.rglob("*.*")} == {"r.html", *beside, "one.svg", "one.png"}
    assert (page.parent / "r.bin").read_bytes() == b"\xff\n"
    assert json.loads((page.parent / "r.json").read_text(encoding="utf-8")) == {"é": 1.5}
    with pytest.raises(RunError, match=r"cannot write the report into .*; name another folder"):
        pages.write_report(template / "r.html", template, **values)
