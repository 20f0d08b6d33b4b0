/**
 * The article's ViT as written (models/article.py), flaws included: its encoder reads (batch, token, feature) as (sequence,
 * batch, feature), so each token attends to the same token of the other images. Tokens of one image never meet, and only
 * the class token is read: the other rows need not be computed. tests/page/test_play.py compares it with PyTorch.
 *
 * @import { Linear } from "../train/kernels.js"
 */

import { attend } from "../train/attention.js";
import { add, gelu, layerNorm, linear } from "../train/kernels.js";

const [SIDE, PATCH, TOKENS, LAYERS] = [28, 7, 17, 4];
const EPSILON = 1e-5; // of nn.LayerNorm

export class ArticleViT {
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
    let x = this.#embed(images);
    for (let i = 0; i < LAYERS; i++) x = this.#encode(`encoder.layers.${i}`, x, images.length);
    const hidden = linear(this.#layer("linear2"), linear(this.#layer("linear1"), x));
    return linear(this.#layer("linear3"), hidden.map(Math.tanh));
  }

  /** The class token after F.normalize, which divides each feature by its norm over all tokens. @param {Uint8Array[]} images */
  #embed(images) {
    const { dim } = this;
    const { mean, std } = this.about;
    const [classToken, positions] = [this.#tensor("class_token"), this.#tensor("position_embedding.weight")];
    const out = new Float32Array(images.length * dim);
    images.forEach((image, b) => {
      const tokens = linear(this.#layer("patch_projection"), patchesOf(image, mean, std)); // (16, D)
      for (let j = 0; j < dim; j++) {
        const first = classToken[j] + positions[j];
        let squares = first * first;
        for (let t = 1; t < TOKENS; t++) squares += (tokens[(t - 1) * dim + j] + positions[t * dim + j]) ** 2;
        out[b * dim + j] = first / Math.max(Math.sqrt(squares), 1e-12);
      }
    });
    return out;
  }

  /** One nn.TransformerEncoderLayer, norms last. @param {string} name @param {Float32Array} x  (B, D) @param {number} batch */
  #encode(name, x, batch) {
    const { dim } = this;
    const [weight, bias] = [this.#tensor(`${name}.self_attn.in_proj_weight`), this.#tensor(`${name}.self_attn.in_proj_bias`)];
    const q = linear({ weight: weight.subarray(0, dim * dim), bias: bias.subarray(0, dim) }, x);
    const kv = linear({ weight: weight.subarray(dim * dim), bias: bias.subarray(dim) }, x);
    const shape = { batch, tokens: 1, queries: 1, heads: this.about.heads, dim, overBatch: true };
    const attended = linear(this.#layer(`${name}.self_attn.out_proj`), attend(q, kv, shape).out);
    add(attended, x);
    const middle = layerNorm(this.#layer(`${name}.norm1`), attended, EPSILON).out;
    const out = linear(this.#layer(`${name}.linear2`), gelu(linear(this.#layer(`${name}.linear1`), middle)).out);
    add(out, middle);
    return layerNorm(this.#layer(`${name}.norm2`), out, EPSILON).out;
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
