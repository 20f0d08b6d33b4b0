/**
 * What can be computed from a ViT's attention and its patch grid without running the model again.
 *
 * Shapes: L layers, H heads, N tokens (the class token first, if there is one), P patches.
 * Attention is [query, key]: row q is the distribution of token q's attention and sums to 1.
 *
 * @import { Tensor, ViTModel } from "./engine.js"
 */

/** @param {number} count  @returns {number[]} 0 … count - 1 */
export function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

/** @param {Iterable<number>} values */
export function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

/** @param {ArrayLike<number>} values */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** @param {ArrayLike<number>} logits */
export function softmax(logits) {
  const values = Array.from(logits);
  const highest = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - highest));
  const total = sum(powers);
  return Float32Array.from(powers, (power) => power / total);
}

/** @param {ViTModel} model */
export function numPatches(model) {
  return model.grid[0] * model.grid[1];
}

/** @param {ViTModel} model */
export function numTokens(model) {
  return numPatches(model) + patchOffset(model);
}

/** Return the index of the first patch among the tokens. @param {ViTModel} model */
export function patchOffset(model) {
  return Number(model.has_class_token);
}

/** @param {number} patch @param {readonly [number, number]} grid */
export function rowAndColumn(patch, grid) {
  return [Math.floor(patch / grid[1]), patch % grid[1]];
}

/**
 * Return the cells' borders in whole pixels, down and across: a pixel belongs to the cell that contains its centre.
 * @param {ViTModel} model @returns {[number[], number[]]}  one more than there are rows, and than there are columns
 */
export function pixelEdges({ cells }) {
  const rounded = (/** @type {readonly number[]} */ edges) => edges.map((edge) => Math.ceil(edge - 0.5));
  return [rounded(cells.row_edges), rounded(cells.column_edges)];
}

/** @type {WeakMap<ViTModel, Uint16Array>} */
const patchesOfPixels = new WeakMap();

/** Return the patch that each pixel belongs to, (height, width). @param {ViTModel} model */
export function patchOfPixels(model) {
  const known = patchesOfPixels.get(model);
  if (known !== undefined) return known;
  const [height, width] = model.image_size;
  const [down, across] = pixelEdges(model);
  const patches = new Uint16Array(height * width);
  for (let patch = 0; patch < numPatches(model); patch++) {
    const [row, column] = rowAndColumn(patch, model.grid);
    for (let y = down[row]; y < down[row + 1]; y++) {
      patches.fill(patch, y * width + across[column], y * width + across[column + 1]);
    }
  }
  patchesOfPixels.set(model, patches);
  return patches;
}

/**
 * Return one head's attention, (N, N) flat; head -1 is the mean of all heads.
 * @param {Tensor} attention  (L, H, N, N) @param {number} layer @param {number} head
 */
export function headAttention({ data, shape }, layer, head) {
  const [, heads, tokens] = shape;
  const size = tokens * tokens;
  if (head >= 0) return data.subarray((layer * heads + head) * size, (layer * heads + head + 1) * size);
  const mean = new Float32Array(size);
  for (let h = 0; h < heads; h++) {
    const start = (layer * heads + h) * size;
    for (let i = 0; i < size; i++) mean[i] += data[start + i] / heads;
  }
  return mean;
}

/**
 * Return how one token distributes its attention over all tokens, (N,); query -1 is the class token, or the mean of all
 * tokens in a model without one.
 * @param {Tensor} attention  (L, H, N, N)
 * @param {number} layer
 * @param {number} head
 * @param {number} query  a patch, or -1
 * @param {ViTModel} model
 */
export function attentionFrom(attention, layer, head, query, model) {
  const weights = headAttention(attention, layer, head);
  const tokens = numTokens(model);
  const row = query + patchOffset(model);
  if (row >= 0) return weights.subarray(row * tokens, (row + 1) * tokens);
  const mean = new Float32Array(tokens);
  for (let i = 0; i < weights.length; i++) mean[i % tokens] += weights[i] / tokens;
  return mean;
}

