/**
 * Maps over the image: the large one, whose patches can be pointed at and removed, and the small ones to choose from.
 *
 * @import { ViTModel } from "./engine.js"
 * @typedef {"plain" | "amount" | "signed" | "positions"} MapKind
 *
 * @typedef {object} Overlay  the colours over the image
 * @property {MapKind} kind
 * @property {ArrayLike<number> | null} values  one per patch
 * @property {number} high  the value at the scale's end
 *
 * @typedef {object} MapContent
 * @property {Uint8Array} pixels  (channels, height, width)
 * @property {Overlay} overlay
 * @property {ReadonlySet<number>} removed
 * @property {ReadonlySet<number>} skipped  blank patches that are no tokens
 * @property {number | null} query  the patch whose attention is shown
 * @property {number | null} key  the patch whose weight the arithmetic explains
 * @property {boolean} apart  draw wide gaps between the patches
 * @property {(patch: number) => string} describe  a patch's value, for screen readers
 */

import { amountColor, COLOR_OPACITY, css, INK, INK_OPACITY, signedColor } from "./colors.js";
import { canvasOf, contextOf, make, resize, setAttributes } from "./dom.js";
import { toChannels } from "./fitting.js";
import { numPatches, pixelEdges, range, rowAndColumn, sum } from "./vit-maths.js";
import { text } from "./texts.js";
import { placeName } from "./words.js";

export class PatchMap {
  #canvas = make("canvas", { "aria-hidden": "true" });
  #cells = make("div", { class: "cells", role: "group", "aria-label": text("map.patches") });
  /** @type {HTMLButtonElement[]} */
  #buttons = [];
  /** @type {ViTModel | null} */
  #model = null;
  /** @type {MapContent | null} */
  #content = null;

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
    new ResizeObserver(() => this.#draw()).observe(place);
  }

  /** @param {ViTModel} model */
  fit(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    this.#cells.style.gridTemplate = pixelEdges(model)
      .map((edges) => edges.slice(1).map((edge, i) => `${edge - edges[i]}fr`).join(" "))
      .join(" / ");
    this.#buttons = range(numPatches(model)).map((patch) =>
      make("button", { type: "button", class: "cell", "data-patch": patch, tabindex: patch === 0 ? 0 : -1 }),
    );
    this.#cells.replaceChildren(...this.#buttons);
    moveWithArrows(this.#cells, { across: 1, down: model.grid[1] });
  }

