/**
 * MNIST's own normalisation of a drawn digit, with the same integers as `data/digit_normalisation.py`, which states the
 * rule; tests/page/test_normalise.py checks both against golden vectors. All sums stay below 2⁵³, so that JavaScript's
 * numbers hold them exactly.
 *
 * @typedef {{ values: Uint8Array, height: number, width: number }} Gray  a picture of gray values, row by row
 * @typedef {{ top: number, left: number, height: number, width: number }} Bounds
 *
 * @typedef {object} Steps  each step of the rule, for display
 * @property {boolean} inverted  dark strokes on light were inverted
 * @property {boolean} ready  used unchanged: 28×28, light on dark
 * @property {Gray} lightOnDark
 * @property {Gray | null} ink  this and the next two: null where the picture was ready
 * @property {Bounds | null} bounds  of the ink
 * @property {Gray | null} scaled  the ink within its bounds, its longer side 20
 * @property {Gray} centred  28×28, the model's input
 */

export const SIDE = 28;
export const DIGIT_SIDE = 20; // of the longer side of the ink, within 28×28
const LONGEST_SIDE = 224;
const LEAST_CONTRAST = 32;
const LEAST_INK = 16;

/** @param {Gray} gray @returns {Steps | null}  null where the picture is blank */
export function normalise(gray) {
  const picture = shrink(gray);
  const border = borderOf(picture);
  const median = border[(border.length - 1) >> 1];
  const inverted = median - least(picture.values) > most(picture.values) - median;
  const upright = (/** @type {number} */ value) => (inverted ? 255 - value : value);
  const lightOnDark = { ...picture, values: picture.values.map(upright) };
  const background = upright(median);
  const contrast = most(lightOnDark.values) - background;
  if (contrast < LEAST_CONTRAST) return null;
  if (picture.height === SIDE && picture.width === SIDE && background <= LEAST_INK) {
    return { inverted, ready: true, lightOnDark, ink: null, bounds: null, scaled: null, centred: lightOnDark };
  }
  const distances = border.map((value) => Math.abs(value - median)).sort();
  const spread = distances[Math.floor((95 * (distances.length - 1)) / 100)];
  const floor = background + Math.min(contrast >> 1, Math.max(LEAST_INK, 2 * spread));
  const inkOf = (/** @type {number} */ value) =>
    value > floor ? Math.min(255, Math.floor((255 * (value - background) + (contrast >> 1)) / contrast)) : 0;
  const ink = { ...picture, values: lightOnDark.values.map(inkOf) };
  const bounds = boundsOf(ink);
  const scaled = scale(ink, bounds);
  return { inverted, ready: false, lightOnDark, ink, bounds, scaled, centred: centre(scaled) };
}

/** Reduce a picture whose longer side exceeds 224 to 224. @param {Gray} gray @returns {Gray} */
export function shrink(gray) {
  const longer = Math.max(gray.height, gray.width);
  if (longer <= LONGEST_SIDE) return gray;
  return areaAverage(gray, scaledSide(gray.height, longer, LONGEST_SIDE), scaledSide(gray.width, longer, LONGEST_SIDE));
}

/**
 * Return the picture at another size: each pixel is the mean of the source rectangle under it, weighted by area.
 * @param {Gray} gray @param {number} height @param {number} width @returns {Gray}
 */
export function areaAverage(gray, height, width) {
  // First along the rows, then down the columns: the weights are products of the two.
  const across = sumAlongRows(gray.values, gray.height, gray.width, width); // (width, gray.height)
  const sums = sumAlongRows(across, width, gray.height, height); // (height, width)
  const area = gray.height * gray.width;
  return { values: Uint8Array.from(sums, (sum) => Math.floor((2 * sum + area) / (2 * area))), height, width };
}

/**
 * Return weighted sums of each row, (target, rows): transposed, so that a second call sums along the columns.
 * @param {ArrayLike<number>} values  (rows, source) @param {number} rows @param {number} source @param {number} target
 */
function sumAlongRows(values, rows, source, target) {
  const sums = new Float64Array(target * rows);
  overlaps(source, target).forEach(({ first, weights }, output) => {
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * values[row * source + first + i];
      sums[output * rows + row] = sum;
    }
  });
  return sums;
}

