/**
 * One layer, opened: all tokens' numbers at every step, as pictures of one row per token. Any number opens its arithmetic.
 *
 * @import { Behaviour } from "./behaviours.js"
 * @import { NodeName } from "./nodes.js"
 * @import { ViTModel } from "./engine.js"
 * @import { Session } from "./session.js"
 * @import { Traces } from "./tracing.js"
 * @import { DiagramActions } from "./wall.js"
 */

import { NodeView } from "./node-view.js";
import { make } from "./dom.js";
import { HeadThumb } from "./heads.js";
import { moveWithArrows } from "./maps.js";
import { text } from "./texts.js";
import { range } from "./vit-maths.js";

export class LayerView {
  element = make("div", { class: "level layer-view" });
  /** @type {NodeView[]} */
  #nodes = [];
  /** @type {HeadThumb[]} */
  #thumbs = [];

  /** @param {ViTModel} model @param {number} layer @param {DiagramActions} actions */
  constructor(model, layer, actions) {
    this.layer = layer;
    const node = (/** @type {NodeName} */ name, note = "", of = layer) => {
      const made = new NodeView(name, of, "matrix", actions.openNode);
      this.#nodes.push(made);
      const titled = made.titled(of === layer ? undefined : text("node.stream"), note);
      titled.classList.toggle("beside", name === "k" || name === "v"); // made from the same numbers as q
      return titled;
    };
    const group = (/** @type {string} */ title, /** @type {HTMLElement[]} */ ...parts) =>
      make("section", { class: "group" }, make("h3", {}, title), make("div", { class: "flow" }, ...parts));
    this.#thumbs = [...range(model.num_heads), -1].map((head) => new HeadThumb(layer, head, actions));
    const heads = make("div", { class: "head-row" }, ...this.#thumbs.map(({ element }) => element));
    moveWithArrows(heads, { across: 1, down: model.num_heads + 1, among: ".thumb" });
    this.element.append(
      group(text("layer.in"), layer === 0 ? node("tokens", "z", -1) : node("output", "z", layer - 1), node("normed", "LN(z)"), node("q", "W·x + b"), node("k", "W·x + b"), node("v", "W·x + b")),
      make("section", { class: "group" }, make("h3", {}, text("layer.heads")), heads),
      group(text("layer.attention"), node("heads", "A·v"), node("attended", "W·x + b"), node("middle", "z + …")),
      group(text("layer.mlp"), node("normedMiddle", "LN(z′)"), node("hidden", "W·x + b"), node("active", "GELU"), node("mlp", "W·x + b"), node("output", "z′ + …")),
    );
  }

  /** @param {Session} session @param {Traces} traces @param {Behaviour[][] | null} behaviours */
  paint(session, { trace }, behaviours) {
    const { vit } = session;
    if (vit === null) return;
    for (const node of this.#nodes) node.paint(trace, vit, session);
    this.#thumbs.forEach((thumb, i) => thumb.paint(session, behaviours?.[this.layer][i] ?? null));
  }

  get stages() {
    return /** @type {HTMLElement[]} */ ([...this.element.querySelectorAll(".group")]);
  }
}
