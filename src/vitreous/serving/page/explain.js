/**
 * Where one number of the diagram comes from: every node's arithmetic with the actual numbers, as a few sums that
 * arithmetic.js shows.
 *
 * @import { NodeName } from "./nodes.js"
 * @import { ViTModel } from "./engine.js"
 * @import { Trace } from "./forward.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {object} Sum
 * @property {string} title
 * @property {Element} math  up to the equals sign
 * @property {string} result
 * @property {string} words
 * @property {[string, ArrayLike<number>][]} [strips]  named
 * @property {boolean} [oneScale]  whether the strips share a scale
 * @property {number} [across]  numbers in a row of each strip, where it is shown as a picture
 * @property {{ values: ArrayLike<number>, chosen: number, names: (i: number) => string }} [columns]  a bar chart
 *
 * @typedef {object} Place  one number of a node
 * @property {NodeName} node
 * @property {number} layer
 * @property {number} token
 * @property {number} at  the component
 *
 * @typedef {{ model: ViTModel, trace: Trace, weights: Weights }} Source
 */

import { numbersOf, rowOf } from "./nodes.js";
import { GELU, moments, positionsOf, windowsOf } from "./forward.js";
import { equation, fraction, root, row, sub, sum, sup, words } from "./mathml.js";
import { text } from "./texts.js";
import { numPatches, patchOffset, sum as total } from "./vit-maths.js";
import { percent, signed, tokenName } from "./words.js";

/** Return the sums that lead to one number. @param {Source} source @param {Place} place @returns {Sum[]} */
export function explain(source, place) {
  const { model, trace, weights } = source;
  const { layer, token, at, node } = place;
  const own = trace.layers[layer];
  const block = `blocks.${layer}`;
  const vector = (/** @type {Float32Array} */ data, width = model.dim) => data.subarray(token * width, (token + 1) * width);
  const before = vector(layer === 0 ? trace.tokens : trace.layers[layer - 1].output);
  const value = rowOf(numbersOf(node, trace, layer, model), token)?.[at] ?? 0;
  switch (node) {
    case "embedded":
      return embedding(source, place);
    case "tokens":
      return tokens(source, place);
    case "normed":
      return layerNorm(source, before, `${block}.norm1`, at);
    case "normedMiddle":
      return layerNorm(source, vector(own.middle), `${block}.norm2`, at);
    case "final":
      return model.pool === "cls"
        ? layerNorm(source, vector(trace.layers.at(-1)?.output ?? trace.tokens), "norm", at)
        : model.architecture?.norm_after_pool
          ? [{ title: text("sum.mean"), math: equation(fraction("1", "N"), sum("i"), sub("z", "i"), "="), result: signed(trace.read[at]), words: text("sum.mean.before") }, ...layerNorm(source, trace.read, "norm", at)]
          : [{ title: text("sum.mean"), math: equation(fraction("1", "N"), sum("i"), "LN", "(", sub("z", "i"), ")", "="), result: signed(value), words: text("sum.mean.words") }];
    case "q":
    case "k":
    case "v": {
      const part = { q: 0, k: 1, v: 2 }[node] * model.dim + at;
      return product(vector(own.normed), weights, `${block}.attn.qkv`, part, { x: "LN(z)", w: `W ${node}`, value });
    }
    case "heads":
      return weightedSum(source, place, value);
    case "attended":
      return product(vector(own.heads), weights, `${block}.attn.proj`, at, { x: "A·v", w: "W o", value });
    case "middle":
      return residual(before[at], vector(own.attended)[at], "z", text("sum.attention"), value);
    case "hidden":
      return product(vector(own.normedMiddle), weights, `${block}.mlp.fc1`, at, { x: "LN(z′)", w: "W 1", value });
    case "active":
      return gelu(source, vector(own.hidden, own.hidden.length / (trace.tokens.length / model.dim))[at]);
    case "mlp":
      return product(vector(own.active, own.active.length / (trace.tokens.length / model.dim)), weights, `${block}.mlp.fc2`, at, { x: "GELU", w: "W 2", value });
    case "output":
      return residual(vector(own.middle)[at], vector(own.mlp)[at], "z′", "MLP", value);
    case "logits":
      return product(trace.features, weights, "head", at, { x: "y", w: "W", value });
    case "probabilities":
      return softmaxOfClasses(source, at);
  }
}

/**
 * A row of a matrix times a vector, plus a bias.
 * @param {ArrayLike<number>} x @param {Weights} weights @param {string} name @param {number} at  the row
 * @param {{ x: string, w: string, value: number, across?: number }} names @returns {Sum[]}
 */