/**
 * Return attention rollout (Abnar & Zuidema, 2020), (P,): heads averaged, half of each layer the residual, rows
 * normalised to sum to 1.
 * @param {Tensor} attention  (L, H, N, N)
 * @param {ViTModel} model
 * @param {Float32Array} kept  (P,), 0 where a patch is removed or skipped: no mean includes it
 * @returns {Float32Array | null}  null for sequence pooling, whose weights the graph does not output
 */
export function rollout(attention, model, kept) {
  if (model.pool === "seq") return null;
  const [layers, , tokens] = attention.shape;
  // From the last layer back to the first: a vector times a matrix is all that is needed.
  let readout = new Float64Array(tokens);
  if (model.pool === "cls") readout[0] = 1;
  else readout = Float64Array.from(kept, (value) => value / sum(kept));
  for (let layer = layers - 1; layer >= 0; layer--) {
    const mean = headAttention(attention, layer, -1);
    const next = new Float64Array(tokens);
    for (let q = 0; q < tokens; q++) {
      const total = 1 + sum(mean.subarray(q * tokens, (q + 1) * tokens));
      for (let k = 0; k < tokens; k++) next[k] += (readout[q] * (mean[q * tokens + k] + Number(k === q))) / total;
    }
    readout = next;
  }
  return Float32Array.from(readout.subarray(patchOffset(model)));
}

/**
 * Return the image moved by whole pixels.
 * @param {Uint8Array} pixels  (channels, height, width)
 * @param {readonly [number, number]} size
 * @param {readonly [number, number]} shift  to the right, down
 */
export function shifted(pixels, [height, width], [right, down]) {
  return pixels.map((_, i) => {
    const at = i % (height * width);
    const [y, x] = [Math.floor(at / width) - down, (at % width) - right];
    return y >= 0 && y < height && x >= 0 && x < width ? pixels[i - at + y * width + x] : 0;
  });
}

/**
 * Return the image with its patches in another order. Where they differ in size, each is stretched to fit.
 * @param {Uint8Array} pixels  (channels, height, width)
 * @param {ViTModel} model
 * @param {readonly number[]} order  the patch that goes to each place
 */
export function shuffled(pixels, model, order) {
  const [height, width] = model.image_size;
  const area = height * width;
  const [down, across] = pixelEdges(model);
  /** @param {number[]} edges @param {number} to @param {number} from @param {number} at */
  const rescale = (edges, to, from, at) =>
    edges[from] + Math.floor(((at - edges[to]) * (edges[from + 1] - edges[from])) / (edges[to + 1] - edges[to]));
  const mixed = new Uint8Array(pixels.length);
  patchOfPixels(model).forEach((place, i) => {
    const [row, column] = rowAndColumn(place, model.grid);
    const [fromRow, fromColumn] = rowAndColumn(order[place], model.grid);
    const y = rescale(down, row, fromRow, Math.floor(i / width));
    const x = rescale(across, column, fromColumn, i % width);
    for (let plane = 0; plane < pixels.length; plane += area) mixed[plane + i] = pixels[plane + y * width + x];
  });
  return mixed;
}

/** Return a fixed order for a seed, so that a link shows the same one. @param {number} count @param {number} seed */
export function shuffledOrder(count, seed) {
  const order = range(count);
  let state = seed * 2654435761 + 1;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // the generator of Numerical Recipes; any would do here
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/**
 * Return the image with some patches painted black: the input of a model without tokens where a patch is removed.
 * @param {Uint8Array} pixels  (channels, height, width) @param {ViTModel} model @param {readonly number[]} patches
 */
export function blanked(pixels, model, patches) {
  const removed = new Set(patches);
  const patchOf = patchOfPixels(model);
  return pixels.map((value, i) => (removed.has(patchOf[i % patchOf.length]) ? 0 : value));
}
