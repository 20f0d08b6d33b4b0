/**
 * MNIST's own normalisation of a drawn digit, the same integers as `src/vitreous/data/strokes.py`, which states the
 * rule; golden vectors made there are checked here (tests/page/test_normalise.py). All sums stay below 2⁵³, so that
 * JavaScript's numbers hold them exactly.
 *
 * @typedef {{ values: Uint8Array, height: number, width: number }} Gray  a picture of gray values, row by row
 * @typedef {{ top: number, left: number, height: number, width: number }} Box
 *
 * @typedef {object} Steps  each step of the rule, for display
 * @property {boolean} inverted  dark strokes on light were turned round
 * @property {boolean} ready  taken as it was: 28×28, light on dark
 * @property {Gray} lightOnDark
 * @property {Gray | null} ink  this and the next three: null where the picture was ready
 * @property {Box | null} box  of the ink
 * @property {Gray | null} scaled  the box, its longer side 20
 * @property {Box | null} placed  where the scaled box went in 28×28
 * @property {Gray} centred  28×28, what the model gets
 */

export const SIDE = 28;
export const BOX = 20;
export const LONGEST = 224;
const LEAST_CONTRAST = 32;
const LEAST_INK = 16;

/**
 * @param {Gray} gray
 * @returns {Steps | null}  null where the picture is blank
 */
export function normalise(gray) {
  const picture = shrink(gray);
  let values = picture.values;
  let border = borderOf(picture);
  let background = border[(border.length - 1) >> 1];
  const [darkest, most] = extremes(values);
  let lightest = most;
  const inverted = background - darkest > lightest - background;
  if (inverted) {
    values = values.map((value) => 255 - value);
    border = border.map((value) => 255 - value).reverse();
    background = 255 - background;
    lightest = 255 - darkest;
  }
  const contrast = lightest - background;
  if (contrast < LEAST_CONTRAST) return null;
  const lightOnDark = { ...picture, values };
  if (picture.height === SIDE && picture.width === SIDE && background <= LEAST_INK) {
    return { inverted, ready: true, lightOnDark, ink: null, box: null, scaled: null, placed: null, centred: lightOnDark };
  }
  const distances = border.map((value) => Math.abs(value - background)).sort();
  const spread = distances[Math.floor((95 * (distances.length - 1)) / 100)];
  const floor = background + Math.min(contrast >> 1, Math.max(LEAST_INK, 2 * spread));
  const inkOf = (/** @type {number} */ value) =>
    value > floor ? Math.min(255, Math.floor((255 * (value - background) + (contrast >> 1)) / contrast)) : 0;
  const ink = { ...picture, values: values.map(inkOf) };
  const box = boundingBox(ink);
  const scaled = fitBox(ink, box);
  const placed = place(scaled);
  return { inverted, ready: false, lightOnDark, ink, box, scaled, placed, centred: centre(scaled, placed) };
}

/**
 * A picture whose longer side exceeds 224, brought to 224.
 * @param {Gray} gray
 * @returns {Gray}
 */
export function shrink(gray) {
  const longer = Math.max(gray.height, gray.width);
  if (longer <= LONGEST) return gray;
  return areaAverage(gray, scaledSide(gray.height, longer, LONGEST), scaledSide(gray.width, longer, LONGEST));
}

/**
 * Each output pixel averages the source rectangle under it, pixels counted by the area covered.
 * @param {Gray} gray
 * @param {number} height
 * @param {number} width
 * @returns {Gray}
 */
export function areaAverage(gray, height, width) {
  const rows = overlaps(gray.height, height);
  const columns = overlaps(gray.width, width);
  // First along the rows, then down the columns: the weights are products, so the order does not matter.
  const across = new Float64Array(gray.height * width);
  for (let y = 0; y < gray.height; y++) {
    for (let j = 0; j < width; j++) {
      const { first, weights } = columns[j];
      let sum = 0;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * gray.values[y * gray.width + first + i];
      across[y * width + j] = sum;
    }
  }
  const values = new Uint8Array(height * width);
  const area = gray.height * gray.width;
  for (let i = 0; i < height; i++) {
    const { first, weights } = rows[i];
    for (let j = 0; j < width; j++) {
      let sum = 0;
      for (let r = 0; r < weights.length; r++) sum += weights[r] * across[(first + r) * width + j];
      values[i * width + j] = Math.floor((2 * sum + area) / (2 * area));
    }
  }
  return { values, height, width };
}

/**
 * For each of `target` output pixels: the first source pixel it covers, and how much of that one and of the following
 * it covers, in units of 1/target of a pixel.
 * @param {number} source
 * @param {number} target
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

/**
 * @param {Gray} ink  with at least one value above 0
 * @returns {Box}
 */
