/**
 * Numbers as colours: a vector as a strip, a matrix as a picture. Pointing at a number, or moving to it with the arrow
 * keys, shows its value; a click opens its arithmetic.
 *
 * @typedef {object} StripContent
 * @property {Float32Array} data  row by row
 * @property {number} columns
 * @property {number} high  the scale ends at ±high
 * @property {boolean} [amounts]  whether they are amounts from 0 to high
 * @property {number | null} marked  a row to outline
 * @property {(row: number, column: number, value: number) => string} describe
 */

import { amountColor, signedColor } from "./colors.js";
import { contextOf, make, resize, setAttributes } from "./dom.js";

const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });

/** Show a value next to the pointer or the focus. @param {string} words @param {number} x @param {number} y */
export function showTip(words, x, y) {
  if (!tip.isConnected) document.body.append(tip);
  tip.hidden = words === "";
  if (words === "") return;
  tip.textContent = words;
  const left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8));
  tip.style.translate = `${left}px ${Math.max(4, y - tip.offsetHeight - 10)}px`;
}

export class Strip {
  #canvas = make("canvas", { class: "pixels", "aria-hidden": "true" });
  #mark = make("span", { class: "marked-row", "aria-hidden": "true" });
  /** @type {StripContent | null} */
  #content = null;
  #at = [0, 0]; // row, column

  /** @param {string} name @param {(row: number, column: number) => void} onPick */
  constructor(name, onPick) {
    this.name = name;
    this.element = make("button", { type: "button", class: "strip" }, this.#canvas, this.#mark);
    const { element } = this;
    element.addEventListener("click", () => this.#content && onPick(this.#at[0], this.#at[1]));
    element.addEventListener("pointermove", (event) => {
      const place = this.#placeOf(event);
      if (place === null) return;
      this.#at = place;
      showTip(this.#words(), event.clientX, event.clientY);
    });
    element.addEventListener("pointerdown", (event) => (this.#at = this.#placeOf(event) ?? this.#at));
    element.addEventListener("pointerleave", () => showTip("", 0, 0));
    element.addEventListener("focus", () => element.matches(":focus-visible") && this.#showAtFocus());
    element.addEventListener("blur", () => showTip("", 0, 0));
    element.addEventListener("keydown", (event) => this.#move(event));
  }

  /** @param {PointerEvent} event */
  #placeOf(event) {
    if (this.#content === null) return null;
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    const { columns } = this.#content;
    const [row, column] = [((event.clientY - top) / height) * this.rows, ((event.clientX - left) / width) * columns];
    return [Math.max(0, Math.min(this.rows - 1, Math.floor(row))), Math.max(0, Math.min(columns - 1, Math.floor(column)))];
  }

  get rows() {
    return this.#content === null ? 0 : this.#content.data.length / this.#content.columns;
  }

  #words() {
    if (this.#content === null) return "";
    const [row, column] = this.#at;
    return this.#content.describe(row, column, this.#content.data[row * this.#content.columns + column]);
  }

  #showAtFocus() {
    const { left, top } = this.element.getBoundingClientRect();
    showTip(this.#words(), left, top);
    this.#label();
  }

  #label() {
    const [row, column] = this.#at;
    const valid = this.#content !== null && row < this.rows && column < this.#content.columns;
    setAttributes(this.element, { "aria-label": valid ? `${this.name}: ${this.#words()}` : this.name });
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined || this.#content === null) return;
    const [row, column] = [this.#at[0] + step[0], this.#at[1] + step[1]];
    if (row < 0 || column < 0 || row >= this.rows || column >= this.#content.columns) return;
    event.preventDefault();
    event.stopPropagation();
    this.#at = [row, column];
    this.#showAtFocus();
  }

  /** @param {StripContent | null} content  null: there is nothing to show */
  paint(content) {
    this.#content = content;
    this.element.classList.toggle("empty", content === null);
    setAttributes(this.element, { disabled: content === null });
    if (content === null) {
      resize(this.#canvas, 1, 1);
      contextOf(this.#canvas).clearRect(0, 0, 1, 1);
      setAttributes(this.element, { "aria-label": this.name });
      this.#mark.hidden = true;
      return;
    }
    const { data, columns, high, marked, amounts } = content;
    const { rows } = this;
    this.#at = [Math.min(this.#at[0], rows - 1), Math.min(this.#at[1], columns - 1)];
    if (marked !== null && document.activeElement !== this.element) this.#at[0] = marked;
    paintNumbers(this.#canvas, data, columns, high, amounts);
    this.#mark.hidden = marked === null || rows === 1;
    this.#mark.style.top = `${(100 * (marked ?? 0)) / rows}%`;
    this.#mark.style.height = `${100 / rows}%`;
    this.#label();
  }
}

/** @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} data @param {number} columns @param {number} high @param {boolean} [amounts] */
export function paintNumbers(canvas, data, columns, high, amounts = false) {
  const color = amounts ? amountColor : signedColor;
  const rows = data.length / columns;
  resize(canvas, columns, rows);
  const image = new ImageData(columns, rows);
  for (let i = 0; i < data.length; i++) image.data.set([...color(data[i] / (high || 1)), 255], 4 * i);
  contextOf(canvas).putImageData(image, 0, 0);
}

/** Return a scale's end for numbers of one kind: three root mean squares, to two digits. @param {Float32Array[]} arrays */
export function scaleEnd(arrays) {
  let [total, count] = [0, 0];
  for (const array of arrays) {
    for (let i = 0; i < array.length; i++) total += array[i] * array[i];
    count += array.length;
  }
  return Number((3 * Math.sqrt(total / Math.max(1, count))).toPrecision(2)) || 1;
}
