"""Draw the figures and write the tables of docs/how-a-vit-works.md, from the bundled ViT (`make docs` runs this).

Everything goes to docs/reference/vit/, which git ignores: inline SVG that follows light and dark, and Markdown tables.
"""

from __future__ import annotations

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

import math_font
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

import vitreous
from vitreous.conformance import ITEMS, conformance
from vitreous.models.summary import count_flops, count_parameters_of, shapes
from vitreous.reports.colors import THEME, amount_colors, diverging_map, light, sequential_map
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure

FOLDER = Path(__file__).parent / "reference" / "vit"
DIGIT = "2"
LAYER = 3  # whose heads are shown


class Seen:
    """The bundled ViT's forward pass on one digit of its own test images."""

    def __init__(self) -> None:
        stored = json.loads(resources.files("vitreous").joinpath("bundled/samples.json").read_text(encoding="utf-8"))
        sample = next(each for each in stored["samples"] if each["label"] == DIGIT)
        values = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8).reshape(stored["shape"]).copy()
        run = vitreous.Run.open("bundled:vit")
        self.model, self.taps = run.model, dict[str, Tensor]()
        self.config = self.model.config
        self.pixels = values[0]
        with torch.no_grad():
            self.logits = self.model(run.preprocessing.to_input(torch.from_numpy(values)[None]), self.taps)[0]

    def tap(self, name: str) -> Tensor:
        return self.taps[name][0]

    def readouts(self) -> list[Tensor]:
        """Return the probabilities that the head reads from the class token before the first and after each layer."""
        streams = [self.taps["tokens"], *(self.taps[f"blocks.{i}.output"] for i in range(self.config.depth))]
        with torch.no_grad():
            return [self.model.classify(stream).softmax(dim=1)[0] for stream in streams]


