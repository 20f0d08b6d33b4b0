/**
 * A Vision Transformer with its backward pass. Names, order and mathematics of the parameters are those of
 * src/vitreous/models/vit.py; tests/page/test_train_parity.py compares logits and the gradient of every parameter.
 *
 * Shapes: B images, P patches of which K become tokens, N = K + 1 tokens with the class token, D width. After the last
 * attention only the class token is read, so only its row is computed there.
 *
 * @import { Linear, LinearPair } from "./kernels.js"
 * @import { Shape } from "./attention.js"
 *
 * @typedef {object} Config
 * @property {number} side  of the square image
 * @property {number} patch  side of a patch
 * @property {number} tokens  K: the patches with the most ink become tokens, the others are skipped
 * @property {number} dim
 * @property {number} depth
 * @property {number} heads
 * @property {number} mlp
 * @property {number} classes
 * @property {number} background  the value of a blank pixel
 * @property {boolean} overBatch  the article's mistake: attention over the images of the batch
 *
 * @typedef {ReturnType<ViT["forward"]>} Pass  what a forward pass leaves for the backward pass
 */

import { attend, attendBackward } from "./attention.js";
import { add, gelu, layerNorm, layerNormBackward, linear, linearBackward } from "./kernels.js";

const EPSILON = 1e-6; // norm_eps of ViTConfig
const TIE = 1e-6; // as models/blank.py: of equal patches the first is kept

/** Return the names and sizes of all parameters, in the order of the state dict. @param {Config} config */
export function parameterShapes({ side, patch, dim, depth, mlp, classes }) {
  const patches = (side / patch) ** 2;
  /** @type {[string, number[]][]} */
  const shapes = [["cls_token", [1, 1, dim]], ["pos_embed", [1, patches + 1, dim]]];
  const layer = (/** @type {string} */ name, /** @type {number[]} */ ...sizes) =>
    shapes.push([`${name}.weight`, sizes], [`${name}.bias`, [sizes[0]]]);
  layer("patch_embed.proj", dim, 1, patch, patch);
  for (let i = 0; i < depth; i++) {
    layer(`blocks.${i}.norm1`, dim);
    layer(`blocks.${i}.attn.qkv`, 3 * dim, dim);
    layer(`blocks.${i}.attn.proj`, dim, dim);
    layer(`blocks.${i}.norm2`, dim);
    layer(`blocks.${i}.mlp.fc1`, mlp, dim);
    layer(`blocks.${i}.mlp.fc2`, dim, mlp);
  }
  layer("norm", dim);
  layer("head", classes, dim);
  return shapes;
}

/** All parameters in one array, and a view of each by name. */
class Tensors {
  /** @type {Map<string, Float32Array>} */
  views = new Map();

  /** @param {[string, number[]][]} shapes */
  constructor(shapes) {
    const sizes = shapes.map(([, sides]) => sides.reduce((product, side) => product * side, 1));
    this.all = new Float32Array(sizes.reduce((total, size) => total + size, 0));
    let start = 0;
    shapes.forEach(([name], i) => this.views.set(name, this.all.subarray(start, (start += sizes[i]))));
  }

  /** @param {string} name */
  get(name) {
    const view = this.views.get(name);
    if (view === undefined) throw new Error(`the model has no parameter ${name}`);
    return view;
  }
}

export class ViT {
  /** @param {Config} config */
  constructor(config) {
    this.config = config;
    this.shapes = parameterShapes(config);
    this.parameters = new Tensors(this.shapes);
    this.gradients = new Tensors(this.shapes);
  }

