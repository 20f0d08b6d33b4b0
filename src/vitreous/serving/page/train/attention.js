/**
 * Multi-head attention, softmax(q kᵀ / √K) v, forward and backward; and the article's mistake, attention over the batch.
 *
 * q is (B·M, D), k and v are the two parts of kv (B·N, 2D): B images, N tokens, of which the first M ask.
 *
 * @typedef {object} Shape
 * @property {number} batch
 * @property {number} tokens  N
 * @property {number} queries  M: N, or 1 where only the class token is read afterwards
 * @property {number} heads
 * @property {number} dim
 * @property {boolean} overBatch  the mistake: each token attends to the same token of the other images
 *
 * @typedef {object} Groups  tokens that attend to each other; a row is group · perGroup + i · perToken
 * @property {number} count  of groups
 * @property {number} asking  queries of each
 * @property {number} asked  keys of each
 * @property {{ perGroup: number, perToken: number }} query  the rows of q
 * @property {{ perGroup: number, perToken: number }} key  the rows of kv
 */

/** @param {Shape} shape @returns {Groups} */
function groupsOf({ batch, tokens, queries, overBatch }) {
  if (!overBatch) {
    const [query, key] = [queries, tokens].map((perGroup) => ({ perGroup, perToken: 1 }));
    return { count: batch, asking: queries, asked: tokens, query, key };
  }
  // (batch, token, feature) read as (sequence, batch, feature): the images are the sequence
  const [query, key] = [queries, tokens].map((perToken) => ({ perGroup: 1, perToken }));
  return { count: queries, asking: batch, asked: batch, query, key };
}

/**
 * @param {Float32Array} q @param {Float32Array} kv @param {Shape} shape
 * @returns {{ out: Float32Array, weights: Float32Array }}  weights: (groups, heads, asking, asked)
 */
export function attend(q, kv, shape) {
  const { heads, dim } = shape;
  const { count, asking, asked, query, key } = groupsOf(shape);
  const width = dim / heads;
  const scale = 1 / Math.sqrt(width);
  const [queryStep, keyStep] = [query.perToken * dim, key.perToken * 2 * dim];
  const out = new Float32Array(q.length);
  const weights = new Float32Array(count * heads * asking * asked);
  for (let group = 0; group < count; group++) {
    for (let head = 0; head < heads; head++) {
      const firstQuery = group * query.perGroup * dim + head * width;
      const firstKey = group * key.perGroup * 2 * dim + head * width;
      for (let i = 0; i < asking; i++) {
        const from = firstQuery + i * queryStep;
        const row = ((group * heads + head) * asking + i) * asked;
        let highest = -Infinity, total = 0;
        for (let j = 0; j < asked; j++) {
          const to = firstKey + j * keyStep;
          let sum = 0;
          for (let p = 0; p < width; p++) sum += q[from + p] * kv[to + p];
          weights[row + j] = sum * scale;
          if (weights[row + j] > highest) highest = weights[row + j];
        }
        for (let j = 0; j < asked; j++) total += weights[row + j] = Math.exp(weights[row + j] - highest);
        for (let j = 0; j < asked; j++) {
          const weight = (weights[row + j] /= total);
          const value = firstKey + j * keyStep + dim;
          for (let p = 0; p < width; p++) out[from + p] += weight * kv[value + p];
        }
      }
    }
  }
  return { out, weights };
}

/**
 * @param {Float32Array} q @param {Float32Array} kv @param {Float32Array} weights @param {Float32Array} dOut
 * @param {Shape} shape
 * @returns {{ dq: Float32Array, dkv: Float32Array }}
 */
export function attendBackward(q, kv, weights, dOut, shape) {
  const { heads, dim } = shape;
  const { count, asking, asked, query, key } = groupsOf(shape);
  const width = dim / heads;
  const scale = 1 / Math.sqrt(width);
  const [queryStep, keyStep] = [query.perToken * dim, key.perToken * 2 * dim];
  const [dq, dkv] = [new Float32Array(q.length), new Float32Array(kv.length)];
  const dWeights = new Float64Array(asked);
  for (let group = 0; group < count; group++) {
    for (let head = 0; head < heads; head++) {
      const firstQuery = group * query.perGroup * dim + head * width;
      const firstKey = group * key.perGroup * 2 * dim + head * width;
      for (let i = 0; i < asking; i++) {
        const from = firstQuery + i * queryStep;
        const row = ((group * heads + head) * asking + i) * asked;
        let mean = 0;
        for (let j = 0; j < asked; j++) {
          const value = firstKey + j * keyStep + dim;
          let sum = 0;
          const weight = weights[row + j];
          for (let p = 0; p < width; p++) {
            const d = dOut[from + p];
            sum += d * kv[value + p];
            dkv[value + p] += weight * d;
          }
          dWeights[j] = sum;
          mean += sum * weight;
        }
        for (let j = 0; j < asked; j++) {
          const to = firstKey + j * keyStep;
          const dLogit = weights[row + j] * (dWeights[j] - mean) * scale;
          for (let p = 0; p < width; p++) {
            dq[from + p] += dLogit * kv[to + p];
            dkv[to + p] += dLogit * q[from + p];
          }
        }
      }
    }
  }
  return { dq, dkv };
}
