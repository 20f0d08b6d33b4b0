/**
 * The figures of the training: the curves, digits with what the class token attends to, and the positions.
 *
 * @import { Glance } from "./trainer.js"
 * @import { Report } from "./worker.js"
 */

import { amountColor, COLOR_OPACITY, css, signedColor } from "../colors.js";
import { canvasOf, contextOf, make, resize, setAttributes, setText } from "../dom.js";
import { argmax, range } from "../vit-maths.js";
import { percent } from "../words.js";
import { CLASSES, SIDE } from "./trainer.js";
import { fill, TEXTS } from "./texts.js";

const NS = "http://www.w3.org/2000/svg";
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [240, 32, 44, 12, 24];
const MOST_LOSS = 2.4;
const MOST_POINTS = 400; // then every second one is dropped
const SCALE = 6; // screen pixels per pixel of a digit

/** @param {string} tag @param {import("../dom.js").Attributes} attributes @param {string} [text] */
function svg(tag, attributes, text = "") {
  const element = document.createElementNS(NS, tag);
  setAttributes(element, attributes);
  element.textContent = text;
  return element;
}

/** The loss and the validation accuracy over time. */
export class Curves {
  /** @type {[number, number][]} */
  #losses = [];
  /** @type {[number, number][]} */
  #accuracies = [];
  #lines = { loss: svg("polyline", { class: "curve loss" }), accuracy: svg("polyline", { class: "curve accuracy" }) };
  #times = range(5).map(() => svg("text", { class: "tick", y: HEIGHT - 4, "text-anchor": "middle" }));

  #picture = svg("svg", { role: "img" });
  #width = 0;
  /** @type {Report | null} */
  #last = null;

