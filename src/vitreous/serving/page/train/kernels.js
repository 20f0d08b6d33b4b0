/**
 * The arithmetic that a ViT is made of, forward and backward, on flat Float32Arrays in row order.
 *
 * Everything that costs time is one product, `multiply`; tests/page/test_train_parity.py compares the whole with PyTorch.
 */

/**
 * out (m, n) = a (m, k) · b (n, k)ᵀ: both operands are read along their rows. Two rows by four columns at a time, so that
 * each number read takes part in several products: four times as fast as the plain loops.
 * @param {Float32Array} out @param {Float32Array} a @param {Float32Array} b
 * @param {number} m @param {number} n @param {number} k
 * @param {Float32Array | null} [bias]  (n,), added to every row
 */
export function multiply(out, a, b, m, n, k, bias = null) {
  const [evenRows, fourfoldColumns] = [m & ~1, n & ~3];
  for (let i = 0; i < evenRows; i += 2) {
    const [a0, a1] = [i * k, (i + 1) * k];
    for (let j = 0; j < fourfoldColumns; j += 4) {
      const b0 = j * k, b1 = b0 + k, b2 = b1 + k, b3 = b2 + k;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
      for (let p = 0; p < k; p++) {
        const x = a[a0 + p], y = a[a1 + p];
        const c0 = b[b0 + p], c1 = b[b1 + p], c2 = b[b2 + p], c3 = b[b3 + p];
        s0 += x * c0; s1 += x * c1; s2 += x * c2; s3 += x * c3;
        t0 += y * c0; t1 += y * c1; t2 += y * c2; t3 += y * c3;
      }
      const o = i * n + j, q = o + n;
      out[o] = s0; out[o + 1] = s1; out[o + 2] = s2; out[o + 3] = s3;
      out[q] = t0; out[q + 1] = t1; out[q + 2] = t2; out[q + 3] = t3;
    }
  }
  dots(out, a, b, 0, evenRows, fourfoldColumns, n, k);
  dots(out, a, b, evenRows, m, 0, n, k);
  if (bias !== null) for (let i = 0; i < m * n; i++) out[i] += bias[i % n];
}

/**
 * The rest of `multiply`, where the blocks do not fit: rows from … to, columns first … n.
 * @param {Float32Array} out @param {Float32Array} a @param {Float32Array} b
 * @param {number} from @param {number} to @param {number} first @param {number} n @param {number} k
 */
function dots(out, a, b, from, to, first, n, k) {
  for (let i = from; i < to; i++) {
    for (let j = first; j < n; j++) {
      let sum = 0;
      for (let p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
      out[i * n + j] = sum;
    }
  }
}

/** Return a (rows, columns) as (columns, rows). @param {Float32Array} a @param {number} rows @param {number} columns */
export function transpose(a, rows, columns) {
  const out = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j * rows + i] = a[i * columns + j];
  return out;
}

/** Add to the first numbers of `into`. @param {Float32Array} into @param {Float32Array} values */
export function add(into, values) {
  for (let i = 0; i < values.length; i++) into[i] += values[i];
}

/**
 * @typedef {object} Linear  y = x Wᵀ + b, as nn.Linear
 * @property {Float32Array} weight  (outputs, inputs)
 * @property {Float32Array} bias  (outputs,)
 * @typedef {{ value: Linear, gradient: Linear }} LinearPair
 */

/** @param {Linear} layer @param {Float32Array} x  (rows, inputs) @returns {Float32Array}  (rows, outputs) */
export function linear({ weight, bias }, x) {
  const outputs = bias.length;
  const inputs = weight.length / outputs;
  const rows = x.length / inputs;
  const out = new Float32Array(rows * outputs);
  multiply(out, x, weight, rows, outputs, inputs, bias);
  return out;
}