  /** A layer's weight and bias, and their gradients. @param {string} name @returns {LinearPair} */
  #layer(name) {
    const part = (/** @type {Tensors} */ tensors) => ({
      weight: tensors.get(`${name}.weight`),
      bias: tensors.get(`${name}.bias`),
    });
    return { value: part(this.parameters), gradient: part(this.gradients) };
  }

  /** q, and k with v, of a block: the first third of the rows of qkv, and the rest. @param {number} i */
  #queriesAndKeys(i) {
    const { value, gradient } = this.#layer(`blocks.${i}.attn.qkv`);
    const { dim } = this.config;
    const rows = (/** @type {Linear} */ { weight, bias }, /** @type {number} */ from, /** @type {number} */ to) => ({
      weight: weight.subarray(from * dim, to * dim),
      bias: bias.subarray(from, to),
    });
    const part = (/** @type {number} */ from, /** @type {number} */ to) =>
      ({ value: rows(value, from, to), gradient: rows(gradient, from, to) });
    return { q: part(0, dim), kv: part(dim, 3 * dim) };
  }

  /** @param {Float32Array} images  (B, side²), normalised @returns the logits, (B, classes), and what backward needs */
  forward(images) {
    const { config } = this;
    const batch = images.length / config.side ** 2;
    const embedded = this.#embed(images, batch);
    /** @type {Float32Array} */
    let x = embedded.x;
    const blocks = [];
    for (let i = 0; i < config.depth; i++) {
      const queries = i === config.depth - 1 ? 1 : config.tokens + 1;
      const { tokens, dim, heads, overBatch } = config;
      const seen = this.#block(i, x, { batch, tokens: tokens + 1, queries, heads, dim, overBatch });
      blocks.push(seen);
      x = seen.out;
    }
    const norm = layerNorm(this.#layer("norm").value, x, EPSILON);
    return { batch, embedded, blocks, norm, logits: linear(this.#layer("head").value, norm.out) };
  }

  /** z_0 = [x_class; x_p E] + E_pos (Eq. 1). @param {Float32Array} images @param {number} batch */
  #embed(images, batch) {
    const { dim, tokens } = this.config;
    const { kept, patches } = this.#split(images, batch);
    const projected = linear(this.#layer("patch_embed.proj").value, patches);
    const [classToken, positions] = [this.parameters.get("cls_token"), this.parameters.get("pos_embed")];
    const x = new Float32Array(batch * (tokens + 1) * dim);
    for (let row = 0; row < batch * (tokens + 1); row++) {
      const [image, token] = [Math.floor(row / (tokens + 1)), row % (tokens + 1)];
      const patch = image * tokens + token - 1;
      const [source, from] = token === 0 ? [classToken, 0] : [projected, patch * dim];
      const place = token === 0 ? 0 : (kept[patch] + 1) * dim;
      for (let j = 0; j < dim; j++) x[row * dim + j] = source[from + j] + positions[place + j];
    }
    return { kept, patches, x };
  }

  /** Return the patches that become tokens, (B·K, patch²), and their numbers. @param {Float32Array} images @param {number} batch */
  #split(images, batch) {
    const { side, patch, tokens, background } = this.config;
    const across = side / patch;
    const kept = new Uint16Array(batch * tokens);
    const patches = new Float32Array(batch * tokens * patch * patch);
    for (let image = 0; image < batch; image++) {
      const pixels = images.subarray(image * side * side, (image + 1) * side * side);
      const chosen = inkedPatches(pixels, side, patch, tokens, background);
      chosen.forEach((number, i) => {
        const corner = Math.floor(number / across) * patch * side + (number % across) * patch;
        const to = (image * tokens + i) * patch * patch;
        kept[image * tokens + i] = number;
        for (let y = 0; y < patch; y++) {
          for (let column = 0; column < patch; column++) patches[to + y * patch + column] = pixels[corner + y * side + column];
        }
      });
    }
    return { kept, patches };
  }

  /** z' = MSA(LN(z)) + z (Eq. 2), z = MLP(LN(z')) + z' (Eq. 3). @param {number} i @param {Float32Array} x @param {Shape} shape */
  #block(i, x, shape) {
    const layer = (/** @type {string} */ name) => this.#layer(`blocks.${i}.${name}`).value;
    const { q: forQueries, kv: forKeys } = this.#queriesAndKeys(i);
    const norm1 = layerNorm(layer("norm1"), x, EPSILON);
    const asking = firstTokens(norm1.out, shape);
    const [q, kv] = [linear(forQueries.value, asking), linear(forKeys.value, norm1.out)];
    const attention = attend(q, kv, shape);
    const middle = linear(layer("attn.proj"), attention.out);
    add(middle, firstTokens(x, shape));
    const norm2 = layerNorm(layer("norm2"), middle, EPSILON);
    const hidden = gelu(linear(layer("mlp.fc1"), norm2.out));
    const out = linear(layer("mlp.fc2"), hidden.out);
    add(out, middle);
    return { shape, norm1, asking, q, kv, attention, norm2, hidden, out };
  }

  /** Write the gradients of all parameters. @param {Pass} pass @param {Float32Array} dLogits  (B, classes) */
  backward({ embedded, blocks, norm }, dLogits) {
    let dx = linearBackward(this.#layer("head"), norm.out, dLogits);
    dx = layerNormBackward(this.#layer("norm"), norm, dx);
    for (let i = blocks.length - 1; i >= 0; i--) dx = this.#blockBackward(i, blocks[i], dx);
    this.#embedBackward(embedded, dx);
  }

  /** @param {number} i @param {Pass["blocks"][number]} seen @param {Float32Array} dOut */
  #blockBackward(i, { shape, norm1, asking, q, kv, attention, norm2, hidden }, dOut) {
    const layer = (/** @type {string} */ name) => this.#layer(`blocks.${i}.${name}`);
    const dHidden = linearBackward(layer("mlp.fc2"), hidden.out, dOut);
    for (let j = 0; j < dHidden.length; j++) dHidden[j] *= hidden.slope[j];
    const dMiddle = layerNormBackward(layer("norm2"), norm2, linearBackward(layer("mlp.fc1"), norm2.out, dHidden));
    add(dMiddle, dOut);
    const dAttention = linearBackward(layer("attn.proj"), attention.out, dMiddle);
    const { dq, dkv } = attendBackward(q, kv, attention.weights, dAttention, shape);
    const { q: forQueries, kv: forKeys } = this.#queriesAndKeys(i);
    const dNorm = linearBackward(forKeys, norm1.out, dkv);
    addToFirstTokens(dNorm, linearBackward(forQueries, asking, dq), shape);
    const dx = layerNormBackward(layer("norm1"), norm1, dNorm);
    addToFirstTokens(dx, dMiddle, shape);
    return dx;
  }

  /** @param {Pass["embedded"]} embedded @param {Float32Array} dx  (B, N, D) */
  #embedBackward({ kept, patches }, dx) {
    const { dim, tokens } = this.config;
    const [dClass, dPositions] = [this.gradients.get("cls_token"), this.gradients.get("pos_embed")];
    dPositions.fill(0);
    const dProjected = new Float32Array(kept.length * dim);
    for (let row = 0; row * dim < dx.length; row++) {
      const [image, token] = [Math.floor(row / (tokens + 1)), row % (tokens + 1)];
      const patch = image * tokens + token - 1;
      const place = token === 0 ? 0 : (kept[patch] + 1) * dim;
      for (let j = 0; j < dim; j++) dPositions[place + j] += dx[row * dim + j];
      for (let j = 0; j < dim && token > 0; j++) dProjected[patch * dim + j] = dx[row * dim + j];
    }
    dClass.set(dPositions.subarray(0, dim)); // both are added to the first token, and to nothing else
    linearBackward(this.#layer("patch_embed.proj"), patches, dProjected, false);
  }
}

/**
 * Return the numbers of the patches with the most ink, in ascending order.
 * @param {Float32Array} pixels @param {number} side @param {number} patch @param {number} count @param {number} background
 */
export function inkedPatches(pixels, side, patch, count, background) {
  const across = side / patch;
  const numbers = Array.from({ length: across * across }, (_, i) => i);
  if (count === numbers.length) return numbers;
  const ink = new Float64Array(numbers.length);
  for (let i = 0; i < pixels.length; i++) {
    const number = Math.floor(Math.floor(i / side) / patch) * across + Math.floor((i % side) / patch);
    ink[number] += Math.abs(pixels[i] - background);
  }
  const score = (/** @type {number} */ number) => (ink[number] + 1) * (1 - TIE * number);
  return numbers.sort((a, b) => score(b) - score(a)).slice(0, count).sort((a, b) => a - b);
}

/** Return the rows of the tokens that ask: all, or the first of each image. @param {Float32Array} x @param {Shape} shape */
function firstTokens(x, { batch, tokens, queries, dim }) {
  if (queries === tokens) return x;
  const out = new Float32Array(batch * dim);
  for (let i = 0; i < batch; i++) out.set(x.subarray(i * tokens * dim, (i * tokens + 1) * dim), i * dim);
  return out;
}

/** @param {Float32Array} into  (B·N, D) @param {Float32Array} rows  (B·M, D) @param {Shape} shape */
function addToFirstTokens(into, rows, { batch, tokens, queries, dim }) {
  for (let image = 0; image < batch; image++) {
    add(into.subarray(image * tokens * dim), rows.subarray(image * queries * dim, (image + 1) * queries * dim));
  }
}
