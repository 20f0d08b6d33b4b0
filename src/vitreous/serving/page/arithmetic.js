/**
 * One attention weight, worked out: q · k, over √D_h, through softmax, and its share of v.
 *
 * Shapes: L layers, H heads, N tokens, K head width.
 *
 * @typedef {import("./engine.js").Answer} Answer
 * @typedef {import("./engine.js").Tensor} Tensor
 * @typedef {import("./engine.js").ViTModel} ViTModel
 */

import { signedColor } from "./colors.js";
import { byId, make, math, pen, say, setAttributes } from "./dom.js";
import { headAttention, tokensOf } from "./vit-maths.js";
import { percent, placeOf, signed } from "./words.js";

const UNLIKE = 2e-3; // a weight that differs this much from softmax(q k / √D) comes from a model that adds something

export class Arithmetic {
  #asks = make("select", { "aria-label": "The token that asks" });
  #answers = make("select", { "aria-label": "The token that answers" });
  #where = make("span", {});
  #strips = {
    q: strip("q"), k: strip("k"), product: strip("q × k"), v: strip("v"), share: strip("its share"), output: strip("all shares"),
  };
  #fit = step("1", "How well do they fit?", "Multiply q and k number by number, and add up: blue is below zero, orange above.");
  #scaled = step("2", "Scaled down", "Else the sums would grow with the width.");
  #softmax = step("3", "Against all others", "Softmax: its power of e among those of all tokens.");
  #taken = step("4", "What is taken", "So much of v goes to the token that asks, and the others' shares with it.");
  #tokens = make("div", { class: "tokens", role: "img" });
  #component = make("p", { class: "component small soft" });
  #note = make("p", { class: "note small soft" });
  /** @type {HTMLElement[]} */
  #tokenBars = [];
  /** @type {ViTModel | null} */
  #model = null;
  /** @type {number[][]} the vectors shown, by component */
  #shown = [];

  /**
   * @param {HTMLElement} place
   * @param {{ onAsk: (token: number) => void, onAnswer: (token: number) => void }} handlers
   */
  constructor(place, { onAsk, onAnswer }) {
    this.place = place;
    const { q, k, product, v, share, output } = this.#strips;
    this.#fit.body.append(q.row, k.row, product.row, this.#component);
    this.#softmax.body.append(this.#tokens);
    this.#taken.body.append(v.row, share.row, output.row);
    byId("arithmetic-question").append(this.#asks, " asks, ", this.#answers, " answers, in ", this.#where);
    const steps = [this.#fit, this.#scaled, this.#softmax, this.#taken].map((each) => each.whole);
    place.append(make("div", { class: "sums" }, ...steps), this.#note);
    this.#asks.addEventListener("change", () => onAsk(Number(this.#asks.value)));
    this.#answers.addEventListener("change", () => onAnswer(Number(this.#answers.value)));
    this.#fit.body.addEventListener("pointermove", (event) => this.#point(event));
    this.#fit.body.addEventListener("pointerleave", () => say(this.#component, ""));
  }

  /** @param {ViTModel} model */
  #shape(model) {
    if (this.#model?.id === model.id) return;
    this.#model = model;
    const names = Array.from({ length: tokensOf(model) }, (_, token) => tokenName(token, model));
    for (const select of [this.#asks, this.#answers]) {
      select.replaceChildren(...names.map((name, token) => make("option", { value: token }, name)));
    }
    this.#tokenBars = names.map(() => make("span", {}));
    this.#tokens.replaceChildren(...this.#tokenBars);
  }

  /**
   * @param {object} what
   * @param {ViTModel} what.model
   * @param {Answer | null} what.answer
   * @param {number} what.layer
   * @param {number} what.head
   * @param {number} what.query  a token
   * @param {number} what.key  a token
   * @param {boolean} what.keyRemoved
   */
  paint({ model, answer, layer, head, query, key, keyRemoved }) {
    this.#shape(model);
    this.#asks.value = String(query);
    this.#answers.value = String(key);
    say(this.#where, `head ${head + 1} of layer ${layer + 1}.`);
    if (!answer?.queries || !answer.keys || !answer.values || !answer.attention) {
      say(this.#note, "Asking the model for its q, k and v …");
      return;
    }
    const q = vectorOf(answer.queries, layer, head, query);
    const k = vectorOf(answer.keys, layer, head, key);
    const v = vectorOf(answer.values, layer, head, key);
    const tokens = tokensOf(model);
    const root = Math.sqrt(model.head_dim);
    const product = q.map((value, i) => value * k[i]);
    const dot = sum(product);
    const row = headAttention(answer.attention, layer, head).subarray(query * tokens, (query + 1) * tokens);
    const weight = row[key];
    // What the softmax divides by, in the scale of e^(q·k/√D): from the weight itself, so that removed tokens count right.
    const whole = weight > 0 ? Math.exp(dot / root) / weight : 0;
    const output = v.map((_, i) => {
      let total = 0;
      for (let token = 0; token < tokens; token++) total += row[token] * vectorOf(/** @type {Tensor} */ (answer.values), layer, head, token)[i];
      return total;
    });

    this.#shown = [q, k, product];
    const most = Math.max(...q.map(Math.abs), ...k.map(Math.abs));
    this.#strips.q.paint(q, most);
    this.#strips.k.paint(k, most);
    this.#strips.product.paint(product, Math.max(...product.map(Math.abs)));
    const mostTaken = Math.max(...v.map(Math.abs), ...output.map(Math.abs));
    this.#strips.v.paint(v, mostTaken);
    this.#strips.share.paint(v.map((value) => weight * value), mostTaken);
    this.#strips.output.paint(output, mostTaken);
    this.#tokenBars.forEach((bar, token) => {
      bar.style.height = `${Math.max(1, (100 * row[token]) / Math.max(...row))}%`;
      bar.classList.toggle("key", token === key);
      bar.title = `${tokenName(token, model)}: ${percent(row[token])}`;
    });
    setAttributes(this.#tokens, { "aria-label": `All ${tokens} weights; this one is ${percent(weight)}, the largest ${percent(Math.max(...row))}.` });

    this.#fit.say([math("mi", "q"), math("mo", "·"), math("mi", "k")], signed(dot));
    this.#scaled.say(
      [math("mfrac", math("mrow", math("mi", "q"), math("mo", "·"), math("mi", "k")), math("msqrt", math("msub", math("mi", "D"), math("mi", "h"))))],
      signed(dot / root),
      [math("mfrac", math("mn", signed(dot)), math("msqrt", math("mn", String(model.head_dim))))],
    );
    this.#softmax.say(
      [math("mfrac", power("q·k/√D"), math("mrow", math("munder", math("mo", "∑"), math("mi", "j")), power("q·kⱼ/√D")))],
      percent(weight),
      keyRemoved ? [math("mtext", "removed, so nothing")] : [math("mfrac", math("mn", signed(Math.exp(dot / root))), math("mn", signed(whole)))],
    );
    this.#taken.say([math("mi", "A"), math("mi", "v")], `${percent(weight)} of v`);
    const expected = keyRemoved ? 0 : softmaxAt(answer.queries, answer.keys, layer, head, query, key, row);
    const differs = Math.abs(expected - weight) > UNLIKE;
    say(
      this.#note,
      differs
        ? "This model also adds a term for how far apart the two tokens are, which the numbers above leave out."
        : "",
    );
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const cells = event.target instanceof HTMLCanvasElement ? event.target.getBoundingClientRect() : null;
    if (cells === null || this.#shown.length === 0) return;
    const i = Math.min(this.#shown[0].length - 1, Math.max(0, Math.floor(((event.clientX - cells.left) / cells.width) * this.#shown[0].length)));
    const [q, k, product] = this.#shown.map((vector) => signed(vector[i]));
    say(this.#component, `component ${i + 1}: ${q} × ${k} = ${product}`);
  }
}

/**
 * @param {number} token
 * @param {ViTModel} model
 */
export function tokenName(token, model) {
  if (model.has_class_token && token === 0) return "the class token";
  return `patch ${placeOf(token - Number(model.has_class_token), model.grid)}`;
}

/**
 * @param {Tensor} tensor  (L, H, N, K)
 * @param {number} layer
 * @param {number} head
 * @param {number} token
 * @returns {number[]}
 */
function vectorOf({ data, shape: [, heads, tokens, width] }, layer, head, token) {
  const start = ((layer * heads + head) * tokens + token) * width;
  return Array.from(data.subarray(start, start + width));
}

/** @param {number[]} values */
function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/**
 * The weight by q, k and softmax alone, over the tokens that are looked at at all.
 * @param {Tensor} queries
 * @param {Tensor} keys
 * @param {number} layer
 * @param {number} head
 * @param {number} query
 * @param {number} key
 * @param {Float32Array} row
 */
function softmaxAt(queries, keys, layer, head, query, key, row) {
  const q = vectorOf(queries, layer, head, query);
  const powerOf = (/** @type {number} */ token) =>
    row[token] === 0 ? 0 : Math.exp(sum(vectorOf(keys, layer, head, token).map((value, i) => value * q[i])) / Math.sqrt(q.length));
  return powerOf(key) / sum(Array.from(row, (_, token) => powerOf(token)));
}

/**
 * A vector as a strip of coloured cells.
 * @param {string} name
 */
function strip(name) {
  const canvas = make("canvas", { class: "strip pixels", height: 1, "aria-hidden": "true" });
  const row = make("div", { class: "strip-row" }, make("span", {}, name), canvas);
  return {
    row,
    /**
     * @param {number[]} values
     * @param {number} most
     */
    paint(values, most) {
      canvas.width = values.length;
      const image = new ImageData(values.length, 1);
      values.forEach((value, i) => image.data.set([...signedColor(value / (most || 1)), 255], 4 * i));
      pen(canvas).putImageData(image, 0, 0);
    },
  };
}

/**
 * A step of the sum: its question, its equation with the numbers put in, its result.
 * @param {string} number
 * @param {string} title
 * @param {string} words
 */
function step(number, title, words) {
  const equation = make("div", { class: "sum-equation" });
  const result = make("output", { class: "result number" });
  const body = make("div", { class: "sum-body" });
  const heading = make("h3", {}, make("span", { class: "step-number" }, number), title);
  const whole = make("div", { class: "sum" }, heading, make("div", { class: "sum-line" }, equation, result), make("p", { class: "sum-words" }, words), body);
  return {
    whole,
    body,
    /**
     * @param {Node[]} left
     * @param {string} value
     * @param {Node[]} [numbers]
     */
    say(left, value, numbers) {
      const parts = [...left, math("mo", "="), ...(numbers ? [...numbers, math("mo", "=")] : [])];
      const formula = math("math", math("mrow", ...parts));
      formula.setAttribute("displaystyle", "true"); // fractions at full size
      equation.replaceChildren(formula);
      say(result, value);
    },
  };
}

/** @param {string} exponent */
function power(exponent) {
  return math("msup", math("mi", "e"), math("mtext", exponent));
}