/**
 * Write the gradients of weight and bias; return that of x.
 * @param {LinearPair} pair @param {Float32Array} x @param {Float32Array} dy  (rows, outputs)
 * @param {boolean} [needsInput]  false: x is the image, whose gradient nobody needs
 */
export function linearBackward({ value, gradient }, x, dy, needsInput = true) {
  const outputs = value.bias.length;
  const inputs = value.weight.length / outputs;
  const rows = x.length / inputs;
  const columns = transpose(dy, rows, outputs); // (outputs, rows)
  multiply(gradient.weight, columns, transpose(x, rows, inputs), outputs, inputs, rows);
  for (let j = 0; j < outputs; j++) {
    let sum = 0;
    for (let i = 0; i < rows; i++) sum += columns[j * rows + i];
    gradient.bias[j] = sum;
  }
  const dx = new Float32Array(needsInput ? rows * inputs : 0);
  if (needsInput) multiply(dx, dy, transpose(value.weight, outputs, inputs), rows, inputs, outputs);
  return dx;
}

/**
 * LayerNorm over rows of `weight.length` numbers. `normal` is x before scale and shift; both are needed backward.
 * @param {Linear} layer @param {Float32Array} x @param {number} epsilon
 */
export function layerNorm({ weight, bias }, x, epsilon) {
  const width = weight.length;
  const rows = x.length / width;
  const [out, normal, inverse] = [new Float32Array(x.length), new Float32Array(x.length), new Float32Array(rows)];
  for (let i = 0; i < rows; i++) {
    const start = i * width;
    let mean = 0, square = 0;
    for (let j = 0; j < width; j++) mean += x[start + j];
    mean /= width;
    for (let j = 0; j < width; j++) square += (x[start + j] - mean) ** 2;
    const scale = 1 / Math.sqrt(square / width + epsilon);
    inverse[i] = scale;
    for (let j = 0; j < width; j++) {
      const at = start + j;
      normal[at] = (x[at] - mean) * scale;
      out[at] = normal[at] * weight[j] + bias[j];
    }
  }
  return { out, normal, inverse };
}

/**
 * Write the gradients of scale and shift; return that of x.
 * @param {LinearPair} pair @param {{ normal: Float32Array, inverse: Float32Array }} seen @param {Float32Array} dy
 */
export function layerNormBackward({ value, gradient }, { normal, inverse }, dy) {
  const width = value.weight.length;
  const dx = new Float32Array(dy.length);
  gradient.weight.fill(0);
  gradient.bias.fill(0);
  for (let i = 0; i < inverse.length; i++) {
    const start = i * width;
    let mean = 0, along = 0;
    for (let j = 0; j < width; j++) {
      const at = start + j;
      gradient.weight[j] += dy[at] * normal[at];
      gradient.bias[j] += dy[at];
      const d = dy[at] * value.weight[j];
      mean += d;
      along += d * normal[at];
    }
    mean /= width;
    along /= width;
    for (let j = 0; j < width; j++) {
      const at = start + j;
      dx[at] = (dy[at] * value.weight[j] - mean - normal[at] * along) * inverse[i];
    }
  }
  return dx;
}

/**
 * GELU, x Φ(x), and its derivative. Φ by formula 7.1.26 of Abramowitz & Stegun, which is exact to 1.5e-7: less than
 * Float32 rounds. Its exponential is also that of the derivative's density.
 * @param {Float32Array} x
 */
export function gelu(x) {
  const [out, slope] = [new Float32Array(x.length), new Float32Array(x.length)];
  for (let i = 0; i < x.length; i++) {
    const value = x[i];
    const t = 1 / (1 + 0.3275911 * Math.abs(value) * Math.SQRT1_2);
    const bell = Math.exp(-0.5 * value * value);
    const tail =
      0.5 * bell * t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    const below = value < 0 ? tail : 1 - tail;
    out[i] = value * below;
    slope[i] = below + value * bell * 0.3989422804014327; // 1 / √(2π)
  }
  return { out, slope };
}
