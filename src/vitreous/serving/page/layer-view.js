/**
 * One layer, opened: all tokens' numbers at every step, as pictures of one row per token. Any number opens its arithmetic.
 *
 * @import { Behaviour } from "./behaviours.js"
 * @import { BoxName } from "./boxes.js"
 * @import { ViTModel } from "./engine.js"
 * @import { Session } from "./session.js"
 * @import { Tracing } from "./tracing.js"
 * @import { DiagramActions } from "./wall.js"
 */

import { BoxView } from "./box-view.js";
import { make } from "./dom.js";
import { HeadThumb } from "./heads.js";
import { moveWithArrows } from "./maps.js";
import { text } from "./texts.js";
import { range } from "./vit-maths.js";

export class LayerView {
  element = make("div", { class: "level layer-view" });
  /** @type {BoxView[]} */
  #boxes = [];
  /** @type {HeadThumb[]} */
  #thumbs = [];

  /** @param {ViTModel} model @param {number} layer @param {DiagramActions} actions */
  constructor(model, layer, actions) {
    this.layer = layer;
    const box = (/** @type {BoxName} */ name, note = "", of = layer) => {
      const made = new BoxView(name, of, "matrix", actions.openBox);
      this.#boxes.push(made);
      const titled = made.titled(of === layer ? undefined : text("box.stream"), note);
      titled.classList.toggle("beside", name === "k" || name === "v"); // made from the same numbers as q
      return titled;
    };
    const group = (/** @type {string} */ title, /** @type {HTMLElement[]} */ ...parts) =>
      make("section", { class: "group" }, make("h3", {}, title), make("div", { class: "flow" }, ...parts));
    this.#thumbs = [...range(model.num_heads), -1].map((head) => new HeadThumb(layer, head, actions));
    const heads = make("div", { class: "head-row" }, ...this.#thumbs.map(({ element }) => element));
    moveWithArrows(heads, { across: 1, down: model.num_heads + 1, among: ".thumb" });
    this.element.append(
      group(text("layer.in"), layer === 0 ? box("tokens", "z", -1) : box("output", "z", layer - 1), box("normed", "LN(z)"), box("q", "W·x + b"), box("k", "W·x + b"), box("v", "W·x + b")),
      make("section", { class: "group" }, make("h3", {}, text("layer.heads")), heads),
      group(text("layer.attention"), box("heads", "A·v"), box("attended", "W·x + b"), box("middle", "z + …")),
      group(text("layer.mlp"), box("normedMiddle", "LN(z′)"), box("hidden", "W·x + b"), box("active", "GELU"), box("mlp", "W·x + b"), box("output", "z′ + …")),
    );
  }

  /** @param {Session} session @param {Tracing} tracing @param {Behaviour[][] | null} behaviours */
  paint(session, { trace }, behaviours) {
    const { vit } = session;
    if (vit === null) return;
    for (const box of this.#boxes) box.paint(trace, vit, session);
    this.#thumbs.forEach((thumb, i) => thumb.paint(session, behaviours?.[this.layer][i] ?? null));
  }

  get stages() {
    return /** @type {HTMLElement[]} */ ([...this.element.querySelectorAll(".group")]);
  }
}