def tokens_figure(seen: Seen) -> DrawnFigure:
    """Eq. 1: the image, its patches, the tokens."""
    (rows, columns), (ph, pw) = seen.config.grid, seen.config.patch_size
    z0 = seen.tap("tokens").numpy()
    with figure_style("tokens", 720, 270) as figure:
        axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.35])
        image, patches, tokens = axes
        image.imshow(seen.pixels, cmap="gray")
        for k in range(1, rows):
            image.axhline(k * ph - 0.5, color="#7f7f7f", linewidth=0.6)
        for k in range(1, columns):
            image.axvline(k * pw - 0.5, color="#7f7f7f", linewidth=0.6)
        _bare(image, f"image x: {_times(*seen.pixels.shape)}")
        spread = np.full((rows * (ph + 1) - 1, columns * (pw + 1) - 1), np.nan)
        for r in range(rows):
            for c in range(columns):
                patch = seen.pixels[r * ph : (r + 1) * ph, c * pw : (c + 1) * pw]
                spread[r * (ph + 1) : r * (ph + 1) + ph, c * (pw + 1) : c * (pw + 1) + pw] = patch
        patches.imshow(spread, cmap="gray")
        _bare(patches, f"{rows * columns} patches of {_times(ph, pw)}")
        _signed(tokens, z0)
        tokens.set_title(f"tokens z₀: {_times(*z0.shape)}")
        tokens.set_xlabel(f"{z0.shape[1]} numbers of each token")
        tokens.set_yticks([0, len(z0) // 2, len(z0) - 1], ["class", "patches", ""])
        alt = (
            f"Left: a handwritten {DIGIT} of {_times(*seen.pixels.shape)} pixels under a grid. Middle: the same image "
            f"taken apart into {rows * columns} patches. Right: a matrix of {len(z0)} rows, one per token, the class "
            f"token first, and {z0.shape[1]} columns; blue is negative, orange positive."
        )
        caption = (
            "From pixels to tokens. Blue is negative, orange positive. Tokens of blank "
            "patches differ by their positions alone."
        )
        return finish_figure(figure, "tokens", alt=alt, caption=caption)


def attention_figure(seen: Seen) -> DrawnFigure:
    """Eq. 2: where the class token looks, head by head."""
    weights = seen.tap(f"blocks.{LAYER - 1}.attention")  # (H, N, N)
    heads = len(weights)
    with figure_style("attention", 720, 200) as figure:
        axes = figure.subplots(1, heads + 1, width_ratios=[1] * (heads + 1))
        for head, axis in enumerate(axes[:-1]):
            shown = weights[head, 0, 1:].view(seen.config.grid).numpy()
            axis.imshow(shown, cmap=sequential_map())
            _bare(axis, f"head {head + 1}")
            axis.set_xlabel(f"at most {shown.max():.0%}".replace("%", " %"))
        axes[-1].imshow(weights.mean(dim=0).sqrt().numpy(), cmap=sequential_map())
        _bare(axes[-1], "all tokens")
        axes[-1].set_xlabel("to")
        axes[-1].set_ylabel("from")
        alt = (
            f"Layer {LAYER} of the bundled ViT. {heads} maps of {_times(*seen.config.grid)} patches, one per head: "
            "how much the class token attends to each patch; the heads look at different parts of the stroke. Beside "
            f"them the whole matrix, {weights.shape[-1]} tokens by {weights.shape[-1]} tokens, mean of the heads."
        )
        caption = (
            f"Layer {LAYER}: where the class token looks, one map per head, and the matrix "
            "A of all tokens, mean of the heads (its square root, so that small weights are visible)."
        )
        return finish_figure(figure, "attention", alt=alt, caption=caption)


def stream_figure(seen: Seen) -> DrawnFigure:
    """Eq. 2 and 3: what each layer adds to the class token, and how large the sum becomes."""
    stream, attended, widened = [], [], []
    x = seen.tap("tokens")[0]
    for i in range(seen.config.depth):
        middle, output = seen.tap(f"blocks.{i}.middle")[0], seen.tap(f"blocks.{i}.output")[0]
        attended.append((middle - x).norm().item())
        widened.append((output - middle).norm().item())
        x = output
        stream.append(x.norm().item())
    layers = np.arange(1, seen.config.depth + 1)
    with figure_style("stream", 560, 230) as figure:
        axis = figure.subplots()
        axis.bar(layers - 0.2, attended, 0.36, color=light("vit"), label="attention adds (Eq. 2)")
        axis.bar(layers + 0.2, widened, 0.36, color=light("cnn"), label="MLP adds (Eq. 3)")
        axis.plot(layers, stream, color=light("ink"), marker="o", label="the class token after the layer")
        axis.set_xlabel("layer")
        axis.set_ylabel("length of the vector")
        axis.set_xticks(layers)
        axis.grid(axis="x", visible=False)
        axis.legend(loc="upper left")
        alt = (
            f"Bars for {len(layers)} layers: the length of what attention and of what the MLP add to the class token. "
            f"The line, the token itself, grows from {stream[0]:.1f} to {stream[-1]:.1f}."
        )
        caption = "What attention and MLP add to the class token, layer by layer, and the length of their sum."
        return finish_figure(figure, "stream", alt=alt, caption=caption)


def readout_figure(seen: Seen) -> DrawnFigure:
    """Eq. 4: the classifier, applied after every layer."""
    table = torch.stack(seen.readouts()).numpy()
    names = ["tokens", *(f"layer {i}" for i in range(1, len(table)))]
    with figure_style("readout", 560, 250) as figure:
        axis = figure.subplots()
        for row, values in enumerate(table):
            for digit, value in enumerate(values):
                fill, ink = amount_colors(min(8, 1 + int(8 * value)))
                axis.add_patch(_cell(digit, row, fill))
                if value >= 0.1:
                    axis.text(digit, row, f"{100 * value:.0f}", color=ink, ha="center", va="center")
        axis.set_xlim(-0.5, table.shape[1] - 0.5)
        axis.set_ylim(len(table) - 0.5, -0.5)
        axis.set_xticks(range(table.shape[1]))
        axis.set_yticks(range(len(table)), names)
        axis.set_xlabel("digit; percent where at least 10")
        axis.grid(visible=False)
        first = next(row for row in range(len(table)) if (table[row:].argmax(axis=1) == int(DIGIT)).all())
        alt = (
            f"A table of the probabilities of ten digits, read from the class token before the first and after each of "
            f"{len(table) - 1} layers. From {names[first]} on the most probable digit is {DIGIT}."
        )
        caption = "The classifier applied before the first layer and after each of them."
        return finish_figure(figure, "readout", alt=alt, caption=caption)


def _bare(axis: Axes, title: str) -> None:
    axis.set_title(title)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _signed(axis: Axes, values: Any) -> None:
    largest = float(np.quantile(np.abs(values), 0.995))
    axis.imshow(values, cmap=diverging_map(), vmin=-largest, vmax=largest, aspect="auto")
    axis.grid(visible=False)
    axis.set_xticks([])


def _cell(x: float, y: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, facecolor=color, linewidth=0)


def _times(*sizes: int) -> str:
    return "×".join(map(str, sizes))


def shapes_table() -> str:
    """Return the steps of the article's geometry and of ViT-B/16 side by side, from `vitreous shapes`."""
    models = [vitreous.preset(name).model for name in ("vit", "vit-b16")]
    lines = [
        "| step | paper | shape | `vit`: 28×28, 7×7 patches | `vit-b16`: 224×224, 16×16 patches |",
        "|---|---|---|---|---|",
    ]
    for ours, theirs in zip(*map(shapes, models), strict=True):
        name = f"each layer: {ours.name}" if ours.times > 1 else ours.name
        sizes = (" × ".join(map(str, step.shape)) for step in (ours, theirs))
        lines.append(f"| {name} | {ours.equation} | {ours.shape_symbols} | {' | '.join(sizes)} |")
    totals = (f"{count_parameters_of(each):,}" for each in models)
    flops = (f"{count_flops(each) / 1e6:,.1f} M" for each in models)
    return "\n".join(
        [*lines, f"| parameters | | | {' | '.join(totals)} |", f"| FLOPs of an image | | | {' | '.join(flops)} |"]
    )


def paper_page() -> str:
    """Return `vitreous paper` for two presets as a page, with the equations set."""
    tex = {item.id: item.tex for item in ITEMS}
    introduction = (
        "`vitreous paper PRESET` (or `--run RUN`) measures a model item by item. For `vit`, the article's geometry, "
        "and for ViT-B/16 it reports this; nothing of it is written by hand."
    )
    parts = ["# Is this the paper's ViT?", introduction]
    for name in ("vit", "vit-b16"):
        rows = conformance(vitreous.preset(name))
        table = ["| item | the paper | this model | verdict |", "|---|---|---|---|"]
        for row in rows:
            paper = f"${tex[row.id]}$" if tex[row.id] else _plain(row.paper)
            paper += f" (not confirmed: {_plain(row.unconfirmed)})" if row.unconfirmed else ""
            verdict = f"**{row.verdict}**" + (f": {_plain(row.note)}" if row.note else "")
            table.append(f"| {_plain(row.item)} | {paper} | {_plain(row.here)} | {verdict} |")
        parts.append("\n".join([f"## `{name}`", "", *table]))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_").replace("[", "\\[").replace("*", "\\*").replace("<", "&lt;")


def colors() -> str:
    """Return the figures' CSS variables: dark by the theme's attribute, or by the reader's setting."""

    def rule(selector: str, place: int) -> str:
        values = " ".join(f"--{name}: {both[place]};" for name, both in THEME.items())
        return f"{selector} {{ {values} }}"

    dark = rule('body:not([data-theme="light"])', 1)
    return "\n".join(
        [rule("body", 0), f"@media (prefers-color-scheme: dark) {{ {dark} }}", rule('body[data-theme="dark"]', 1)]
    )


def main() -> None:
    (FOLDER / "static").mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    seen = Seen()
    for drawn in (tokens_figure(seen), attention_figure(seen), stream_figure(seen), readout_figure(seen)):
        page = f"<figure>{drawn.inline()}<figcaption>{drawn.caption}</figcaption></figure>\n"
        (FOLDER / f"{drawn.name}.html").write_text(page, encoding="utf-8")
    (FOLDER / "shapes.md").write_text(shapes_table() + "\n", encoding="utf-8")
    (FOLDER / "static" / "colors.css").write_text(colors() + "\n", encoding="utf-8")
    math_font.write(FOLDER / "static" / "math.woff")
    (FOLDER.parent / "paper.md").write_text(paper_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