function product(x, weights, name, at, { x: input, w, value, across }) {
  const width = x.length;
  const matrix = weights[`${name}.weight`].subarray(at * width, (at + 1) * width);
  const products = matrix.map((weight, i) => weight * x[i]);
  const bias = weights[`${name}.bias`]?.[at] ?? 0;
  const [letter, index = ""] = w.split(" ");
  const times = letter === "E" ? row("x", index ? sub("E", index) : "E") : row(index ? sub(letter, index) : letter, "x");
  return [
    {
      title: text("sum.multiply"),
      math: equation(sum("i"), sub("x", "i"), sub("w", "i"), "="),
      result: signed(total(products)),
      words: text("sum.multiply.words", width, input, `${letter}${index}`, at + 1),
      strips: [[input, x], [text("sum.row", `${letter}${index}`, at + 1), matrix], ["×", products]],
      across,
    },
    {
      title: text("sum.bias"),
      math: equation(times, "+", "b", "=", signed(total(products)), "+", bracketed(bias), "="),
      result: signed(value),
      words: text("sum.bias.words"),
    },
  ];
}

/** @param {Source} source @param {Place} place @returns {Sum[]} */
function embedding({ model, trace, weights }, { token, at }) {
  const patch = token - patchOffset(model);
  const windows = windowsOf(trace.image, model);
  const size = windows.length / numPatches(model);
  const x = windows.subarray(patch * size, (patch + 1) * size);
  const value = trace.embedded[patch * model.dim + at];
  const first = weights["patch_embed.proj.weight"];
  if (!model.architecture?.embed_hidden) return product(x, weights, "patch_embed.proj", at, { x: text("node.pixels"), w: "E", value, across: (model.architecture?.window ?? model.patch_size)[1] });
  const hidden = weights["patch_embed.proj.bias"].map((bias, h) => {
    return GELU.erf(bias + total(x.map((pixel, i) => pixel * first[h * size + i])));
  });
  return product(hidden, weights, "patch_embed.fc", at, { x: "GELU(x E)", w: "E 2", value });
}

/** @param {Source} source @param {Place} place @returns {Sum[]} */
function tokens({ model, trace, weights }, { token, at }) {
  const patch = token - patchOffset(model);
  const own = patch < 0 ? weights.cls_token[at] : trace.embedded[patch * model.dim + at];
  const position = positionsOf(model, weights)?.[token * model.dim + at] ?? 0;
  const name = patch < 0 ? sub("x", "class") : row(sub("x", "p"), "E");
  /** @type {Sum[]} */
  const sums = [{
    title: text("sum.position"),
    math: equation(name, "+", sub("E", "pos"), "=", signed(own), "+", bracketed(position), "="),
    result: signed(own + position),
    words: text(patch < 0 ? "sum.position.class" : "sum.position.patch"),
  }];
  if (model.architecture?.pre_norm) {
    sums.push({ title: "LayerNorm", math: equation("LN", "(", "x", ")", "="), result: signed(trace.tokens[token * model.dim + at]), words: text("sum.preNorm") });
  }
  return sums;
}

/** @param {Source} source @param {Float32Array} x @param {string} name @param {number} at @returns {Sum[]} */
function layerNorm({ model, weights }, x, name, at) {
  const { mean, deviation } = moments(x, model.architecture?.norm_eps ?? 1e-6);
  const [gain, shift] = [weights[`${name}.weight`][at], weights[`${name}.bias`][at]];
  const normal = (x[at] - mean) / deviation;
  return [
    {
      title: text("sum.moments"),
      math: equation("μ", "=", signed(mean, 3), ",", "σ", "="),
      result: signed(deviation, 3),
      words: text("sum.moments.words", x.length),
      strips: [["z", x]],
    },
    {
      title: text("sum.standardise"),
      math: equation(fraction("z − μ", "σ"), "=", fraction(`${signed(x[at])} − ${bracketed(mean, 3)}`, signed(deviation, 3)), "="),
      result: signed(normal),
      words: text("sum.standardise.words"),
    },
    {
      title: text("sum.gain"),
      math: equation("γ", "x", "+", "β", "=", signed(gain), "·", bracketed(normal), "+", bracketed(shift), "="),
      result: signed(gain * normal + shift),
      words: text("sum.gain.words"),
    },
  ];
}

/** @param {Source} source @param {Place} place @param {number} value @returns {Sum[]} */
function weightedSum({ model, trace }, { layer, token, at }, value) {
  const { attention, v } = trace.layers[layer];
  const count = trace.tokens.length / model.dim;
  const head = Math.floor(at / model.head_dim);
  const start = (head * count + token) * count;
  const weights = attention.subarray(start, start + count);
  const carried = weights.map((_, j) => v[j * model.dim + at]);
  return [{
    title: text("sum.weighted", head + 1),
    math: equation(sum("j"), sub("A", "j"), sub("v", "j"), "="),
    result: signed(value),
    words: text("sum.weighted.words", count),
    strips: [["v", carried], ["A × v", carried.map((one, j) => one * weights[j])]],
    columns: { values: weights, chosen: -1, names: (j) => `${tokenName(j, model)}: ${percent(weights[j])}` },
  }];
}

