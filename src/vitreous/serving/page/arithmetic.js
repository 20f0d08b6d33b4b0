/**
 * One attention weight, step by step: q · k, divided by √D_h, through softmax, and its share of v.
 *
 * Shapes: L layers, H heads, N tokens, K head width.
 *
 * @import { LookResult, Tensor, ViTModel } from "./engine.js"
 */

import { signedColor } from "./colors.js";
import { byId, contextOf, make, math, setAttributes, setText } from "./dom.js";
import { headAttention, numTokens, patchOffset, range, sum } from "./vit-maths.js";
import { percent, placeName, signed } from "./words.js";

const TOLERANCE = 2e-3; // a weight that differs more from softmax(q·k/√D) belongs to a model that adds a term

export class Arithmetic {
  #query = make("select", { "aria-label": "Query token" });
  #key = make("select", { "aria-label": "Key token" });
  #where = make("span", {});
  #strips = {
    q: strip("q"), k: strip("k"), product: strip("q × k"), v: strip("v"), weighted: strip("weight × v"), output: strip("sum"),
  };
  #match = step("1", "How well do they match?", "Multiply q and k number by number and add up: blue is negative, orange positive.");
  #scale = step("2", "Scale", "Otherwise the sums would grow with the width.");
  #softmax = step("3", "Compare with all tokens", "Softmax: its exponential, divided by the sum of all tokens' exponentials.");
  #take = step("4", "Take that share of v", "This share of v goes to the query token, with the shares of all other tokens.");
  #tokens = make("div", { class: "tokens", role: "img" });
  #component = make("p", { class: "component small soft" });
  #note = make("p", { class: "note small soft" });
  /** @type {HTMLElement[]} */
  #tokenBars = [];
  /** @type {ViTModel | null} */
  #model = null;
  /** q, k and their product, by component @type {number[][]} */
  #vectors = [];

  /**
   * @param {HTMLElement} place @param {{ onQuery: (token: number) => void, onKey: (token: number) => void }} handlers
   */
  constructor(place, { onQuery, onKey }) {
    const { q, k, product, v, weighted, output } = this.#strips;
    this.#match.body.append(q.row, k.row, product.row, this.#component);
    this.#softmax.body.append(this.#tokens);
    this.#take.body.append(v.row, weighted.row, output.row);
    byId("arithmetic-question").append("From ", this.#query, " to ", this.#key, " in ", this.#where);
    const steps = [this.#match, this.#scale, this.#softmax, this.#take].map(({ element }) => element);
    place.append(make("div", { class: "sums" }, ...steps), this.#note);
    this.#query.addEventListener("change", () => onQuery(Number(this.#query.value)));
    this.#key.addEventListener("change", () => onKey(Number(this.#key.value)));
    this.#match.body.addEventListener("pointermove", (event) => this.#showComponent(event));
    this.#match.body.addEventListener("pointerleave", () => setText(this.#component, ""));
  }

  /** @param {ViTModel} model */
  #fit(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const names = range(numTokens(model)).map((token) => tokenName(token, model));
    for (const select of [this.#query, this.#key]) {
      select.replaceChildren(...names.map((name, token) => make("option", { value: token }, name)));
    }
    this.#tokenBars = names.map(() => make("span", {}));
    this.#tokens.replaceChildren(...this.#tokenBars);
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
    setText(this.#where, `head ${head + 1} of layer ${layer + 1}`);
    if (!result?.queries || !result.keys || !result.values || !result.attention) {
      setText(this.#note, "Loading q, k and v …");
      return;
    }
    const tokens = numTokens(model);
    const q = vectorsOf(result.queries, layer, head)[query];
    const keys = vectorsOf(result.keys, layer, head);
    const values = vectorsOf(result.values, layer, head);
    const [k, v] = [keys[key], values[key]];
    const row = headAttention(result.attention, layer, head).subarray(query * tokens, (query + 1) * tokens);
    const weight = row[key];
    const highest = Math.max(...row);
    const product = q.map((value, i) => value * k[i]);
    const dot = sum(product);
    const scaled = dot / Math.sqrt(model.head_dim);

    this.#vectors = [q, k, product];
    paintStrips([this.#strips.q, q], [this.#strips.k, k]);
    paintStrips([this.#strips.product, product]);
    paintStrips(
      [this.#strips.v, v],
      [this.#strips.weighted, v.map((value) => weight * value)],
      [this.#strips.output, v.map((_, i) => sum(values.map((each, token) => row[token] * each[i])))],
    );
    this.#tokenBars.forEach((bar, token) => {
      bar.style.height = `${Math.max(1, (100 * row[token]) / highest)}%`;
      bar.classList.toggle("key", token === key);
      bar.title = `${tokenName(token, model)}: ${percent(row[token])}`;
    });
    const label = `All ${tokens} weights; this one is ${percent(weight)}, the largest ${percent(highest)}.`;
    setAttributes(this.#tokens, { "aria-label": label });

    const qk = () => [math("mi", "q"), math("mo", "·"), math("mi", "k")];
    const width = math("msub", math("mi", "D"), math("mi", "h"));
    this.#match.show(qk(), signed(dot));
    this.#scale.show(
      [math("mfrac", math("mrow", ...qk()), math("msqrt", width))],
      signed(scaled),
      math("mfrac", math("mn", signed(dot)), math("msqrt", math("mn", String(model.head_dim)))),
    );
    const total = math("mrow", math("munder", math("mo", "∑"), math("mi", "j")), power("q·kⱼ/√D"));
    // the divisor follows from the weight itself, so that removed tokens do not count
    const divisor = weight > 0 ? Math.exp(scaled) / weight : 0;
    this.#softmax.show(
      [math("mfrac", power("q·k/√D"), total)],
      percent(weight),
      keyRemoved
        ? math("mtext", "removed, so 0")
        : math("mfrac", math("mn", signed(Math.exp(scaled))), math("mn", signed(divisor))),
    );
    this.#take.show([math("mi", "A"), math("mi", "v")], `${percent(weight)} of v`);
    const differs = Math.abs((keyRemoved ? 0 : softmaxAt(q, keys, key, row)) - weight) > TOLERANCE;
    const note = "This model also adds a term for the distance between the two tokens, which the numbers above leave out.";
    setText(this.#note, differs ? note : "");
  }

  /** @param {PointerEvent} event */
  #showComponent(event) {
    const bounds = event.target instanceof HTMLCanvasElement ? event.target.getBoundingClientRect() : null;
    if (bounds === null || this.#vectors.length === 0) return;
    const width = this.#vectors[0].length;
    const i = Math.min(width - 1, Math.max(0, Math.floor(((event.clientX - bounds.left) / bounds.width) * width)));
    const [q, k, product] = this.#vectors.map((vector) => signed(vector[i]));
    setText(this.#component, `component ${i + 1}: ${q} × ${k} = ${product}`);
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

/** Make a row that shows a vector as coloured cells. @param {string} name */
function strip(name) {
  const canvas = make("canvas", { class: "strip pixels", height: 1, "aria-hidden": "true" });
  return { canvas, row: make("div", { class: "strip-row" }, make("span", {}, name), canvas) };
}

/** Paint vectors on one common scale. @param {[ReturnType<typeof strip>, number[]][]} strips */
function paintStrips(...strips) {
  const high = Math.max(...strips.flatMap(([, values]) => values.map(Math.abs))) || 1;
  for (const [{ canvas }, values] of strips) {
    canvas.width = values.length;
    const image = new ImageData(values.length, 1);
    values.forEach((value, i) => image.data.set([...signedColor(value / high), 255], 4 * i));
    contextOf(canvas).putImageData(image, 0, 0);
  }
}

/**
 * Make one step of the calculation: its title, its equation with numbers, its result.
 * @param {string} number @param {string} title @param {string} words
 */
function step(number, title, words) {
  const equation = make("div", { class: "sum-equation" });
  const result = make("output", { class: "result number" });
  const body = make("div", { class: "sum-body" });
  const heading = make("h3", {}, make("span", { class: "step-number" }, number), title);
  const line = make("div", { class: "sum-line" }, equation, result);
  return {
    element: make("div", { class: "sum" }, heading, line, make("p", { class: "sum-words" }, words), body),
    body,
    /** @param {Node[]} left @param {string} value @param {Node} [withNumbers] */
    show(left, value, withNumbers) {
      const parts = [...left, math("mo", "="), ...(withNumbers ? [withNumbers, math("mo", "=")] : [])];
      const formula = math("math", math("mrow", ...parts));
      formula.setAttribute("displaystyle", "true"); // fractions at full size
      equation.replaceChildren(formula);
      setText(result, value);
    },
  };
}

/** @param {string} exponent */
function power(exponent) {
  return math("msup", math("mi", "e"), math("mtext", exponent));
}