/**
 * For each of `target` output pixels, return the first source pixel it covers, and how much of that pixel and of the
 * next ones it covers, in units of 1/target of a pixel.
 * @param {number} source @param {number} target
 */
function overlaps(source, target) {
  return Array.from({ length: target }, (_, output) => {
    const [start, end] = [output * source, (output + 1) * source];
    const first = Math.floor(start / target);
    const last = Math.ceil(end / target);
    const weights = Array.from({ length: last - first }, (_unused, i) => {
      const pixel = (first + i) * target;
      return Math.min(end, pixel + target) - Math.max(start, pixel);
    });
    return { first, weights };
  });
}

/** @param {Gray} ink  with at least one value above 0 @returns {Bounds} */
function boundsOf({ values, height, width }) {
  const [rows, columns] = [new Uint8Array(height), new Uint8Array(width)]; // 1 where there is ink
  values.forEach((value, i) => {
    if (value > 0) rows[Math.floor(i / width)] = columns[i % width] = 1;
  });
  const [top, left] = [rows.indexOf(1), columns.indexOf(1)];
  return { top, left, height: rows.lastIndexOf(1) - top + 1, width: columns.lastIndexOf(1) - left + 1 };
}

/**
 * Return the ink within its bounds, the longer side scaled to 20, the lightest value to 255.
 * @param {Gray} ink @param {Bounds} bounds @returns {Gray}
 */
function scale(ink, { top, left, height, width }) {
  const cropped = new Uint8Array(height * width);
  for (let y = 0; y < height; y++) {
    const start = (top + y) * ink.width + left;
    cropped.set(ink.values.subarray(start, start + width), y * width);
  }
  const longer = Math.max(height, width);
  const [scaledHeight, scaledWidth] = [height, width].map((side) => scaledSide(side, longer, DIGIT_SIDE));
  const scaled = areaAverage({ values: cropped, height, width }, scaledHeight, scaledWidth);
  const lightest = Math.max(1, most(scaled.values));
  return { ...scaled, values: scaled.values.map((value) => Math.floor((255 * value + (lightest >> 1)) / lightest)) };
}

/** Return 28×28 with the ink's centre of mass in the middle, as far as all of it fits. @param {Gray} ink @returns {Gray} */
function centre({ values, height, width }) {
  const rows = new Float64Array(height);
  const columns = new Float64Array(width);
  values.forEach((value, i) => {
    rows[Math.floor(i / width)] += value;
    columns[i % width] += value;
  });
  const [top, left] = [firstOf(rows), firstOf(columns)];
  const centred = new Uint8Array(SIDE * SIDE);
  for (let y = 0; y < height; y++) centred.set(values.subarray(y * width, (y + 1) * width), (top + y) * SIDE + left);
  return { values: centred, height: SIDE, width: SIDE };
}

/** @param {Float64Array} sums  of the rows or columns */
function firstOf(sums) {
  const mass = sums.reduce((total, sum) => total + sum, 0);
  const moment = sums.reduce((total, sum, index) => total + index * sum, 0);
  const first = -Math.floor((2 * moment - (SIDE - 1) * mass) / (2 * mass));
  return Math.min(Math.max(first, 0), SIDE - sums.length);
}

/** Return the values of the outermost pixels, sorted. @param {Gray} picture */
function borderOf({ values, height, width }) {
  const edge = Math.max(1, Math.floor(Math.min(height, width) / 16));
  const isOuter = (/** @type {number} */ at, /** @type {number} */ size) => at < edge || at >= size - edge;
  return values.filter((_, i) => isOuter(Math.floor(i / width), height) || isOuter(i % width, width)).sort();
}

/** @param {Uint8Array} values */
function least(values) {
  return values.reduce((low, value) => Math.min(low, value), 255);
}

/** @param {Uint8Array} values */
function most(values) {
  return values.reduce((high, value) => Math.max(high, value), 0);
}

/** @param {number} side @param {number} longer @param {number} target */
function scaledSide(side, longer, target) {
  return Math.max(1, Math.floor((2 * target * side + longer) / (2 * longer)));
}