function boundingBox({ values, height, width }) {
  let [top, bottom, left, right] = [height, -1, width, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (values[y * width + x] === 0) continue;
      if (y < top) top = y;
      if (y > bottom) bottom = y;
      if (x < left) left = x;
      if (x > right) right = x;
    }
  }
  return { top, left, height: bottom - top + 1, width: right - left + 1 };
}

/**
 * The box, its longer side scaled to 20, its lightest value to 255.
 * @param {Gray} ink
 * @param {Box} box
 * @returns {Gray}
 */
function fitBox(ink, box) {
  const cut = new Uint8Array(box.height * box.width);
  for (let y = 0; y < box.height; y++) {
    const start = (box.top + y) * ink.width + box.left;
    cut.set(ink.values.subarray(start, start + box.width), y * box.width);
  }
  const longer = Math.max(box.height, box.width);
  const scaled = areaAverage(
    { values: cut, height: box.height, width: box.width },
    scaledSide(box.height, longer, BOX),
    scaledSide(box.width, longer, BOX),
  );
  const top = Math.max(1, extremes(scaled.values)[1]);
  return { ...scaled, values: scaled.values.map((value) => Math.floor((255 * value + (top >> 1)) / top)) };
}

/**
 * Where the box goes so that its centre of mass lies in the middle of 28×28 and nothing is cut off.
 * @param {Gray} box
 * @returns {Box}
 */
function place({ values, height, width }) {
  const rows = new Float64Array(height);
  const columns = new Float64Array(width);
  values.forEach((value, i) => {
    rows[Math.floor(i / width)] += value;
    columns[i % width] += value;
  });
  return { top: firstOf(rows), left: firstOf(columns), height, width };
}

/** @param {Float64Array} sums */
function firstOf(sums) {
  const mass = sums.reduce((total, sum) => total + sum, 0);
  const moment = sums.reduce((total, sum, index) => total + index * sum, 0);
  const first = -Math.floor((2 * moment - (SIDE - 1) * mass) / (2 * mass));
  return Math.min(Math.max(first, 0), SIDE - sums.length);
}

/**
 * @param {Gray} box
 * @param {Box} placed
 * @returns {Gray}
 */
function centre(box, placed) {
  const values = new Uint8Array(SIDE * SIDE);
  for (let y = 0; y < box.height; y++) {
    const row = box.values.subarray(y * box.width, (y + 1) * box.width);
    values.set(row, (placed.top + y) * SIDE + placed.left);
  }
  return { values, height: SIDE, width: SIDE };
}

/**
 * The values of the outermost pixels, sorted (by counting: there are many, and only 256 different ones).
 * @param {Gray} picture
 */
function borderOf({ values, height, width }) {
  const edge = Math.max(1, Math.floor(Math.min(height, width) / 16));
  const counts = new Uint32Array(256);
  let total = 0;
  for (let y = 0; y < height; y++) {
    const whole = y < edge || y >= height - edge || width <= 2 * edge;
    for (let x = 0; x < width; x++) {
      if (!whole && x === edge) x = width - edge; // past the inside
      counts[values[y * width + x]] += 1;
      total += 1;
    }
  }
  const border = new Uint8Array(total);
  let filled = 0;
  counts.forEach((count, value) => {
    border.fill(value, filled, filled + count);
    filled += count;
  });
  return border;
}

/** @param {Uint8Array} values */
function extremes(values) {
  let [least, most] = [255, 0];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return [least, most];
}

/**
 * @param {number} side
 * @param {number} longer
 * @param {number} target
 */
function scaledSide(side, longer, target) {
  return Math.max(1, Math.floor((2 * target * side + longer) / (2 * longer)));
}

/**
 * Gray of RGBA pixels, as `data/images.py` says: transparent parts over whatever contrasts, then ITU-R 601 in integers.
 * @param {Uint8ClampedArray} rgba
 * @param {number} height
 * @param {number} width
 * @returns {Gray}
 */
export function grayOf(rgba, height, width) {
  const values = new Uint8Array(height * width);
  const backdrop = backdropOf(rgba);
  for (let i = 0; i < values.length; i++) {
    const alpha = rgba[4 * i + 3];
    const over = (/** @type {number} */ value) => Math.floor((value * alpha + backdrop * (255 - alpha) + 127) / 255);
    values[i] = luma(over(rgba[4 * i]), over(rgba[4 * i + 1]), over(rgba[4 * i + 2]));
  }
  return { values, height, width };
}

/** @param {Uint8ClampedArray} rgba */
function backdropOf(rgba) {
  let [weighted, weight] = [0, 0];
  for (let i = 0; i < rgba.length; i += 4) {
    weighted += luma(rgba[i], rgba[i + 1], rgba[i + 2]) * rgba[i + 3];
    weight += rgba[i + 3];
  }
  return weighted > 127.5 * weight ? 0 : 255;
}

/**
 * @param {number} red
 * @param {number} green
 * @param {number} blue
 */
function luma(red, green, blue) {
  return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16;
}
