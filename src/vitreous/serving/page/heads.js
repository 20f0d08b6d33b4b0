/**
 * All layers and heads as small maps: one row per layer, one column per head, the mean of the heads last.
 *
 * @import { Tensor, ViTModel } from "./engine.js"
 */

import { make, makeButton, setAttributes } from "./dom.js";
import { moveWithArrows, picture } from "./maps.js";
import { attentionFrom, patchOffset, range } from "./vit-maths.js";

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
  fit(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const heads = [...range(model.num_heads), -1];
    const names = heads.map((head) => make("span", { class: "column-name" }, head < 0 ? "mean" : `${head + 1}`));
    this.#cells = [];
    const rows = range(model.depth).flatMap((layer) => {
      const cells = heads.map((head) => this.#cell(layer, head));
      this.#cells.push(...cells);
      return [make("span", { class: "row-name" }, String(layer + 1)), ...cells.map(({ button }) => button)];
    });
    this.place.style.setProperty("--heads", String(heads.length));
    // many heads or layers: smaller, so that the large map keeps its room
    const side = Math.min(46, Math.floor(200 / heads.length) - 6, Math.floor(330 / model.depth) - 6);
    this.place.style.setProperty("--thumb", `${Math.max(20, side)}px`);
    this.place.replaceChildren(make("span", { class: "corner", "aria-hidden": "true" }, "layer"), ...names, ...rows);
    moveWithArrows(this.place, heads.length);
  }

  /** @param {number} layer @param {number} head */
  #cell(layer, head) {
    const { onChoose, onRemove } = this.handlers;
    const canvas = make("canvas", { "aria-hidden": "true" });
    const button = makeButton({ class: "thumb", tabindex: -1 }, () => onChoose(layer, head), canvas);
    button.addEventListener("dblclick", () => onRemove(layer, head));
    button.addEventListener("focus", () => button.matches(":focus-visible") && onChoose(layer, head));
    button.addEventListener("keydown", (event) => {
      if (event.key === "Delete" || event.key === "Backspace") onRemove(layer, head);
    });
    return { layer, head, button, canvas };
  }

  /**
   * @param {object} content
   * @param {Uint8Array} content.pixels
   * @param {Tensor | null} content.attention
   * @param {number} content.query
   * @param {number} content.layer
   * @param {number} content.head
   * @param {(layer: number, head: number) => boolean} content.isRemoved
   */
  paint({ pixels, attention, query, layer, head, isRemoved }) {
    const model = this.#model;
    if (model === null) return;
    for (const cell of this.#cells) {
      const removed = cell.head >= 0 && isRemoved(cell.layer, cell.head);
      const chosen = cell.layer === layer && cell.head === head;
      const layerName = `layer ${cell.layer + 1}`;
      const name = cell.head < 0 ? `mean of the heads of ${layerName}` : `${layerName}, head ${cell.head + 1}`;
      setAttributes(cell.button, {
        "aria-label": `${name}${removed ? ", removed" : ""}`,
        "aria-pressed": String(chosen),
        tabindex: chosen ? 0 : -1,
      });
      cell.button.classList.toggle("is-removed", removed);
      if (attention === null) continue;
      const values = attentionFrom(attention, cell.layer, cell.head, query, model).subarray(patchOffset(model));
      picture(pixels, model, { kind: "amount", values, high: Math.max(...values) }, cell.canvas);
    }
  }
}
