/**
 * The forward pass of models/vit.py in JavaScript, with every intermediate: what the diagram shows and the arithmetic
 * explains. tests/page/test_forward.py compares all of them with the taps of vit.py.
 *
 * Shapes: P patches, N tokens (the class token first, if there is one), D width, H heads, M width of the MLP.
 * Matrices are flat, row by row.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {object} LayerTrace  of one layer
 * @property {Float32Array} normed  (N, D): LN(z)
 * @property {Float32Array} q  (N, D): the heads side by side, as are k and v
 * @property {Float32Array} k
 * @property {Float32Array} v
 * @property {Float32Array} attention  (H, N, N)
 * @property {Float32Array} heads  (N, D): the weighted sums of v
 * @property {Float32Array} attended  (N, D): the heads' output, projected
 * @property {Float32Array} middle  (N, D): z' = z + attended
 * @property {Float32Array} normedMiddle  (N, D): LN(z')
 * @property {Float32Array} hidden  (N, M): before GELU
 * @property {Float32Array} active  (N, M): after GELU
 * @property {Float32Array} mlp  (N, D)
 * @property {Float32Array} output  (N, D): z' + mlp
 *
 * @typedef {object} Trace
 * @property {Float32Array} image  (channels, height, width), normalised
 * @property {Float32Array} embedded  (P, D): x E + b
 * @property {Float32Array} tokens  (N, D): z_0
 * @property {LayerTrace[]} layers
 * @property {Float32Array} normed  (N, D): LN(z_L); z_L where the norm is after the pooling
 * @property {Float32Array} read  (D,): what the pooling returns
 * @property {Float32Array} pooled  (D,): y, which is LN(read) where the norm is after the pooling
 * @property {Float32Array} features  (D,): what the last matrix multiplies
 * @property {Float32Array} logits  (classes,)
 * @property {Float32Array} probabilities  (classes,)
 * @property {Float32Array} lens  (L + 1, classes): the probabilities read out after the embedding and after each layer
 *
 * @typedef {object} TraceMasks
 * @property {ArrayLike<number> | null} headMask  (L · H), 0 removes the head
 * @property {ArrayLike<number> | null} kept  (P,), 0 where a patch is removed or skipped
 */

import { multiply } from "./train/kernels.js";
import { numPatches, numTokens, patchOffset, softmax } from "./vit-maths.js";

const MOST_PRODUCTS = 400_000_000; // about half a second

/**
 * Return why a model's intermediates are not computed here, as a key of the texts; null: they are.
 * @param {ViTModel} model @returns {"noWeights" | "otherModel" | "tooLarge" | null}
 */
export function whyNotTraced(model) {
  const { architecture: its, weights, pool } = model;
  if (!weights || !its) return "noWeights";
  if (its.has_stem || its.fit === "resize" || !["learned", "learned-2d", "none"].includes(its.positions)) return "otherModel";
  if (pool === "seq") return "otherModel";
  return productsOf(model) > MOST_PRODUCTS ? "tooLarge" : null;
}

/** Return how many products a forward pass takes, about. @param {ViTModel} model */
export function productsOf(model) {
  const { depth, dim, architecture } = model;
  const tokens = numTokens(model);
  return depth * tokens * (4 * dim * dim + 2 * dim * (architecture?.mlp_dim ?? 4 * dim) + 2 * dim * tokens);
}

/**
 * Return x Wᵀ + b for every row of x.
 * @param {Float32Array} x  (rows, width) @param {Float32Array} weight  (out, width) @param {Float32Array} [bias]  (out,)
 * @param {number} [width]
 */
export function linear(x, weight, bias, width = weight.length / (bias?.length ?? 1)) {
  const [rows, out] = [x.length / width, weight.length / width];
  const y = new Float32Array(rows * out);
  multiply(y, x, weight, rows, out, width, bias);
  return y;
}

/** Return the mean and √(variance + ε) of a vector. @param {ArrayLike<number>} x @param {number} eps */
export function moments(x, eps) {
  let [mean, variance] = [0, 0];
  for (let i = 0; i < x.length; i++) mean += x[i] / x.length;
  for (let i = 0; i < x.length; i++) variance += (x[i] - mean) ** 2 / x.length;
  return { mean, deviation: Math.sqrt(variance + eps) };
}

/**
 * Return LayerNorm of every row.
 * @param {Float32Array} x @param {Float32Array} gain @param {Float32Array} shift @param {number} eps
 */
