/**
 * Maps over the digit: the large one with its patches to point at and to remove, and the small ones to choose from.
 *
 * @typedef {import("./engine.js").ViTModel} ViTModel
 * @typedef {"plain" | "amount" | "signed" | "positions"} MapKind
 *
 * @typedef {object} Layer  what to draw
 * @property {MapKind} kind
 * @property {ArrayLike<number> | null} values  one a patch
 * @property {number} high  the value at the scale's end
 */

import { amountColor, css, signedColor, tint } from "./colors.js";
import { make, pen, setAttributes } from "./dom.js";
import { patchesOf, patchOfPixels, pixelEdges } from "./vit-maths.js";
import { placeOf } from "./words.js";

export class PatchMap {
  #canvas = make("canvas", { "aria-hidden": "true" });
  #cells = make("div", { class: "cells", role: "group", "aria-label": "Patches" });
  /** @type {HTMLButtonElement[]} */
  #buttons = [];
  /** @type {ViTModel | null} */
  #model = null;
  /** @type {(() => void) | null} */
  #repaint = null;

  /**
   * @param {HTMLElement} place
   * @param {{ onPoint: (patch: number | null) => void, onPick: (patch: number, byTouch: boolean) => void }} handlers
   */
  constructor(place, { onPoint, onPick }) {
    this.place = place;
    place.append(this.#canvas, this.#cells);
    const patchAt = (/** @type {EventTarget | null} */ target) =>
      target instanceof HTMLElement && target.dataset.patch ? Number(target.dataset.patch) : null;
    this.#cells.addEventListener("pointerover", (event) => {
      const patch = patchAt(event.target);
      if (event.pointerType !== "touch" && patch !== null) onPoint(patch);
    });
    this.#cells.addEventListener("pointerleave", () => onPoint(null));
    this.#cells.addEventListener("focusin", (event) => {
      if (event.target instanceof HTMLElement && event.target.matches(":focus-visible")) onPoint(patchAt(event.target));
    });
    this.#cells.addEventListener("focusout", () => onPoint(null));
    this.#cells.addEventListener("click", (event) => {
      const patch = patchAt(event.target);
      const byTouch = event instanceof PointerEvent && event.pointerType === "touch";
      if (patch !== null) onPick(patch, byTouch);
    });
    new ResizeObserver(() => this.#repaint?.()).observe(place);
  }

  /** @param {ViTModel} model */
  shape(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const columns = model.grid[1];
    this.place.style.aspectRatio = `${model.image_size[1]} / ${model.image_size[0]}`;
    this.#cells.style.gridTemplate = pixelEdges(model)
      .map((edges) => edges.slice(1).map((edge, i) => `${edge - edges[i]}fr`).join(" "))
      .join(" / ");
    this.#buttons = Array.from({ length: patchesOf(model) }, (_, patch) =>
      make("button", { type: "button", class: "cell", "data-patch": patch, tabindex: patch === 0 ? 0 : -1 }),
    );
    this.#cells.replaceChildren(...this.#buttons);
    moveWithArrows(this.#cells, columns);
  }

  /**
   * @param {object} what
   * @param {Uint8Array} what.pixels
   * @param {Layer} what.layer
   * @param {ReadonlySet<number>} what.removed
   * @param {number | null} what.query  the patch that looks
   * @param {number | null} what.key  the patch whose weight is worked out
   * @param {boolean} what.apart  the patches stand apart, as cut
   * @param {(patch: number) => string} what.sayOf  what a screen reader is told of a patch's value
   */
  paint(what) {
    this.#repaint = () => this.#draw(what);
    this.#draw(what);
    const model = this.#model;
    if (model === null) return;
    this.#buttons.forEach((button, patch) => {
      const removed = what.removed.has(patch);
      const said = `Patch ${placeOf(patch, model.grid)}${removed ? ", removed" : ""}${what.sayOf(patch)}`;
      if (button.getAttribute("aria-label") !== said) button.setAttribute("aria-label", said);
      setAttributes(button, { "aria-pressed": String(removed) });
      button.classList.toggle("query", patch === what.query);
      button.classList.toggle("key", patch === what.key);
    });
  }

  /** @param {Parameters<PatchMap["paint"]>[0]} what */
  #draw({ pixels, layer, apart }) {
    const model = this.#model;
    if (model === null) return;
    const gap = apart ? 10 : 2;
    this.#cells.style.gap = `${gap}px`;
    const [width, height] = [this.place.clientWidth, this.place.clientHeight];
    const density = devicePixelRatio;
    const canvas = this.#canvas;
    const [wide, tall] = [Math.max(1, Math.round(width * density)), Math.max(1, Math.round(height * density))];
    if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
    const context = pen(canvas);
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    const [rows, columns] = model.grid;
    const [down, across] = pixelEdges(model);
    // as large on the screen as a pixel of the picture, less what the gaps take
    const [tallOf, wideOf] = [(height - gap * (rows - 1)) / model.image_size[0], (width - gap * (columns - 1)) / model.image_size[1]];
    const image = layer.kind === "positions" ? null : picture(pixels, model, layer);
    for (let patch = 0; patch < rows * columns; patch++) {
      const [row, column] = [Math.floor(patch / columns), patch % columns];
      const [fromX, fromY, fromWide, fromTall] = [across[column], down[row], across[column + 1] - across[column], down[row + 1] - down[row]];
      const [left, top] = [fromX * wideOf + column * gap, fromY * tallOf + row * gap];
      if (image !== null) {
        context.drawImage(image, fromX, fromY, fromWide, fromTall, left, top, fromWide * wideOf, fromTall * tallOf);
      } else if (model.position_similarity !== null) {
        paintGrid(context, model.position_similarity[patch], model.grid, left, top, fromWide * wideOf, fromTall * tallOf);
      }
    }
  }
}

