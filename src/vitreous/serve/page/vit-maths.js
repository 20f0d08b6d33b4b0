/**
 * What can be worked out from a ViT's attention and masks without asking the model again.
 *
 * Shapes: L layers, H heads, N tokens (the class token first, if there is one), P patches.
 * Attention is [query, key]: row q says how token q spreads its look, and sums to 1.
 *
 * @typedef {import("./engine.js").Tensor} Tensor
 * @typedef {import("./engine.js").ViTModel} ViTModel
 */

/** @param {ViTModel} model */
export function patchesOf(model) {
  return model.grid[0] * model.grid[1];
}

/** @param {ViTModel} model */
export function tokensOf(model) {
  return patchesOf(model) + Number(model.has_class_token);
}

/**
 * One head's attention, (N, N) flat; head -1 is the mean of all.
 * @param {Tensor} attention  (L, H, N, N)
 * @param {number} layer
 * @param {number} head
 * @returns {Float32Array}
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
 * How one token (or, with query -1 and no class token, the mean of all) spreads its look over all tokens, (N,).
 * @param {Float32Array} weights  (N, N)
 * @param {number} query  a patch, or -1 for what the answer is read from
 * @param {ViTModel} model
 */
export function lookOf(weights, query, model) {
  const tokens = tokensOf(model);
  if (query >= 0 || model.has_class_token) {
    const row = query + Number(model.has_class_token); // -1 + 1: the class token's
    return weights.subarray(row * tokens, (row + 1) * tokens);
  }
  const mean = new Float32Array(tokens);
  for (let i = 0; i < weights.length; i++) mean[i % tokens] += weights[i] / tokens;
  return mean;
}

/**
 * Attention rollout (Abnar & Zuidema, 2020), (P,): heads averaged, half of each layer the residual, rows summing to 1.
 * @param {Tensor} attention  (L, H, N, N)
 * @param {ViTModel} model
 * @returns {Float32Array | null}  null for sequence pooling, whose weights the graph does not give
 */
export function rollout(attention, model) {
  if (model.pool === "seq") return null;
  const [layers, , tokens] = attention.shape;
  // Row by row from the last layer back to the first: a vector times a matrix is all that is needed.
  let reads = new Float64Array(tokens).fill(model.pool === "cls" ? 0 : 1 / tokens);
  if (model.pool === "cls") reads[0] = 1;
  for (let layer = layers - 1; layer >= 0; layer--) {
    const mean = headAttention(attention, layer, -1);
    const next = new Float64Array(tokens);
    for (let q = 0; q < tokens; q++) {
      let sum = 1;
      for (let k = 0; k < tokens; k++) sum += mean[q * tokens + k];
      for (let k = 0; k < tokens; k++) next[k] += (reads[q] * (mean[q * tokens + k] + Number(k === q))) / sum;
    }
    reads = next;
  }
  return Float32Array.from(reads.subarray(Number(model.has_class_token)));
}

/**
 * @param {ArrayLike<number>} logits
 * @returns {Float32Array}
 */
export function softmax(logits) {
  const values = Array.from(logits);
  const most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return Float32Array.from(powers, (power) => power / sum);
}

/** @param {ArrayLike<number>} values */
export function largest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/**
 * What the pixels would be with the picture moved and then its patches in another order.
 * @param {Uint8Array} pixels  (height, width)
 * @param {readonly [number, number]} size
 * @param {readonly [number, number]} shift  to the right, down
 * @param {readonly number[] | null} order  which patch comes to each place
 * @param {readonly [number, number]} grid
 */
export function rearranged(pixels, [height, width], [right, down], order, grid) {
  const moved = new Uint8Array(pixels.length);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [fromY, fromX] = [y - down, x - right];
      if (fromY >= 0 && fromY < height && fromX >= 0 && fromX < width) moved[y * width + x] = pixels[fromY * width + fromX];
    }
  }
  if (order === null) return moved;
  const [tall, wide] = [Math.floor(height / grid[0]), Math.floor(width / grid[1])];
  const shuffled = Uint8Array.from(moved);
  order.forEach((source, place) => {
    for (let y = 0; y < tall; y++) {
      const from = (Math.floor(source / grid[1]) * tall + y) * width + (source % grid[1]) * wide;
      const to = (Math.floor(place / grid[1]) * tall + y) * width + (place % grid[1]) * wide;
      shuffled.set(moved.subarray(from, from + wide), to);
    }
  });
  return shuffled;
}

/**
 * A fixed order of the patches for a seed, so that a link shows the same one.
 * @param {number} count
 * @param {number} seed
 */
export function shuffledOrder(count, seed) {
  const order = Array.from({ length: count }, (_, i) => i);
  let state = seed * 2654435761 + 1;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // Numerical Recipes' generator: any will do here
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/**
 * Patches painted black: what a model without tokens gets where a patch is removed.
 * @param {Uint8Array} pixels
 * @param {readonly [number, number]} size
 * @param {readonly number[]} patches
 * @param {readonly [number, number]} grid
 */
export function blanked(pixels, [height, width], patches, grid) {
  const left = Uint8Array.from(pixels);
  const gone = new Set(patches);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const patch = Math.floor((y * grid[0]) / height) * grid[1] + Math.floor((x * grid[1]) / width);
      if (gone.has(patch)) left[y * width + x] = 0;
    }
  }
  return left;
}