function layerNorm(x, gain, shift, eps) {
  const [width, y] = [gain.length, new Float32Array(x.length)];
  for (let start = 0; start < x.length; start += width) {
    const { mean, deviation } = moments(x.subarray(start, start + width), eps);
    for (let i = 0; i < width; i++) y[start + i] = ((x[start + i] - mean) / deviation) * gain[i] + shift[i];
  }
  return y;
}

/** Return erf(x), to 1.2e-7 (Numerical Recipes, 6.2.2). @param {number} x */
function erf(x) {
  const t = 1 / (1 + 0.5 * Math.abs(x));
  const series = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
  ].reduceRight((sum, coefficient) => coefficient + t * sum, 0);
  const rest = t * Math.exp(-x * x + series);
  return x >= 0 ? 1 - rest : rest - 1;
}

/** @type {Record<"erf" | "tanh" | "quick", (x: number) => number>} */
export const GELU = {
  erf: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  quick: (x) => x / (1 + Math.exp(-1.702 * x)),
};

/** @param {Float32Array} one @param {Float32Array} other */
function add(one, other) {
  return one.map((value, i) => value + other[i]);
}

/**
 * Return the numbers that each patch's token is computed from, (P, channels · height · width of the window); what lies
 * beyond the image is 0.
 * @param {Float32Array} image  (channels, height, width), as the embedding multiplies it @param {ViTModel} model
 */
export function windowsOf(image, model) {
  const { grid: [rows, columns], patch_size: [tall, wide], image_size: [height, width], channels, architecture } = model;
  const [windowHeight, windowWidth] = architecture?.window ?? [tall, wide];
  const [above, before] = [(windowHeight - tall) / 2, (windowWidth - wide) / 2];
  const windows = new Float32Array(rows * columns * channels * windowHeight * windowWidth);
  let at = 0;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      for (let channel = 0; channel < channels; channel++) {
        for (let i = 0; i < windowHeight; i++) {
          for (let j = 0; j < windowWidth; j++, at++) {
            const [y, x] = [row * tall - above + i, column * wide - before + j];
            if (y >= 0 && y < height && x >= 0 && x < width) windows[at] = image[(channel * height + y) * width + x];
          }
        }
      }
    }
  }
  return windows;
}

/** Return the image as the embedding multiplies it. @param {ViTModel} model @param {Weights} weights @param {Uint8Array} pixels */
function normalised({ image_size: [height, width], preprocessing: { mean, std }, architecture }, weights, pixels) {
  const area = height * width;
  const offset = architecture?.window ? weights.background : null; // so that the zeros beyond the border are background
  return Float32Array.from(pixels, (value, i) => {
    const channel = Math.floor(i / area);
    return (value / 255 - mean[channel]) / std[channel] - (offset?.[channel] ?? 0);
  });
}

/** Return E_pos for all tokens, (N, D), or null. @param {ViTModel} model @param {Weights} weights */
export function positionsOf(model, weights) {
  const { grid: [rows, columns], dim } = model;
  if (weights.pos_embed) return weights.pos_embed;
  if (!weights.pos_embed_row) return null;
  const [half, offset] = [dim / 2, patchOffset(model)]; // half of the width encodes the row, half the column
  const positions = new Float32Array(numTokens(model) * dim);
  for (let patch = 0; patch < rows * columns; patch++) {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    positions.set(weights.pos_embed_row.subarray(row * half, (row + 1) * half), (patch + offset) * dim);
    positions.set(weights.pos_embed_column.subarray(column * half, (column + 1) * half), (patch + offset) * dim + half);
  }
  return positions;
}

/**
 * Return softmax(q kᵀ / √K) of every head, and the weighted sums of v.
 * @param {Pick<LayerTrace, "q" | "k" | "v">} vectors @param {ViTModel} model @param {ArrayLike<number> | null} kept  (N,)
 * @param {(head: number) => number} headMask
 */
function attend({ q, k, v }, { num_heads, head_dim, dim }, kept, headMask) {
  const tokens = q.length / dim;
  const attention = new Float32Array(num_heads * tokens * tokens);
  const heads = new Float32Array(q.length);
  const scale = 1 / Math.sqrt(head_dim);
  for (let head = 0; head < num_heads; head++) {
    for (let i = 0; i < tokens; i++) {
      const logits = new Float32Array(tokens).fill(-Infinity);
      for (let j = 0; j < tokens; j++) {
        if (kept !== null && !kept[j]) continue;
        let dot = 0;
        for (let d = 0, a = i * dim + head * head_dim, b = j * dim + head * head_dim; d < head_dim; d++) dot += q[a++] * k[b++];
        logits[j] = dot * scale;
      }
      const weights = softmax(logits);
      attention.set(weights, (head * tokens + i) * tokens);
      for (let j = 0; j < tokens; j++) {
        const weight = weights[j] * headMask(head);
        for (let d = head * head_dim; d < (head + 1) * head_dim; d++) heads[i * dim + d] += weight * v[j * dim + d];
      }
    }
  }
  return { attention, heads };
}

