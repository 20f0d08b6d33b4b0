/**
 * The whole model: the chosen token's way through it, from left to right. One column per layer, its heads in the middle;
 * the tokens come in on the left, and the prediction goes out on the right.
 *
 * @import { Behaviour } from "./behaviours.js"
 * @import { OpenNode } from "./node-view.js"
 * @import { ViTModel } from "./engine.js"
 * @import { HeadActions } from "./heads.js"
 * @import { Session } from "./session.js"
 * @import { Traces } from "./tracing.js"
 *
 * @typedef {HeadActions & { openNode: OpenNode, openLayer: (layer: number) => void }} DiagramActions
 */

import { NodeView } from "./node-view.js";
import { contextOf, make, makeButton, resize, setAttributes, setText } from "./dom.js";
import { HeadThumb } from "./heads.js";
import { moveWithArrows, picture } from "./maps.js";
import { text } from "./texts.js";
import { argmax, numTokens, patchOffset, pixelEdges, range, rowAndColumn } from "./vit-maths.js";
import { percent, tokenName, wholePercent } from "./words.js";

const BEFORE = /** @type {const} */ (["normed", "q", "k", "v"]);
const AFTER = /** @type {const} */ (["middle", "normedMiddle", "active", "output"]);
const MANY_LAYERS = 8; // each has little room: its number is its name
const FEW_CLASSES = 20; // of more, the names are not written

export class Wall {
  element = make("div", { class: "level wall" });
  #patch = make("canvas", { class: "pixels patch", "aria-hidden": "true" });
  #noPatch = make("span", { class: "no-patch", "aria-hidden": "true" }, "cls");
  #tokenName = make("span", { class: "token-name" });
  /** @type {NodeView[]} */
  #nodes = [];
  /** @type {HeadThumb[]} */
  #thumbs = [];
  /** @type {HTMLElement[]} */
  #reads = [];
  /** @type {HTMLButtonElement[]} */
  #names = [];

