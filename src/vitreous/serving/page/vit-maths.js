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
 * The cells' borders in whole pixels, down and across: a pixel belongs to the cell its middle lies in.
 * @param {ViTModel} model
 * @returns {[number[], number[]]}  one more than there are rows, and than there are columns
 */
export function pixelEdges({ cells }) {
  const whole = (/** @type {readonly number[]} */ edges) => edges.map((edge) => Math.ceil(edge - 0.5));
  return [whole(cells.row_edges), whole(cells.column_edges)];
}

/**
 * Which patch each pixel belongs to, (height, width).
 * @param {ViTModel} model
 */
export function patchOfPixels(model) {
  const [height, width] = model.image_size;
  const [down, across] = pixelEdges(model);
  const patches = new Uint16Array(height * width);
  for (let patch = 0; patch < patchesOf(model); patch++) {
    const [row, column] = [Math.floor(patch / model.grid[1]), patch % model.grid[1]];
    for (let y = down[row]; y < down[row + 1]; y++) patches.fill(patch, y * width + across[column], y * width + across[column + 1]);
  }
  return patches;
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
 * @param {readonly number[] | null} tokenMask  (P,), 0 where a patch is removed: then no mean counts it
 * @returns {Float32Array | null}  null for sequence pooling, whose weights the graph does not give
 */
export function rollout(attention, model, tokenMask) {
  if (model.pool === "seq") return null;
  const [layers, , tokens] = attention.shape;
  // Row by row from the last layer back to the first: a vector times a matrix is all that is needed.
  const kept = tokenMask === null ? tokens : tokenMask.reduce((sum, each) => sum + each, 0);
  let reads = new Float64Array(tokens);
  if (model.pool === "cls") reads[0] = 1;
  else reads = reads.map((_, token) => (tokenMask?.[token] ?? 1) / kept);
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
 * The picture moved by whole pixels.
 * @param {Uint8Array} pixels  (height, width)
 * @param {readonly [number, number]} size
 * @param {readonly [number, number]} shift  to the right, down
 */
export function shifted(pixels, [height, width], [right, down]) {
  const moved = new Uint8Array(pixels.length);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [fromY, fromX] = [y - down, x - right];
      if (fromY >= 0 && fromY < height && fromX >= 0 && fromX < width) moved[y * width + x] = pixels[fromY * width + fromX];
    }
  }
  return moved;
}

/**
 * The patches in another order. Where they differ in size, each is stretched to the place it comes to.
 * @param {Uint8Array} pixels  (height, width)
 * @param {ViTModel} model
 * @param {readonly number[]} order  which patch comes to each place
 */
export function shuffled(pixels, model, order) {
  const width = model.image_size[1];
  const [down, across] = pixelEdges(model);
  const mixed = new Uint8Array(pixels.length);
  const along = (/** @type {number[]} */ edges, /** @type {number} */ to, /** @type {number} */ from, /** @type {number} */ at) =>
    edges[from] + Math.floor(((at - edges[to]) * (edges[from + 1] - edges[from])) / (edges[to + 1] - edges[to]));
  patchOfPixels(model).forEach((place, i) => {
    const [row, column] = [Math.floor(place / model.grid[1]), place % model.grid[1]];
    const [fromRow, fromColumn] = [Math.floor(order[place] / model.grid[1]), order[place] % model.grid[1]];
    const y = along(down, row, fromRow, Math.floor(i / width));
    const x = along(across, column, fromColumn, i % width);
    mixed[i] = pixels[y * width + x];
  });
  return mixed;
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
 * @param {ViTModel} model
 * @param {readonly number[]} patches
 */
export function blanked(pixels, model, patches) {
  const gone = new Set(patches);
  const patchOf = patchOfPixels(model);
  return pixels.map((value, i) => (gone.has(patchOf[i]) ? 0 : value));
}