  /** @param {HTMLElement} place */
  constructor(place) {
    place.replaceChildren(this.#picture);
    new ResizeObserver(() => this.#fit(place.clientWidth)).observe(place);
    this.#fit(place.clientWidth);
  }

  /** Draw the axes for a width, so that their labels keep their size. @param {number} width */
  #fit(width) {
    if (width === 0 || width === this.#width) return;
    this.#width = width;
    setAttributes(this.#picture, { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT });
    const across = { x1: LEFT, x2: width - RIGHT };
    const ticks = [0, 0.5, 1].flatMap((share) => {
      const y = yOf(share);
      return [
        svg("line", { class: "grid", ...across, y1: y, y2: y }),
        svg("text", { class: "tick accuracy", x: width - RIGHT + 6, y: y + 4 }, `${100 * share} %`),
        svg("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, (MOST_LOSS * share).toFixed(1)),
      ];
    });
    const chance = yOf(Math.log(CLASSES) / MOST_LOSS);
    this.#picture.replaceChildren(
      ...ticks,
      svg("line", { class: "chance", ...across, y1: chance, y2: chance }),
      svg("text", { class: "tick", x: width - RIGHT - 4, y: chance + 14, "text-anchor": "end" }, TEXTS.chance),
      ...this.#times,
      this.#lines.loss,
      this.#lines.accuracy,
    );
    this.#draw();
  }

  clear() {
    this.#losses = [];
    this.#accuracies = [];
  }

  /** @param {Report} report */
  paint(report) {
    const { seconds, loss, accuracy } = report;
    this.#last = report;
    if (loss !== null) this.#losses.push([seconds, loss / MOST_LOSS]);
    if (accuracy !== null) this.#accuracies.push([seconds, accuracy]);
    if (this.#losses.length > MOST_POINTS) this.#losses = this.#losses.filter((_, i) => i % 2 === 0);
    if (this.#accuracies.length > MOST_POINTS) this.#accuracies = this.#accuracies.filter((_, i) => i % 2 === 0);
    this.#draw();
  }

  #draw() {
    if (this.#last === null) return;
    const { seconds, loss } = this.#last;
    const end = Math.max(20, 20 * Math.ceil(seconds / 20));
    const xOf = (/** @type {number} */ at) => LEFT + (at / end) * (this.#width - LEFT - RIGHT);
    const line = (/** @type {[number, number][]} */ points) =>
      points.map(([at, share]) => `${xOf(at).toFixed(1)},${yOf(Math.min(1.04, share)).toFixed(1)}`).join(" ");
    setAttributes(this.#lines.loss, { points: line(this.#losses) });
    setAttributes(this.#lines.accuracy, { points: line(this.#accuracies) });
    this.#times.forEach((text, i) => {
      const at = (end * i) / 4;
      setAttributes(text, { x: xOf(at) });
      text.textContent = `${at} ${TEXTS.second}`;
    });
    const values = { seconds: seconds.toFixed(0), loss: loss?.toFixed(2) ?? TEXTS.none };
    const last = this.#accuracies.at(-1)?.[1];
    const label = fill(TEXTS.curveAlt, { ...values, accuracy: last === undefined ? TEXTS.none : percent(last) });
    setAttributes(this.#picture, { "aria-label": label });
  }
}

/** @param {number} share  of the height, from below */
function yOf(share) {
  return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/** One validation digit: the digit, and where each head of the class token looks. */
export class Watched {
  #caption = make("p", { class: "small number" });

  /** @param {Uint8Array} pixels @param {number} label @param {number} heads */
  constructor(pixels, label, heads) {
    this.label = label;
    this.pixels = pixels;
    this.base = canvasOf({ values: pixels, channels: 1, height: SIDE, width: SIDE });
    this.maps = range(heads).map(() => make("canvas", { width: SIDE * SCALE, height: SIDE * SCALE }));
    const maps = make("div", { class: "maps", "aria-hidden": "true" }, this.base, ...this.maps);
    this.element = make("div", { class: "watched" }, maps, this.#caption);
  }

  /** @param {Glance} glance @param {number} patch */
  paint({ probabilities, attention }, patch) {
    const best = argmax(probabilities);
    const patches = attention.length / this.maps.length;
    this.maps.forEach((canvas, head) => {
      paintAttention(canvas, this.base, attention.subarray(head * patches, (head + 1) * patches), patch);
    });
    const values = { label: this.label, prediction: best, probability: percent(probabilities[best]) };
    setText(this.#caption, fill(TEXTS.watchedAlt, values));
    this.element.classList.toggle("correct", best === this.label);
  }
}

/**
 * @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} digit @param {Float32Array} weights  one per patch
 * @param {number} patch
 */
export function paintAttention(canvas, digit, weights, patch) {
  const context = contextOf(canvas);
  const across = SIDE / patch;
  const highest = weights.reduce((high, weight) => Math.max(high, weight), 0) || 1;
  context.imageSmoothingEnabled = false;
  context.globalAlpha = 1;
  context.drawImage(digit, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = COLOR_OPACITY;
  const side = canvas.width / across;
  weights.forEach((weight, place) => {
    context.fillStyle = css(amountColor(weight / highest));
    context.fillRect((place % across) * side, Math.floor(place / across) * side, side - 1, side - 1);
  });
}

/** Paint every position's similarity to all others, a grid of grids. @param {HTMLCanvasElement} canvas @param {Float32Array} similarity */
export function paintPositions(canvas, similarity) {
  const across = Math.sqrt(Math.sqrt(similarity.length));
  const cell = across * across <= 16 ? 16 : across * across <= 49 ? 8 : 4;
  const step = across * cell + cell; // a grid and a gap
  resize(canvas, across * step - cell, across * step - cell);
  const context = contextOf(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  similarity.forEach((value, at) => {
    const [one, other] = [Math.floor(at / (across * across)), at % (across * across)];
    const [x, y] = [one % across, Math.floor(one / across)];
    context.fillStyle = css(signedColor(value));
    context.fillRect(x * step + (other % across) * cell, y * step + Math.floor(other / across) * cell, cell, cell);
  });
}