  /** @param {ViTModel} model @param {DiagramActions} actions */
  constructor(model, actions) {
    const node = (/** @type {import("./nodes.js").NodeName} */ name, layer = -1, /** @type {import("./node-view.js").Form} */ form = "row") => {
      const made = new NodeView(name, layer, form, actions.openNode);
      this.#nodes.push(made);
      return made;
    };
    const start = make("div", { class: "start", "data-part": "start" },
      make("p", { class: "end-title" }, text("wall.tokens")),
      make("div", { class: "patch-line" }, this.#patch, this.#noPatch, this.#tokenName),
      node("embedded").titled("x · E"),
      node("tokens").titled(text(model.position_similarity === null ? "node.tokens" : "wall.plusPosition")),
      node("tokens", -1, "matrix").titled(text("wall.all", numTokens(model))),
    );
    const label = (/** @type {string} */ name, /** @type {string} */ words) => make("span", { class: `row-label ${name}` }, words);
    const labels = make("div", { class: "labels", "aria-hidden": "true" },
      label("corner", ""),
      ...BEFORE.map((name) => label(name, text(`short.${name}`))),
      label("heads", text("short.heads")),
      ...AFTER.map((name) => label(name, text(`short.${name}`))),
      label("read", text("short.read")),
    );
    const layers = range(model.depth).map((layer) => this.#layer(layer, model, actions, node));
    const inWords = model.class_names.some((name) => name.length > 3);
    const classes = make("div", { class: `classes${inWords ? " words" : ""}`, "aria-hidden": "true" },
      ...model.class_names.slice(0, FEW_CLASSES).map((name) => make("span", {}, name)));
    const out = make("div", { class: `out${model.class_names.length > FEW_CLASSES ? " many" : ""}`, "data-part": "out" },
      make("p", { class: "end-title" }, text("wall.out")),
      node("final").titled(),
      make("div", { class: "logits" }, classes, node("logits", -1, "column").titled(text("short.logits")), node("probabilities", -1, "column").titled("p")),
    );
    const columns = make("div", { class: `layers${model.depth > MANY_LAYERS ? " many" : ""}`, "data-part": "wall" }, labels, ...layers);
    columns.style.setProperty("--layers", String(model.depth));
    columns.style.setProperty("--heads", String(model.num_heads + 1));
    columns.style.setProperty("--classes", String(model.class_names.length));
    out.style.setProperty("--classes", String(model.class_names.length));
    moveWithArrows(columns, { across: model.num_heads + 1, down: 1, among: ".thumb" });
    this.element.append(start, columns, out);
  }

  /**
   * @param {number} layer @param {ViTModel} model @param {DiagramActions} actions
   * @param {(name: import("./nodes.js").NodeName, layer: number) => NodeView} node
   */
  #layer(layer, model, actions, node) {
    const title = text("layer", layer + 1);
    const shown = model.depth > MANY_LAYERS ? String(layer + 1) : title;
    const name = makeButton({ class: "layer-name", "aria-label": title }, () => actions.openLayer(layer), shown);
    const thumbs = [...range(model.num_heads), -1].map((head) => new HeadThumb(layer, head, actions));
    const read = make("p", { class: "read number" });
    this.#thumbs.push(...thumbs);
    this.#reads.push(read);
    this.#names.push(name);
    return make("div", { class: "layer", "data-layer": layer },
      name,
      ...BEFORE.map((each) => node(each, layer).element),
      make("div", { class: "head-cells" }, ...thumbs.map(({ element }) => element)),
      ...AFTER.map((each) => node(each, layer).element),
      read,
    );
  }

  /** @param {Session} session @param {Traces} traces @param {Behaviour[][] | null} behaviours */
  paint(session, { trace }, behaviours) {
    const { vit, results, layer } = session;
    if (vit === null) return;
    for (const node of this.#nodes) {
      node.paint(trace, vit, session);
      setAttributes(node.element, { tabindex: node.layer < 0 || node.layer === layer ? 0 : -1 }); // Tab passes one layer
    }
    const heads = vit.num_heads + 1;
    this.#thumbs.forEach((thumb, i) => thumb.paint(session, behaviours?.[Math.floor(i / heads)][i % heads] ?? null));
    this.#paintPatch(session, vit);
    const lens = results.vit?.lens;
    const classes = vit.class_names.length;
    this.#reads.forEach((read, l) => {
      const row = lens?.data.subarray((l + 1) * classes, (l + 2) * classes);
      const best = row ? argmax(row) : -1;
      const share = vit.depth > MANY_LAYERS ? "" : ` · ${wholePercent(row?.[best] ?? 0)}`;
      setText(read, row ? `${vit.class_names[best]}${share}` : "");
      setAttributes(read, { "aria-label": row ? text("wall.read", l + 1, vit.class_names[best], percent(row[best])) : null, role: row ? "img" : null });
    });
    this.#names.forEach((name, l) => setAttributes(name, { "aria-current": l === layer ? "true" : null }));
  }

  /** Show the chosen token's patch, enlarged. @param {Session} session @param {ViTModel} vit */
  #paintPatch({ token, results }, vit) {
    setText(this.#tokenName, tokenName(token, vit));
    const patch = token - patchOffset(vit);
    this.#patch.hidden = patch < 0;
    this.#noPatch.hidden = patch >= 0;
    if (patch < 0) return;
    const [[down, across], [row, column]] = [pixelEdges(vit), rowAndColumn(patch, vit.grid)];
    const [wide, tall] = [across[column + 1] - across[column], down[row + 1] - down[row]];
    resize(this.#patch, wide, tall);
    const whole = picture(results.pixels, vit, { kind: "plain", values: null, high: 1 });
    contextOf(this.#patch).drawImage(whole, across[column], down[row], wide, tall, 0, 0, wide, tall);
  }

  /** Return the columns in the order in which the numbers pass them. */
  get stages() {
    return /** @type {HTMLElement[]} */ ([...this.element.querySelectorAll(".start, .layer, .out")]);
  }
}