/**
 * The digit with the layer's colours over it, at the model's size.
 * @param {Uint8Array} pixels
 * @param {ViTModel} model
 * @param {Layer} layer
 * @param {HTMLCanvasElement} [canvas]
 */
export function picture(pixels, model, layer, canvas = make("canvas")) {
  const [height, width] = model.image_size;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const { values } = layer;
  const kind = values === null || layer.kind === "positions" ? "plain" : layer.kind;
  const colorOf = kind === "signed" ? signedColor : amountColor;
  const tints = Array.from({ length: patchesOf(model) }, (_, patch) =>
    tint(kind, values === null ? null : colorOf(values[patch] / (layer.high || 1))),
  );
  const image = new ImageData(width, height);
  patchOfPixels(model).forEach((patch, i) => {
    const { black, white } = tints[patch];
    const share = pixels[i] / 255;
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * i + channel] = black[channel] + (white[channel] - black[channel]) * share;
    }
    image.data[4 * i + 3] = 255;
  });
  pen(canvas).putImageData(image, 0, 0);
  return canvas;
}

/**
 * One position's likeness to all others, as a small grid of its own.
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} likeness
 * @param {readonly [number, number]} grid
 * @param {number} left
 * @param {number} top
 * @param {number} width
 * @param {number} height
 */
function paintGrid(context, likeness, [rows, columns], left, top, width, height) {
  likeness.forEach((value, patch) => {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    context.fillStyle = css(signedColor(value));
    // half a pixel more, so that no seam shows between cells
    context.fillRect(left + (column * width) / columns, top + (row * height) / rows, width / columns + 0.5, height / rows + 0.5);
  });
}

/**
 * All positions' grids as one small picture.
 * @param {ViTModel} model
 * @param {HTMLCanvasElement} canvas
 */
export function positionsPicture(model, canvas) {
  const [rows, columns] = model.grid;
  [canvas.width, canvas.height] = [columns * (columns + 1) - 1, rows * (rows + 1) - 1];
  const context = pen(canvas);
  model.position_similarity?.forEach((likeness, patch) => {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    paintGrid(context, likeness, model.grid, column * (columns + 1), row * (rows + 1), columns, rows);
  });
}

/**
 * The colours' scale with its ends named.
 * @param {HTMLElement} place
 * @param {MapKind} kind
 * @param {string} low
 * @param {string} high
 */
export function showScale(place, kind, low, high) {
  place.classList.toggle("away", kind === "plain");
  place.dataset.kind = kind === "amount" ? "amount" : "signed";
  place.replaceChildren(make("span", {}, low), make("span", { class: "bar" }), make("span", {}, high));
}

/**
 * Arrow keys go through a grid of buttons, of which one at a time is reached by Tab.
 * @param {HTMLElement} container
 * @param {number} columns
 */
export function moveWithArrows(container, columns) {
  container.onkeydown = (event) => {
    const buttons = [...container.querySelectorAll("button")];
    const at = buttons.findIndex((button) => button === document.activeElement);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: buttons.length - 1 - at };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const leavesRow = Math.abs(step) === 1 && Math.floor(at / columns) !== Math.floor((at + step) / columns);
    if (at < 0 || step === undefined || leavesRow || !(at + step in buttons)) return;
    event.preventDefault();
    buttons.forEach((button, i) => setAttributes(button, { tabindex: i === at + step ? 0 : -1 }));
    buttons[at + step].focus();
  };
}
