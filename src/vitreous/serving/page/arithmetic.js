/**
 * The drawer with the arithmetic of one number: a few sums side by side (explain.js), with the numbers of this input.
 *
 * @import { NodeName } from "./nodes.js"
 * @import { Tensor } from "./engine.js"
 * @import { Sum } from "./explain.js"
 * @import { Session } from "./session.js"
 * @import { Traces, Tracing } from "./tracing.js"
 */

import { isLayerNode, numbersOf, rowOf } from "./nodes.js";
import { byId, make, setAttributes, setText } from "./dom.js";
import { explain, explainWeight } from "./explain.js";
import { paintNumbers, showTip } from "./strips.js";
import { text } from "./texts.js";
import { headAttention, numTokens, patchOffset, range, sum } from "./vit-maths.js";
import { percent, signed, tokenName } from "./words.js";

const TOLERANCE = 2e-3; // a weight that differs more from softmax(q·k/√D) belongs to a model that adds a term

export class Arithmetic {
  #query = byId("query-token", HTMLSelectElement);
  #key = byId("key-token", HTMLSelectElement);
  #component = byId("component", HTMLInputElement);
  #shown = "";
  #open = ""; // what was open at the last paint

  /** @param {Session} session @param {{ onQuery: (token: number) => void, onKey: (token: number) => void, onComponent: (at: number) => void }} handlers */
  constructor(session, { onQuery, onKey, onComponent }) {
    this.session = session;
    this.#query.addEventListener("change", () => onQuery(Number(this.#query.value)));
    this.#key.addEventListener("change", () => onKey(Number(this.#key.value)));
    this.#component.addEventListener("change", () => onComponent(Math.max(1, Number(this.#component.value)) - 1));
  }

