/**
 * One head, opened: q · k for every pair of tokens, the weights, what they carry, and what the head does in words.
 *
 * @import { Behaviour, Group } from "./behaviours.js"
 * @import { ViTModel } from "./engine.js"
 * @import { LayerTrace } from "./forward.js"
 * @import { Session } from "./session.js"
 * @import { Traces } from "./tracing.js"
 * @import { DiagramActions } from "./wall.js"
 */

import { scalesOf } from "./nodes.js";
import { make, setText } from "./dom.js";
import { behaviourWords } from "./heads.js";
import { Strip } from "./strips.js";
import { text } from "./texts.js";
import { headAttention, numTokens, range } from "./vit-maths.js";
import { percent, signed, tokenName } from "./words.js";

const VECTORS = /** @type {const} */ (["q", "k", "v", "heads"]);

export class HeadView {
  element = make("div", { class: "level head-view" });
  #sentence = make("p", { class: "head-sentence" });
  #groups = make("ul", { class: "head-groups" });
  #weights;
  /** @type {Record<"q" | "k" | "v" | "heads", Strip>} */
  #vectors;

  /** @param {ViTModel} model @param {number} layer @param {number} head @param {DiagramActions & { openWeight: (query: number, key: number) => void }} actions */
  constructor(model, layer, head, actions) {
    this.layer = layer;
    this.head = head;
    const first = head * model.head_dim;
    const strip = (/** @type {"q" | "k" | "v" | "heads"} */ name) =>
      new Strip(text("node.inLayer", text(`node.${name}`), layer + 1), (row, column) => actions.openNode(name, layer, first + column, row));
    this.#vectors = { q: strip("q"), k: strip("k"), v: strip("v"), heads: strip("heads") };
    this.#weights = new Strip(text("head.weights"), (row, column) => actions.openWeight(row, column));
    for (const name of VECTORS) this.#vectors[name].element.classList.add("matrix");
    this.#weights.element.classList.add("square");
    const node = (/** @type {string} */ name, /** @type {string} */ note, /** @type {HTMLElement} */ inner) =>
      make("div", { class: "node" }, make("span", { class: "node-name" }, name, make("small", {}, note)), inner);
    const sign = (/** @type {string} */ words) => make("span", { class: "sign", "aria-hidden": "true" }, words);
    const width = `${numTokens(model)} × ${model.head_dim}`;
    this.element.append(
      this.#sentence,
      make("div", { class: "head-flow" },
        node(text("node.q"), width, this.#vectors.q.element), sign("·"), node(text("node.k"), width, this.#vectors.k.element),
        sign("→"), node(text("head.weights"), text("head.softmax"), this.#weights.element),
        sign("×"), node(text("node.v"), width, this.#vectors.v.element), sign("="), node(text("node.heads"), width, this.#vectors.heads.element)),
      make("div", { class: "head-words" }, this.#groups, make("p", { class: "soft small" }, text("head.rule"))),
    );
  }

  /** @param {Session} session @param {Traces} traces @param {Behaviour[][] | null} behaviours */
  paint(session, { trace }, behaviours) {
    const { vit, token, results } = session;
    if (vit === null) return;
    const columns = vit.head_dim;
    for (const name of VECTORS) {
      const data = trace && slice(trace.layers[this.layer], name, vit.dim, this.head * columns, columns);
      this.#vectors[name].paint(data && {
        data, columns, high: scalesOf(trace)[name === "heads" ? "carried" : "qkv"], marked: token,
        describe: (row, column, value) => text("tip.number", `${tokenName(row, vit)}, `, column + 1, signed(value)),
      });
    }
    const attention = results.vit?.attention;
    const weights = attention ? headAttention(attention, this.layer, this.head) : null;
    this.#weights.paint(weights && {
      data: weights, columns: numTokens(vit), high: Math.max(...weights), amounts: true, marked: token,
      describe: (row, column, value) => text("tip.weight", tokenName(row, vit), tokenName(column, vit), percent(value)),
    });
    const behaviour = behaviours?.[this.layer][this.head] ?? null;
    setText(this.#sentence, behaviour ? text("head.does", this.layer + 1, this.head + 1, behaviourWords(behaviour)) : "");
    const groups = /** @type {[Group, import("./behaviours.js").Share][]} */ (Object.entries(behaviour?.groups ?? {}));
    this.#groups.replaceChildren(...groups.map(([name, { share, even }]) => {
      const [bar, mark] = [make("span", { class: "fill" }), make("span", { class: "mark" })];
      bar.style.transform = `scaleX(${share})`;
      mark.style.left = `${100 * even}%`;
      return make("li", {}, make("span", {}, text(`behaviour.${name}`)), make("span", { class: "track" }, bar, mark), make("span", { class: "number" }, percent(share)));
    }));
  }

  get stages() {
    return /** @type {HTMLElement[]} */ ([...this.element.querySelectorAll(".node")]);
  }
}

/** Return one head's columns, all rows. @param {LayerTrace} own @param {"q" | "k" | "v" | "heads"} name @param {number} dim @param {number} first @param {number} width */
function slice(own, name, dim, first, width) {
  const rows = own[name].length / dim;
  const data = new Float32Array(rows * width);
  for (const row of range(rows)) data.set(own[name].subarray(row * dim + first, row * dim + first + width), row * width);
  return data;
}