  /** @param {MapContent} content */
  paint(content) {
    this.#content = content;
    this.#draw();
    const model = this.#model;
    if (model === null) return;
    this.#buttons.forEach((button, patch) => {
      const removed = content.removed.has(patch);
      const skipped = content.skipped.has(patch);
      const absent = removed ? text("removed") : skipped ? text("map.skipped") : "";
      const name = text("map.patch", placeName(patch, model.grid));
      const label = [name, absent, content.describe(patch)].filter(Boolean).join(", ");
      setAttributes(button, { "aria-label": label, "aria-pressed": String(removed) });
      button.classList.toggle("skipped", skipped);
      button.classList.toggle("query", patch === content.query);
      button.classList.toggle("key", patch === content.key);
    });
  }

  #draw() {
    const [model, content] = [this.#model, this.#content];
    if (model === null || content === null) return;
    const gap = content.apart ? 10 : 2;
    this.#cells.style.gap = `${gap}px`;
    const [width, height] = [this.place.clientWidth, this.place.clientHeight];
    const density = devicePixelRatio;
    resize(this.#canvas, Math.max(1, Math.round(width * density)), Math.max(1, Math.round(height * density)));
    const context = contextOf(this.#canvas);
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    const [rows, columns] = model.grid;
    const [down, across] = pixelEdges(model);
    // the size of one pixel of the picture on the screen, without the gaps
    const pixelHeight = (height - gap * (rows - 1)) / model.image_size[0];
    const pixelWidth = (width - gap * (columns - 1)) / model.image_size[1];
    const image = content.overlay.kind === "positions" ? null : picture(content.pixels, model, content.overlay);
    for (let patch = 0; patch < rows * columns; patch++) {
      const [row, column] = rowAndColumn(patch, model.grid);
      const [x, y, wide, tall] = [across[column], down[row], across[column + 1] - across[column], down[row + 1] - down[row]];
      /** @type {[number, number, number, number]} */
      const target = [x * pixelWidth + column * gap, y * pixelHeight + row * gap, wide * pixelWidth, tall * pixelHeight];
      if (image !== null) context.drawImage(image, x, y, wide, tall, ...target);
      else if (model.position_similarity !== null) paintGrid(context, model.position_similarity[patch], model.grid, target);
    }
  }
}

/**
 * Return the image with an overlay, at the model's image size. Only a plain image is in colour: under a map, colours
 * would be mistaken for the map's.
 * @param {Uint8Array} pixels @param {ViTModel} model @param {Overlay} overlay @param {HTMLCanvasElement} [canvas]
 */
export function picture(pixels, model, overlay, canvas = make("canvas")) {
  const [height, width] = model.image_size;
  resize(canvas, width, height);
  const context = contextOf(canvas);
  const { kind, values, high } = overlay;
  const base = basesOf(pixels, model);
  context.globalAlpha = 1;
  if (values === null || (kind !== "amount" && kind !== "signed")) {
    context.drawImage(base.plain, 0, 0);
    return canvas;
  }
  const isSigned = kind === "signed";
  const colors = Array.from(values, (value) => css((isSigned ? signedColor : amountColor)(value / (high || 1))));
  if (isSigned) paintCells(context, model, colors);
  context.drawImage(isSigned ? base.ink : base.gray, 0, 0); // ink is transparent where it is not dark
  context.globalAlpha = COLOR_OPACITY;
  if (!isSigned) paintCells(context, model, colors);
  return canvas;
}

/** @param {CanvasRenderingContext2D} context @param {ViTModel} model @param {string[]} colors  one per patch */
function paintCells(context, model, colors) {
  const [down, across] = pixelEdges(model);
  colors.forEach((color, patch) => {
    const [row, column] = rowAndColumn(patch, model.grid);
    context.fillStyle = color;
    context.fillRect(across[column], down[row], across[column + 1] - across[column], down[row + 1] - down[row]);
  });
}

/** @type {WeakMap<Uint8Array, Record<"plain" | "gray" | "ink", HTMLCanvasElement>>} */
const bases = new WeakMap();

/**
 * Return an image as it is, in gray, and in ink on nothing: bright strokes on a flat dark background, or else whatever is
 * dark (as inspection/pictures.py).
 * @param {Uint8Array} pixels @param {ViTModel} model
 */
function basesOf(pixels, { image_size: [height, width], channels }) {
  const known = bases.get(pixels);
  if (known !== undefined) return known;
  const image = { values: pixels, channels, height, width };
  const gray = toChannels(image, 1);
  const ink = make("canvas", { width, height });
  const inked = new ImageData(width, height);
  const isOnDark = isDarkAround(gray);
  gray.values.forEach((level, i) => {
    inked.data.set([...INK, INK_OPACITY * (isOnDark ? level : 255 - level)], 4 * i);
  });
  contextOf(ink).putImageData(inked, 0, 0);
  const made = { plain: canvasOf(image), gray: canvasOf(gray), ink };
  bases.set(pixels, made);
  return made;
}

/** Whether an image has a flat dark border. @param {import("./fitting.js").Image} gray */
function isDarkAround({ values, height, width }) {
  const border = values.filter((_, i) => {
    const [y, x] = [Math.floor(i / width), i % width];
    return y === 0 || x === 0 || y === height - 1 || x === width - 1;
  });
  const mean = sum(border) / border.length;
  const spread = Math.sqrt(sum(Array.from(border, (value) => (value - mean) ** 2)) / border.length);
  return border.sort()[border.length >> 1] < 127.5 && spread < 0.15 * 255;
}

/**
 * Paint one position's similarity to all others as a small grid.
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} similarity
 * @param {readonly [number, number]} grid
 * @param {[number, number, number, number]} target  left, top, width, height
 */
function paintGrid(context, similarity, [rows, columns], [left, top, width, height]) {
  similarity.forEach((value, patch) => {
    const [row, column] = rowAndColumn(patch, [rows, columns]);
    context.fillStyle = css(signedColor(value));
    // half a pixel more, so that no seam shows between cells
    const [wide, tall] = [width / columns, height / rows];
    context.fillRect(left + column * wide, top + row * tall, wide + 0.5, tall + 0.5);
  });
}

/** Paint the grids of all positions as one small picture. @param {ViTModel} model @param {HTMLCanvasElement} canvas */
export function positionsPicture(model, canvas) {
  const [rows, columns] = model.grid;
  resize(canvas, columns * (columns + 1) - 1, rows * (rows + 1) - 1);
  model.position_similarity?.forEach((similarity, patch) => {
    const [row, column] = rowAndColumn(patch, model.grid);
    paintGrid(contextOf(canvas), similarity, model.grid, [column * (columns + 1), row * (rows + 1), columns, rows]);
  });
}

/** Show the colour scale with its ends labelled. @param {HTMLElement} place @param {MapKind} kind @param {string[]} ends */
export function showScale(place, kind, [low, high]) {
  place.classList.toggle("away", kind === "plain");
  place.dataset.kind = kind === "amount" ? "amount" : "signed";
  place.replaceChildren(make("span", {}, low), make("span", { class: "bar" }), make("span", {}, high));
}

/**
 * Let the arrow keys move through a grid of buttons, of which Tab reaches one.
 * @param {HTMLElement} container
 * @param {{ across: number, down: number, among?: string }} steps  from one button to the next in each direction
 */
export function moveWithArrows(container, { across, down, among = "button" }) {
  container.onkeydown = (event) => {
    const buttons = /** @type {HTMLElement[]} */ ([...container.querySelectorAll(among)]);
    const at = buttons.findIndex((button) => button === document.activeElement);
    const steps = { ArrowLeft: -across, ArrowRight: across, ArrowUp: -down, ArrowDown: down, Home: -at, End: buttons.length - 1 - at };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const line = Math.max(across, down);
    const leavesLine = Math.abs(step) === 1 && Math.floor(at / line) !== Math.floor((at + step) / line);
    if (at < 0 || step === undefined || leavesLine || !(at + step in buttons)) return;
    event.preventDefault();
    buttons.forEach((button, i) => setAttributes(button, { tabindex: i === at + step ? 0 : -1 }));
    buttons[at + step].focus();
    buttons[at + step].dispatchEvent(new CustomEvent("arrived"));
  };
}
