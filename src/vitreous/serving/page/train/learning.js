/**
 * What a training needs besides the model: first values, the loss, AdamW, and images that are never twice the same.
 *
 * @import { ViT } from "./vit.js"
 */

/** Return a generator of numbers in 0 … 1, the same for the same seed (mulberry32). @param {number} seed */
export function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A number of a normal distribution. @param {() => number} random */
function normal(random) {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

/**
 * Fill the parameters as `ViT.initialise` does: Xavier matrices (q, k and v are three), LeCun's patch projection,
 * positions ~ N(0, 0.02), norms 1, all else 0.
 * @param {ViT} model @param {() => number} random
 */
export function initialise(model, random) {
  for (const [name, sizes] of model.shapes) {
    const values = model.parameters.get(name);
    const [outputs, ...inputs] = sizes;
    const fanIn = inputs.reduce((product, size) => product * size, 1);
    if (name === "pos_embed") fill(values, () => 0.02 * normal(random));
    else if (name.includes("norm") && name.endsWith("weight")) values.fill(1);
    else if (name.startsWith("patch_embed") && inputs.length > 0) fill(values, () => normal(random) / Math.sqrt(fanIn));
    else if (name.startsWith("blocks.") && inputs.length > 0) {
      const bound = Math.sqrt(6 / (fanIn + (name.includes("qkv") ? outputs / 3 : outputs)));
      fill(values, () => bound * (2 * random() - 1));
    } else values.fill(0); // biases, the class token, and the head (zero_head)
  }
}

/** @param {Float32Array} values @param {() => number} draw */
function fill(values, draw) {
  for (let i = 0; i < values.length; i++) values[i] = draw();
}

/**
 * Cross-entropy: the mean loss, the probabilities, and the gradient of the loss with respect to the logits.
 * @param {Float32Array} logits  (B, classes) @param {ArrayLike<number>} labels  (B,)
 */
export function crossEntropy(logits, labels) {
  const batch = labels.length;
  const classes = logits.length / batch;
  const [probabilities, dLogits] = [new Float32Array(logits.length), new Float32Array(logits.length)];
  let loss = 0;
  for (let i = 0; i < batch; i++) {
    const row = logits.subarray(i * classes, (i + 1) * classes);
    const highest = row.reduce((high, value) => Math.max(high, value), -Infinity);
    let total = 0;
    for (let j = 0; j < classes; j++) total += Math.exp(row[j] - highest);
    for (let j = 0; j < classes; j++) {
      const at = i * classes + j;
      probabilities[at] = Math.exp(row[j] - highest) / total;
      dLogits[at] = (probabilities[at] - Number(j === labels[i])) / batch;
    }
    loss += (Math.log(total) + highest - row[labels[i]]) / batch;
  }
  return { loss, probabilities, dLogits };
}

/** AdamW (Loshchilov & Hutter, 2019): matrices decay, everything else does not. */
export class AdamW {
  #step = 0;

  /** @param {ViT} model @param {{ beta1?: number, beta2?: number, epsilon?: number, decay?: number }} [settings] */
  constructor(model, { beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, decay = 0.05 } = {}) {
    const size = model.parameters.all.length;
    this.model = model;
    this.settings = { beta1, beta2, epsilon };
    this.first = new Float32Array(size);
    this.second = new Float32Array(size);
    this.decays = new Float32Array(size);
    for (const [name, sizes] of model.shapes) {
      const view = model.parameters.get(name);
      const start = view.byteOffset / Float32Array.BYTES_PER_ELEMENT;
      const isMatrix = sizes.length > 1 && name.endsWith("weight");
      this.decays.fill(isMatrix ? decay : 0, start, start + view.length);
    }
  }

  /** @param {number} rate */
  step(rate) {
    const { beta1, beta2, epsilon } = this.settings;
    const { first, second, decays } = this;
    const [values, gradients] = [this.model.parameters.all, this.model.gradients.all];
    this.#step++;
    const correction1 = 1 - beta1 ** this.#step;
    const correction2 = 1 - beta2 ** this.#step;
    for (let i = 0; i < values.length; i++) {
      const gradient = gradients[i];
      first[i] += (1 - beta1) * (gradient - first[i]);
      second[i] += (1 - beta2) * (gradient * gradient - second[i]);
      const update = first[i] / correction1 / (Math.sqrt(second[i] / correction2) + epsilon);
      values[i] -= rate * (update + decays[i] * values[i]);
    }
  }
}

const MOST = { degrees: 12, scale: 0.12, shift: 2 }; // by which an image is turned, resized and moved, either way

/**
 * Write an image, slightly turned, resized and moved: with 1,000 digits, a model would otherwise learn them by heart.
 * @param {Uint8Array} image  (side, side), 0 … 255 @param {Float32Array} into  normalised
 * @param {{ side: number, mean: number, deviation: number }} data @param {() => number} random
 */
export function distort(image, into, { side, mean, deviation }, random) {
  const amount = (/** @type {number} */ most) => most * (2 * random() - 1);
  const angle = (amount(MOST.degrees) * Math.PI) / 180;
  const zoom = 1 + amount(MOST.scale);
  const [right, down, middle] = [amount(MOST.shift), amount(MOST.shift), (side - 1) / 2];
  const [cosine, sine] = [Math.cos(angle) / zoom, Math.sin(angle) / zoom];
  for (let y = 0; y < side; y++) {
    for (let x = 0; x < side; x++) {
      const [dx, dy] = [x - middle - right, y - middle - down];
      into[y * side + x] = (sample(image, side, middle + cosine * dx + sine * dy, middle - sine * dx + cosine * dy) / 255 - mean) / deviation;
    }
  }
}

/** Return the value between pixels. @param {Uint8Array} image @param {number} side @param {number} x @param {number} y */
function sample(image, side, x, y) {
  const left = Math.floor(x), top = Math.floor(y);
  if (left < 0 || top < 0 || left >= side - 1 || top >= side - 1) return 0;
  const at = top * side + left, across = x - left, down = y - top;
  const upper = image[at] + across * (image[at + 1] - image[at]);
  const lower = image[at + side] + across * (image[at + side + 1] - image[at + side]);
  return upper + down * (lower - upper);
}