  /** Show the drawer for what is open, or hide it. @param {Tracing} tracing */
  paint(tracing) {
    const { session } = this;
    const { opened, vit } = session;
    byId("arithmetic").hidden = opened === null || vit === null;
    document.documentElement.classList.toggle("with-arithmetic", opened !== null && vit !== null);
    if (opened === null || vit === null) {
      this.#open = "";
      return;
    }
    const names = range(numTokens(vit)).map((token) => tokenName(token, vit));
    if (this.#query.options.length !== names.length || this.#query.dataset.model !== vit.id) {
      this.#query.dataset.model = vit.id;
      for (const select of [this.#query, this.#key]) {
        select.replaceChildren(...names.map((name, token) => make("option", { value: token }, name)));
      }
    }
    const isWeight = opened === "weight";
    const isToken = opened !== "logits" && opened !== "probabilities" && !(opened === "final" && vit.pool !== "cls");
    byId("ask-query").hidden = !isToken;
    byId("ask-key").hidden = !isWeight;
    byId("ask-component").hidden = isWeight;
    this.#query.value = String(session.token);
    if (isWeight) this.#paintWeight(tracing.of(vit));
    else this.#paintNumber(opened, tracing.of(vit));
    const open = `${opened} ${session.layer}`;
    if (open !== this.#open) reveal();
    this.#open = open;
  }

  /** @param {NodeName} node @param {Traces} traces */
  #paintNumber(node, { trace, weights, missing }) {
    const { vit: model, layer, token, state } = this.session;
    setText("arithmetic-title", text(`node.${node}`));
    if (model === null) return;
    setText("arithmetic-where", isLayerNode(node) ? text("arithmetic.inLayer", layer + 1) : "");
    const numbers = trace && numbersOf(node, trace, layer, model);
    const row = numbers && rowOf(numbers, token);
    if (trace === null || weights === null || row === null) {
      const reason = trace !== null ? "missing.classToken" : missing === null ? "missing.loading" : /** @type {const} */ (`missing.${missing}`);
      this.#show([], text(reason));
      return;
    }
    const at = state.at >= 0 && state.at < row.length ? state.at : strongest(row);
    setAttributes(this.#component, { max: row.length });
    this.#component.value = String(at + 1);
    setText("component-of", text("arithmetic.of", row.length, node === "logits" || node === "probabilities" ? model.class_names[at] : ""));
    this.#show(explain({ model, trace, weights }, { node, layer, token, at }), "");
  }

  /** @param {Traces} traces */
  #paintWeight({ trace }) {
    const { vit: model, results: { vit: result }, state, layer, token, key } = this.session;
    if (model === null || key === null) return;
    const head = Math.max(0, state.head);
    this.#key.value = String(key);
    setText("arithmetic-title", text("node.weight"));
    setText("arithmetic-where", text("arithmetic.inHead", layer + 1, head + 1));
    const own = trace?.layers[layer];
    const [q, k, v] = own
      ? [own.q, own.k, own.v].map((data) => columnsOf(data, model.dim, head * model.head_dim, model.head_dim))
      : [result?.queries, result?.keys, result?.values].map((tensor) => tensor && vectorsOf(tensor, layer, head));
    if (!q || !k || !v || !result?.attention) {
      this.#show([], text("missing.loading"));
      return;
    }
    const tokens = numTokens(model);
    const row = headAttention(result.attention, layer, head).subarray(token * tokens, (token + 1) * tokens);
    const removed = state.removedPatches.includes(key - patchOffset(model));
    const expected = removed ? 0 : softmaxAt(q[token], k, key, row);
    const note = Math.abs(expected - row[key]) > TOLERANCE ? text("arithmetic.extraTerm") : "";
    this.#show(explainWeight({ q: q[token], keys: k, values: v, row, key, removed, model }), note);
  }

  /** @param {Sum[]} sums @param {string} note */
  #show(sums, note) {
    setText("arithmetic-note", note);
    const place = byId("sums");
    const shape = JSON.stringify(sums.map(({ title, strips, columns }) => [title, strips?.length, columns?.values.length]));
    if (shape !== this.#shown) place.replaceChildren(...sums.map((_, i) => new SumView(i).element));
    this.#shown = shape;
    sums.forEach((each, i) => paintSum(/** @type {HTMLElement} */ (place.children[i]), each));
    place.style.setProperty("--sums", String(Math.max(1, sums.length)));
  }
}

/** Scroll where the drawer covers what it explains. */
function reveal() {
  const covered = document.querySelector(".strip.open")?.getBoundingClientRect();
  const over = covered ? covered.bottom + 16 - byId("arithmetic").getBoundingClientRect().top : 0;
  if (over > 0 && !document.documentElement.classList.contains("touring")) scrollBy(0, over);
}

/** The elements of one sum. */
class SumView {
  /** @param {number} index */
  constructor(index) {
    const title = make("h3", {}, make("span", { class: "step-number" }, String(index + 1)), make("span", { class: "sum-title" }));
    const line = make("div", { class: "sum-line" }, make("div", { class: "sum-math" }), make("output", { class: "result number" }));
    this.element = make("div", { class: "sum" }, title, line, make("p", { class: "sum-words" }), make("div", { class: "sum-strips" }), make("div", { class: "tokens", role: "img", hidden: true }));
  }
}

/** @param {HTMLElement} place @param {Sum} content */
function paintSum(place, { title, math, result, words, strips = [], oneScale, across, columns }) {
  const part = (/** @type {string} */ name) => /** @type {HTMLElement} */ (place.querySelector(name));
  setText(part(".sum-title"), title);
  part(".sum-math").replaceChildren(math);
  setText(part(".result"), result);
  setText(part(".sum-words"), words);
  const ends = strips.map(([, values]) => Math.max(...Array.from(values, Math.abs)) || 1);
  const rows = strips.map(([name, values], s) => {
    const canvas = make("canvas", { class: "sum-strip pixels", "aria-hidden": "true" });
    const [width, end] = [across ?? values.length, oneScale ? Math.max(...ends) : ends[s]];
    paintNumbers(canvas, values, width, end);
    canvas.addEventListener("pointermove", (event) => {
      const bounds = canvas.getBoundingClientRect();
      const cell = (/** @type {number} */ at, /** @type {number} */ size, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, Math.floor((at / size) * count)));
      const i = cell(event.clientY - bounds.top, bounds.height, values.length / width) * width + cell(event.clientX - bounds.left, bounds.width, width);
      const all = strips.map(([label, numbers]) => `${label} ${signed(numbers[i])}`).join(" · ");
      showTip(`${i + 1}: ${all}`, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => showTip("", 0, 0));
    return make("div", { class: "strip-row" }, make("span", {}, name), canvas, make("span", { class: "end" }, `±${signed(end)}`));
  });
  part(".sum-strips").classList.toggle("squares", across !== undefined);
  part(".sum-strips").replaceChildren(...rows);
  const chart = part(".tokens");
  chart.hidden = !columns;
  if (!columns) return;
  const { values, chosen, names } = columns;
  const highest = Math.max(...Array.from(values));
  chart.replaceChildren(
    ...Array.from(values, (value, i) => {
      const bar = make("span", { class: i === chosen ? "key" : "", title: names(i) });
      bar.style.height = `${Math.max(1, (100 * value) / highest)}%`;
      return bar;
    }),
  );
  const label = chosen < 0 ? text("arithmetic.allWeights", values.length, percent(highest)) : text("arithmetic.oneWeight", values.length, percent(values[chosen]), percent(highest));
  setAttributes(chart, { "aria-label": label });
}

/** Return the number furthest from 0. @param {ArrayLike<number>} values */
export function strongest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (Math.abs(values[i]) > Math.abs(values[best])) best = i;
  return best;
}

/** Return some columns of every row. @param {Float32Array} data @param {number} width @param {number} first @param {number} count */
function columnsOf(data, width, first, count) {
  return range(data.length / width).map((r) => Array.from(data.subarray(r * width + first, r * width + first + count)));
}

/** Return one head's vectors, by token. @param {Tensor} tensor  (L, H, N, K) @param {number} layer @param {number} head */
function vectorsOf({ data, shape: [, heads, tokens, width] }, layer, head) {
  const first = (layer * heads + head) * tokens;
  return range(tokens).map((token) => Array.from(data.subarray((first + token) * width, (first + token + 1) * width)));
}

/**
 * Return the weight by q, k and softmax alone, over the tokens that are not removed.
 * @param {number[]} q @param {number[][]} keys @param {number} key @param {Float32Array} row
 */
function softmaxAt(q, keys, key, row) {
  const powers = keys.map((k, token) =>
    row[token] === 0 ? 0 : Math.exp(sum(k.map((value, i) => value * q[i])) / Math.sqrt(q.length)),
  );
  return powers[key] / sum(powers);
}