/** @param {number} stream @param {number} added @param {string} name @param {string} what @param {number} value @returns {Sum[]} */
function residual(stream, added, name, what, value) {
  return [{
    title: text("sum.add"),
    math: equation(name, "+", words(what), "=", signed(stream), "+", bracketed(added), "="),
    result: signed(value),
    words: text("sum.add.words"),
  }];
}

/** Return a number for an equation, a negative one in brackets. @param {number} value @param {number} [digits] */
function bracketed(value, digits = 2) {
  const written = signed(value, digits);
  return written.startsWith("−") ? `( ${written} )` : written;
}

/** @param {Source} source @param {number} x @returns {Sum[]} */
function gelu({ model }, x) {
  const value = GELU[model.architecture?.gelu ?? "erf"](x);
  const share = x === 0 ? 0.5 : value / x;
  return [{
    title: "GELU",
    math: equation("x", "Φ", "(", "x", ")", "=", signed(x), "·", signed(share, 3), "="),
    result: signed(value),
    words: text("sum.gelu.words", percent(share)),
  }];
}

/** @param {Source} source @param {number} at @returns {Sum[]} */
function softmaxOfClasses({ model, trace }, at) {
  const { logits, probabilities } = trace;
  const { temperature, class_names } = model;
  const scaled = logits.map((logit) => logit / temperature);
  const powers = scaled.map(Math.exp);
  /** @type {Sum[]} */
  const sums = [{
    title: text("sum.classes"),
    math: equation(fraction(sup("e", sub("l", "i")), row(sum("j"), sup("e", sub("l", "j")))), "=", fraction(signed(powers[at]), signed(total(powers))), "="),
    result: percent(probabilities[at]),
    words: text("sum.classes.words"),
    columns: { values: probabilities, chosen: at, names: (i) => `${class_names[i]}: ${percent(probabilities[i])}` },
  }];
  if (Math.abs(temperature - 1) < 1e-6) return sums;
  return [{
    title: text("sum.temperature"),
    math: equation(fraction("l", "T"), "=", fraction(signed(logits[at]), signed(temperature, 3)), "="),
    result: signed(scaled[at]),
    words: text("sum.temperature.words"),
  }, ...sums];
}

/**
 * One attention weight: q · k, scaled, through softmax, and its share of v.
 * @param {object} weight
 * @param {number[]} weight.q @param {number[][]} weight.keys @param {number[][]} weight.values  by token
 * @param {ArrayLike<number>} weight.row  the weights of all tokens
 * @param {number} weight.key @param {boolean} weight.removed @param {ViTModel} weight.model @returns {Sum[]}
 */
export function explainWeight({ q, keys, values, row: shares, key, removed, model }) {
  const [k, v, weight] = [keys[key], values[key], shares[key]];
  const products = q.map((value, i) => value * k[i]);
  const dot = total(products);
  const scaled = dot / Math.sqrt(q.length);
  const power = Math.exp(scaled);
  const scaledDot = fraction(row("q", "·", "k"), root(sub("D", "h")));
  return [
    {
      title: text("sum.match"),
      math: equation("q", "·", "k", "="),
      result: signed(dot),
      words: text("sum.match.words"),
      strips: [["q", q], ["k", k], ["q × k", products]],
    },
    {
      title: text("sum.scale"),
      math: equation(scaledDot, "=", fraction(signed(dot), root(String(q.length))), "="),
      result: signed(scaled),
      words: text("sum.scale.words"),
    },
    {
      title: text("sum.compare"),
      math: removed
        ? equation(words(text("sum.removed")), "=")
        : equation(fraction(sup("e", "s"), row(sum("j"), sup("e", sub("s", "j")))), "=", fraction(signed(power), signed(weight > 0 ? power / weight : 0)), "="),
      result: percent(weight),
      words: text("sum.compare.words"),
      columns: { values: shares, chosen: key, names: (j) => `${tokenName(j, model)}: ${percent(shares[j])}` },
    },
    {
      title: text("sum.share"),
      math: equation("A", "v", "="),
      result: text("sum.ofV", percent(weight)),
      words: text("sum.share.words"),
      oneScale: true,
      strips: [
        ["v", v],
        [text("sum.weightTimesV"), v.map((value) => weight * value)],
        [text("sum.all"), v.map((_, i) => total(values.map((each, token) => shares[token] * each[i])))],
      ],
    },
  ];
}
