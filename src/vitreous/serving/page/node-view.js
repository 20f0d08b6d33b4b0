/**
 * One node of the diagram: a name and its numbers as colours, of the chosen token or of all tokens.
 *
 * @import { NodeName, Numbers } from "./nodes.js"
 * @import { ViTModel } from "./engine.js"
 * @import { Trace } from "./forward.js"
 * @import { Session } from "./session.js"
 *
 * @typedef {(node: NodeName, layer: number, at: number, token: number | null) => void} OpenNode  token: null: the chosen one
 * @typedef {"row" | "matrix" | "column"} Form  of the chosen token, of all tokens, or of the classes one below the other
 */

import { numbersOf, rowOf, scalesOf } from "./nodes.js";
import { make } from "./dom.js";
import { Strip } from "./strips.js";
import { text } from "./texts.js";
import { percent, signed, tokenName } from "./words.js";

export class NodeView {
  /** @type {ViTModel | null} */
  #model = null;

  /** @param {NodeName} node @param {number} layer @param {Form} form @param {OpenNode} open */
  constructor(node, layer, form, open) {
    this.node = node;
    this.layer = layer;
    this.form = form;
    const name = text("node.inLayer", text(`node.${node}`), layer < 0 ? 0 : layer + 1);
    this.strip = new Strip(name, (row, column) => {
      if (form === "matrix") open(node, Math.max(0, layer), column, row + this.offset);
      else open(node, Math.max(0, layer), form === "column" ? row : column, null);
    });
    this.strip.element.dataset.node = node;
    this.strip.element.classList.add(form);
    this.offset = 0;
  }

  get element() {
    return this.strip.element;
  }

  /** Return the strip under its name. @param {string} [name] @param {string} [note] */
  titled(name = text(`node.${this.node}`), note = "") {
    const title = make("span", { class: "node-name" }, make("span", {}, name), ...(note ? [make("small", {}, note)] : []));
    return make("div", { class: "node" }, title, this.element);
  }

  /** @param {Trace | null} trace @param {ViTModel} model @param {Session} session */
  paint(trace, model, { token, opened, layer }) {
    this.#model = model;
    this.element.classList.toggle("open", opened === this.node && (this.layer < 0 || this.layer === layer));
    const numbers = trace && numbersOf(this.node, trace, Math.max(0, this.layer), model);
    const row = numbers && rowOf(numbers, token);
    if (trace === null || numbers === null || (row === null && this.form !== "matrix")) {
      this.strip.paint(null);
      return;
    }
    this.offset = numbers.offset;
    const isMatrix = this.form === "matrix";
    this.strip.paint({
      data: isMatrix || row === null ? numbers.data : row,
      columns: this.form === "column" ? 1 : numbers.columns,
      high: scalesOf(trace)[numbers.kind],
      amounts: numbers.kind === "probabilities",
      marked: isMatrix && numbers.data.length > numbers.columns ? Math.max(0, token - numbers.offset) : null,
      describe: (r, c, value) => this.#describe(numbers, r, c, value),
    });
  }

  /** @param {Numbers} numbers @param {number} row @param {number} column @param {number} value */
  #describe(numbers, row, column, value) {
    const model = this.#model;
    if (this.form === "column") return `${model?.class_names[row]}: ${numbers.kind === "probabilities" ? percent(value) : signed(value)}`;
    const where = this.form === "matrix" && model ? `${tokenName(row + numbers.offset, model)}, ` : "";
    return text("tip.number", where, column + 1, signed(value));
  }
}