/**
 * @param {ViTModel} model @param {Weights} weights @param {Uint8Array} pixels  (channels, height, width)
 * @param {TraceMasks} masks @returns {Trace}
 */
export function forward(model, weights, pixels, { headMask, kept }) {
  const { dim, num_heads, depth, pool, temperature } = model;
  const { norm_eps: eps = 1e-6, gelu = "erf", embed_hidden, pre_norm, norm_after_pool } = model.architecture ?? {};
  const norm = (/** @type {Float32Array} */ x, /** @type {string} */ name) =>
    layerNorm(x, weights[`${name}.weight`], weights[`${name}.bias`], eps);
  const project = (/** @type {Float32Array} */ x, /** @type {string} */ name, width = dim) =>
    linear(x, weights[`${name}.weight`], weights[`${name}.bias`], width);

  const image = normalised(model, weights, pixels);
  const windows = windowsOf(image, model);
  let embedded = project(windows, "patch_embed.proj", windows.length / numPatches(model));
  if (embed_hidden) embedded = project(embedded.map(GELU.erf), "patch_embed.fc", embed_hidden);
  const offset = patchOffset(model);
  let tokens = new Float32Array(numTokens(model) * dim);
  if (offset) tokens.set(weights.cls_token);
  tokens.set(embedded, offset * dim);
  const positions = positionsOf(model, weights);
  if (positions) tokens = add(tokens, positions);
  if (pre_norm) tokens = norm(tokens, "norm_pre");

  const keptTokens = kept && [...Array(offset).fill(1), ...Array.from(kept)];
  let stream = tokens;
  /** @type {LayerTrace[]} */
  const layers = [];
  for (let layer = 0; layer < depth; layer++) {
    const name = `blocks.${layer}`;
    const normed = norm(stream, `${name}.norm1`);
    const [q, k, v] = [0, 1, 2].map((part) => {
      const [rows, bias] = [weights[`${name}.attn.qkv.weight`], weights[`${name}.attn.qkv.bias`]];
      const its = rows.subarray(part * dim * dim, (part + 1) * dim * dim);
      return linear(normed, its, bias?.subarray(part * dim, (part + 1) * dim), dim);
    });
    const mixed = attend({ q, k, v }, model, keptTokens, (head) => (headMask ? headMask[layer * num_heads + head] : 1));
    const attended = project(mixed.heads, `${name}.attn.proj`);
    const middle = add(stream, attended);
    const normedMiddle = norm(middle, `${name}.norm2`);
    const hidden = project(normedMiddle, `${name}.mlp.fc1`);
    const active = hidden.map(GELU[gelu]);
    const mlp = project(active, `${name}.mlp.fc2`, hidden.length / numTokens(model));
    const output = add(middle, mlp);
    layers.push({ normed, q, k, v, ...mixed, attended, middle, normedMiddle, hidden, active, mlp, output });
    stream = output;
  }

  const readOut = (/** @type {Float32Array} */ z) => {
    const normed = norm_after_pool ? z : norm(z, "norm");
    const read = pool === "cls" ? normed.slice(0, dim) : meanOf(normed, dim, keptTokens);
    const pooled = norm_after_pool ? norm(read, "norm") : read;
    const features = weights["pre_logits.weight"] ? project(pooled, "pre_logits").map(Math.tanh) : pooled;
    const logits = project(features, "head", features.length);
    return { normed, read, pooled, features, logits, probabilities: softmax(logits.map((logit) => logit / temperature)) };
  };
  const classes = weights["head.bias"].length;
  const lens = new Float32Array((depth + 1) * classes);
  [tokens, ...layers.map(({ output }) => output)].forEach((z, layer) => lens.set(readOut(z).probabilities, layer * classes));
  return { image, embedded, tokens, layers, lens, ...readOut(stream) };
}

/** Return the mean of the rows that are kept. @param {Float32Array} x @param {number} width @param {number[] | null} kept */
function meanOf(x, width, kept) {
  const rows = x.length / width;
  const chosen = kept ?? Array(rows).fill(1);
  const count = Math.max(1, chosen.reduce((total, value) => total + value, 0));
  const mean = new Float32Array(width);
  for (let r = 0; r < rows; r++) for (let i = 0; i < width; i++) mean[i] += (chosen[r] * x[r * width + i]) / count;
  return mean;
}
