/**
 * All layers and heads as small maps, a row a layer, a column a head, the mean of the heads last.
 *
 * @typedef {import("./engine.js").ViTModel} ViTModel
 * @typedef {import("./engine.js").Tensor} Tensor
 */

import { make, setAttributes } from "./dom.js";
import { moveWithArrows, picture } from "./maps.js";
import { headAttention, lookOf } from "./vit-maths.js";

export class HeadGrid {
  /** @type {{ layer: number, head: number, button: HTMLButtonElement, canvas: HTMLCanvasElement }[]} */
  #cells = [];
  /** @type {ViTModel | null} */
  #model = null;

  /**
   * @param {HTMLElement} place
   * @param {{ onChoose: (layer: number, head: number) => void, onRemove: (layer: number, head: number) => void }} handlers
   */
  constructor(place, handlers) {
    this.place = place;
    this.handlers = handlers;
  }

  /** @param {ViTModel} model */
  shape(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const heads = [...Array.from({ length: model.num_heads }, (_, head) => head), -1];
    this.#cells = [];
    const rows = Array.from({ length: model.depth }, (_, layer) => {
      const buttons = heads.map((head) => this.#cell(layer, head));
      return [make("span", { class: "row-name" }, String(layer + 1)), ...buttons];
    });
    const names = heads.map((head) => make("span", { class: "column-name" }, head < 0 ? "mean" : `${head + 1}`));
    this.place.style.setProperty("--heads", String(heads.length));
    // many heads or layers: smaller, so that the large map keeps its room
    const side = Math.min(46, Math.floor(200 / heads.length) - 6, Math.floor(330 / model.depth) - 6);
    this.place.style.setProperty("--thumb", `${Math.max(20, side)}px`);
    this.place.replaceChildren(make("span", { class: "corner", "aria-hidden": "true" }, "layer"), ...names, ...rows.flat());
    moveWithArrows(this.place, heads.length);
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  #cell(layer, head) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const button = make("button", { type: "button", class: "thumb", tabindex: -1 }, canvas);
    button.addEventListener("click", () => this.handlers.onChoose(layer, head));
    button.addEventListener("dblclick", () => this.handlers.onRemove(layer, head));
    button.addEventListener("focus", () => button.matches(":focus-visible") && this.handlers.onChoose(layer, head));
    button.addEventListener("keydown", (event) => {
      if (event.key === "Delete" || event.key === "Backspace") this.handlers.onRemove(layer, head);
    });
    this.#cells.push({ layer, head, button, canvas });
    return button;
  }

  /**
   * @param {object} what
   * @param {Uint8Array} what.pixels
   * @param {Tensor | null} what.attention
   * @param {number} what.query
   * @param {number} what.layer
   * @param {number} what.head
   * @param {(layer: number, head: number) => boolean} what.isRemoved
   */
  paint({ pixels, attention, query, layer, head, isRemoved }) {
    const model = this.#model;
    if (model === null) return;
    for (const cell of this.#cells) {
      const removed = cell.head >= 0 && isRemoved(cell.layer, cell.head);
      const chosen = cell.layer === layer && cell.head === head;
      const name = cell.head < 0 ? `mean of the heads of layer ${cell.layer + 1}` : `layer ${cell.layer + 1}, head ${cell.head + 1}`;
      setAttributes(cell.button, {
        "aria-label": `${name}${removed ? ", removed" : ""}`,
        "aria-pressed": String(chosen),
        tabindex: chosen ? 0 : -1,
      });
      cell.button.classList.toggle("gone", removed);
      if (attention === null) continue;
      const look = lookOf(headAttention(attention, cell.layer, cell.head), query, model);
      const values = look.subarray(Number(model.has_class_token));
      picture(pixels, model, { kind: "amount", values, high: Math.max(...values) }, cell.canvas);
    }
  }
}
