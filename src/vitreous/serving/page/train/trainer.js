/**
 * A training: the model, its digits, and steps through them. Runs in a worker (worker.js) and, in tests, in node.
 *
 * @typedef {object} Digits  each image SIDE² gray values
 * @property {Uint8Array[]} train
 * @property {Uint8Array} trainLabels
 * @property {Uint8Array[]} validation
 * @property {Uint8Array} validationLabels
 *
 * @typedef {{ pixels: Uint8Array, label: number }} OwnDigit
 * @typedef {{ patch: number, broken: boolean, seed: number }} Settings
 *
 * @typedef {object} Glance  what the model makes of one digit
 * @property {Float32Array} probabilities  (classes,)
 * @property {Float32Array} attention  (heads, patches): of the class token in the last layer; 0 where skipped
 */

import { AdamW, crossEntropy, distort, initialise, randomFrom } from "./learning.js";
import { ViT } from "./vit.js";

export const SIDE = 28;
export const CLASSES = 10;
export const BATCH = 32;
export const COPIES = 20; // an own digit counts this many times in each pass through the digits
const WARM_UP = 50; // steps in which the learning rate rises to its value
const GRADUAL = 0.97; // of the shown loss: a mean that forgets
/** tokens: the patches with the most ink; 12 of 16 or 20 of 49 hold nearly all of a digit */
export const GEOMETRIES = { 4: { tokens: 20 }, 7: { tokens: 12 }, 14: { tokens: 4 } };
const SIZE = { dim: 32, depth: 2, heads: 2, mlp: 64 };

export class Trainer {
  steps = 0;
  images = 0;
  /** of the last steps; null before the first @type {number | null} */
  loss = null;
  /** @type {OwnDigit[]} */
  #own = [];
  /** @type {number[]} */
  #order = [];
  #batch = new Float32Array(BATCH * SIDE * SIDE);
  #labels = new Uint8Array(BATCH);

  /** @param {Digits} digits @param {Settings} settings */
  constructor(digits, { patch, broken, seed }) {
    this.digits = digits;
    this.random = randomFrom(seed);
    this.data = { side: SIDE, ...moments(digits.train) };
    const background = -this.data.mean / this.data.deviation;
    const { tokens } = GEOMETRIES[/** @type {keyof typeof GEOMETRIES} */ (patch)];
    this.model = new ViT({ side: SIDE, patch, tokens, ...SIZE, classes: CLASSES, background, overBatch: broken });
    initialise(this.model, this.random);
    this.optimizer = new AdamW(this.model);
  }

  /** @param {boolean} broken */
  set broken(broken) {
    this.model.config = { ...this.model.config, overBatch: broken };
  }

  /** @param {OwnDigit[]} own */
  set own(own) {
    this.#own = own;
    this.#order = [];
  }

  /** Learn from one batch. @param {number} rate */
  step(rate) {
    const { digits, model } = this;
    for (let i = 0; i < BATCH; i++) {
      const index = this.#next();
      const own = this.#own[index - digits.train.length];
      this.#labels[i] = own ? own.label : digits.trainLabels[index];
      const into = this.#batch.subarray(i * SIDE * SIDE, (i + 1) * SIDE * SIDE);
      distort(own ? own.pixels : digits.train[index], into, this.data, this.random);
    }
    const pass = model.forward(this.#batch);
    const { loss, dLogits } = crossEntropy(pass.logits, this.#labels);
    model.backward(pass, dLogits);
    this.steps++;
    this.images += BATCH;
    this.optimizer.step(rate * Math.min(1, this.steps / WARM_UP));
    this.loss = this.loss === null ? loss : GRADUAL * this.loss + (1 - GRADUAL) * loss;
  }

  /** Return the next digit: each once, in random order, own ones COPIES times; then again. */
  #next() {
    if (this.#order.length === 0) {
      const count = this.digits.train.length;
      this.#order = Array.from({ length: count + COPIES * this.#own.length }, (_, i) =>
        i < count ? i : count + ((i - count) % this.#own.length),
      );
      for (let i = this.#order.length - 1; i > 0; i--) {
        const j = Math.floor(this.random() * (i + 1));
        [this.#order[i], this.#order[j]] = [this.#order[j], this.#order[i]];
      }
    }
    return /** @type {number} */ (this.#order.pop());
  }

  /** Return the share of validation digits that are predicted correctly. */
  validate() {
    const { validation, validationLabels } = this.digits;
    const { logits } = this.model.forward(this.#normalised(validation));
    let correct = 0;
    for (let i = 0; i < validation.length; i++) correct += Number(largest(logits, i) === validationLabels[i]);
    return correct / validation.length;
  }

  /** @param {Uint8Array[]} images @returns {Glance[]} */
  glance(images) {
    return images.map((image) => {
      const { logits, blocks, embedded } = this.model.forward(this.#normalised([image])); // alone, as a visitor's is
      const { heads, patch, overBatch, tokens } = this.model.config;
      const patches = (SIDE / patch) ** 2;
      const attention = new Float32Array(heads * patches);
      const { weights } = blocks[blocks.length - 1].attention; // (heads, tokens + 1)
      for (let head = 0; head < heads && !overBatch; head++) {
        embedded.kept.forEach((place, i) => (attention[head * patches + place] = weights[head * (tokens + 1) + i + 1]));
      }
      return { probabilities: crossEntropy(logits, [0]).probabilities, attention };
    });
  }

  /** Return the cosine similarity of every two positions, (patches, patches). */
  positions() {
    const { dim } = this.model.config;
    const rows = this.model.parameters.get("pos_embed").subarray(dim);
    const count = rows.length / dim;
    const dot = (/** @type {number} */ a, /** @type {number} */ b) => {
      let sum = 0;
      for (let j = 0; j < dim; j++) sum += rows[a * dim + j] * rows[b * dim + j];
      return sum;
    };
    const lengths = Float32Array.from({ length: count }, (_, i) => Math.sqrt(dot(i, i)) || 1);
    return Float32Array.from({ length: count * count }, (_, at) => {
      const [a, b] = [Math.floor(at / count), at % count];
      return dot(a, b) / (lengths[a] * lengths[b]);
    });
  }

  /** @param {Uint8Array[]} images */
  #normalised(images) {
    const { mean, deviation } = this.data;
    const out = new Float32Array(images.length * SIDE * SIDE);
    images.forEach((image, i) => {
      for (let j = 0; j < image.length; j++) out[i * SIDE * SIDE + j] = (image[j] / 255 - mean) / deviation;
    });
    return out;
  }
}

/** @param {Float32Array} logits @param {number} row */
function largest(logits, row) {
  let best = 0;
  for (let j = 1; j < CLASSES; j++) if (logits[row * CLASSES + j] > logits[row * CLASSES + best]) best = j;
  return best;
}

/** Return mean and standard deviation of all pixels, in 0 … 1. @param {Uint8Array[]} images */
function moments(images) {
  let count = 0, sum = 0, squares = 0;
  for (const image of images) {
    for (const value of image) {
      count++;
      sum += value / 255;
      squares += (value / 255) ** 2;
    }
  }
  const mean = sum / count;
  return { mean, deviation: Math.sqrt(squares / count - mean * mean) };
}
