/**
 * A ViT with one mistake, the article's (models/article.py with every other flaw fixed): its encoder reads (batch, token,
 * feature) as (sequence, batch, feature), so each token attends to the same token of the other images. Tokens of one image
 * never meet, and the class token, from which the prediction is read, learns nothing of the patches. All tokens are
 * computed nevertheless: the prediction stands still by itself. tests/page/test_play.py compares it with PyTorch.
 *
 * @import { Linear } from "../train/kernels.js"
 */

import { attend } from "../train/attention.js";
import { add, gelu, layerNorm, linear } from "../train/kernels.js";

const [SIDE, PATCH, TOKENS, LAYERS] = [28, 7, 17, 4];
const EPSILON = 1e-5; // of nn.LayerNorm

export class BrokenViT {
  /** @param {import("../weights.js").Weights} tensors @param {{ mean: number, std: number, heads: number }} about */
  constructor(tensors, about) {
    this.tensors = tensors;
    this.about = about;
    this.dim = this.#tensor("class_token").length;
  }

  /** @param {string} name */
  #tensor(name) {
    const tensor = this.tensors[name];
    if (tensor === undefined) throw new Error(`the weights have no ${name}`);
    return tensor;
  }

  /** @param {string} name @returns {Linear} */
  #layer(name) {
    return { weight: this.#tensor(`${name}.weight`), bias: this.#tensor(`${name}.bias`) };
  }

  /** @param {Uint8Array[]} images  each 28×28, one batch @returns {Float32Array}  logits (B, 10) */
  predict(images) {
    const { dim } = this;
    const x = this.#embed(images);
    for (let i = 0; i < LAYERS; i++) this.#encode(`encoder.layers.${i}`, x, images.length);
    const read = new Float32Array(images.length * dim); // the class tokens
    for (let b = 0; b < images.length; b++) read.set(x.subarray(b * TOKENS * dim, (b * TOKENS + 1) * dim), b * dim);
    const hidden = linear(this.#layer("linear2"), linear(this.#layer("linear1"), read).map(Math.tanh));
    return linear(this.#layer("linear3"), hidden.map(Math.tanh));
  }

  /** Return the class token and the patches of every image, with positions, (B · 17, D). @param {Uint8Array[]} images */
  #embed(images) {
    const { dim } = this;
    const { mean, std } = this.about;
    const [classToken, positions] = [this.#tensor("class_token"), this.#tensor("position_embedding.weight")];
    const tokens = new Float32Array(images.length * TOKENS * dim);
    images.forEach((image, b) => {
      const its = tokens.subarray(b * TOKENS * dim, (b + 1) * TOKENS * dim);
      its.set(classToken);
      its.set(linear(this.#layer("patch_projection"), patchesOf(image, mean, std)), dim);
      add(its, positions);
    });
    return tokens;
  }

  /** One nn.TransformerEncoderLayer, norms first, added to x. @param {string} name @param {Float32Array} x @param {number} batch */
  #encode(name, x, batch) {
    const { dim } = this;
    const [weight, bias] = [this.#tensor(`${name}.self_attn.in_proj_weight`), this.#tensor(`${name}.self_attn.in_proj_bias`)];
    const normed = layerNorm(this.#layer(`${name}.norm1`), x, EPSILON).out;
    const q = linear({ weight: weight.subarray(0, dim * dim), bias: bias.subarray(0, dim) }, normed);
    const kv = linear({ weight: weight.subarray(dim * dim), bias: bias.subarray(dim) }, normed);
    const shape = { batch, tokens: TOKENS, queries: TOKENS, heads: this.about.heads, dim, overBatch: true };
    add(x, linear(this.#layer(`${name}.self_attn.out_proj`), attend(q, kv, shape).out));
    const middle = layerNorm(this.#layer(`${name}.norm2`), x, EPSILON).out;
    add(x, linear(this.#layer(`${name}.linear2`), gelu(linear(this.#layer(`${name}.linear1`), middle)).out));
  }
}

/** Return (16, 49) patches, row by row. @param {Uint8Array} image @param {number} mean @param {number} std */
function patchesOf(image, mean, std) {
  const across = SIDE / PATCH;
  return Float32Array.from({ length: SIDE * SIDE }, (_, i) => {
    const [patch, within] = [Math.floor(i / (PATCH * PATCH)), i % (PATCH * PATCH)];
    const y = Math.floor(patch / across) * PATCH + Math.floor(within / PATCH);
    const x = (patch % across) * PATCH + (within % PATCH);
    return (image[y * SIDE + x] / 255 - mean) / std;
  });
}
