/**
 * One attention weight, step by step: q · k, divided by √D_h, through softmax, and its share of v. The words and the
 * equations are in index.html; here they get their numbers.
 *
 * Shapes: L layers, H heads, N tokens, K head width.
 *
 * @import { LookResult, Tensor, ViTModel } from "./engine.js"
 */

import { signedColor } from "./colors.js";
import { byId, contextOf, make, resize, setAttributes, setText } from "./dom.js";
import { headAttention, numTokens, patchOffset, range, sum } from "./vit-maths.js";
import { percent, placeName, signed } from "./words.js";

const TOLERANCE = 2e-3; // a weight that differs more from softmax(q·k/√D) belongs to a model that adds a term
const EXTRA_TERM = "This model also adds a term for the distance between the two tokens, which the numbers above leave out.";

export class Arithmetic {
  #query = byId("query-token", HTMLSelectElement);
  #key = byId("key-token", HTMLSelectElement);
  /** @type {HTMLElement[]} */
  #tokenBars = [];
  /** @type {ViTModel | null} */
  #model = null;
  /** q, k and their product, by component @type {number[][]} */
  #vectors = [];

  /** @param {{ onQuery: (token: number) => void, onKey: (token: number) => void }} handlers */
  constructor({ onQuery, onKey }) {
    this.#query.addEventListener("change", () => onQuery(Number(this.#query.value)));
    this.#key.addEventListener("change", () => onKey(Number(this.#key.value)));
    byId("match").addEventListener("pointermove", (event) => this.#showComponent(event));
    byId("match").addEventListener("pointerleave", () => setText("component", ""));
  }

  /** @param {ViTModel} model */
  #fit(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const names = range(numTokens(model)).map((token) => tokenName(token, model));
    for (const select of [this.#query, this.#key]) {
      select.replaceChildren(...names.map((name, token) => make("option", { value: token }, name)));
    }
    this.#tokenBars = names.map(() => make("span"));
    byId("token-weights").replaceChildren(...this.#tokenBars);
  }

  /**
   * @param {object} content
   * @param {ViTModel} content.model
   * @param {LookResult | null} content.result
   * @param {number} content.layer
   * @param {number} content.head
   * @param {number} content.query  a token
   * @param {number} content.key  a token
   * @param {boolean} content.keyRemoved
   */
  paint({ model, result, layer, head, query, key, keyRemoved }) {
    this.#fit(model);
    this.#query.value = String(query);
    this.#key.value = String(key);
    setText("arithmetic-head", `head ${head + 1} of layer ${layer + 1}`);
    if (!result?.queries || !result.keys || !result.values || !result.attention) {
      setText("arithmetic-note", "Loading q, k and v …");
      return;
    }
    const tokens = numTokens(model);
    const q = vectorsOf(result.queries, layer, head)[query];
    const keys = vectorsOf(result.keys, layer, head);
    const values = vectorsOf(result.values, layer, head);
    const [k, v] = [keys[key], values[key]];
    const row = headAttention(result.attention, layer, head).subarray(query * tokens, (query + 1) * tokens);
    const weight = row[key];
    const product = q.map((value, i) => value * k[i]);
    const dot = sum(product);
    const scaled = dot / Math.sqrt(model.head_dim);

    this.#vectors = [q, k, product];
    paintStrips({ q, k });
    paintStrips({ product });
    paintStrips({
      v,
      weighted: v.map((value) => weight * value),
      output: v.map((_, i) => sum(values.map((each, token) => row[token] * each[i]))),
    });
    this.#paintWeights(model, row, key);
    setText("dot", signed(dot));
    setText("dot-again", signed(dot));
    setText("head-width", String(model.head_dim));
    setText("scaled", signed(scaled));
    setText("exponential", signed(Math.exp(scaled)));
    // the divisor follows from the weight itself, so that removed tokens do not count
    setText("exponentials", signed(weight > 0 ? Math.exp(scaled) / weight : 0));
    byId("softmax-numbers").classList.toggle("does-not-apply", keyRemoved);
    byId("softmax-removed").classList.toggle("does-not-apply", !keyRemoved);
    setText("weight", percent(weight));
    setText("taken", `${percent(weight)} of v`);
    const expected = keyRemoved ? 0 : softmaxAt(q, keys, key, row);
    setText("arithmetic-note", Math.abs(expected - weight) > TOLERANCE ? EXTRA_TERM : "");
  }

  /** @param {ViTModel} model @param {Float32Array} row  the weights of all tokens @param {number} key */
  #paintWeights(model, row, key) {
    const highest = Math.max(...row);
    this.#tokenBars.forEach((bar, token) => {
      bar.style.height = `${Math.max(1, (100 * row[token]) / highest)}%`;
      bar.classList.toggle("key", token === key);
      bar.title = `${tokenName(token, model)}: ${percent(row[token])}`;
    });
    const label = `All ${row.length} weights; this one is ${percent(row[key])}, the largest ${percent(highest)}.`;
    setAttributes(byId("token-weights"), { "aria-label": label });
  }

  /** @param {PointerEvent} event */
  #showComponent(event) {
    const bounds = event.target instanceof HTMLCanvasElement ? event.target.getBoundingClientRect() : null;
    if (bounds === null || this.#vectors.length === 0) return;
    const width = this.#vectors[0].length;
    const i = Math.min(width - 1, Math.max(0, Math.floor(((event.clientX - bounds.left) / bounds.width) * width)));
    const [q, k, product] = this.#vectors.map((vector) => signed(vector[i]));
    setText("component", `component ${i + 1}: ${q} × ${k} = ${product}`);
  }
}

/** @param {number} token @param {ViTModel} model */
function tokenName(token, model) {
  if (model.has_class_token && token === 0) return "the class token";
  return `patch ${placeName(token - patchOffset(model), model.grid)}`;
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

/** Paint vectors as coloured cells, on one common scale. @param {Record<string, number[]>} vectors  by strip */
function paintStrips(vectors) {
  const high = Math.max(...Object.values(vectors).flat().map(Math.abs)) || 1;
  for (const [name, values] of Object.entries(vectors)) {
    const canvas = byId(`strip-${name}`, HTMLCanvasElement);
    resize(canvas, values.length, 1);
    const image = new ImageData(values.length, 1);
    values.forEach((value, i) => image.data.set([...signedColor(value / high), 255], 4 * i));
    contextOf(canvas).putImageData(image, 0, 0);
  }
}
