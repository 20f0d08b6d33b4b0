/**
 * Strokes → gray values, by arithmetic alone: the same drawing gives the same bytes in every browser and in node, which
 * a canvas does not guarantee. The page shows the strokes on a canvas and gives these values to the model.
 *
 * @import { Gray } from "./normalise.js"
 * @typedef {readonly [number, number]} Point  x, y in 0 … 224, whole numbers (one byte each in the address)
 * @typedef {Point[]} Stroke
 */

export const SHEET = 224; // the normalisation shrinks anything larger, so a larger sheet would not help
export const PEN_RADIUS = 6; // as shown while drawing, and over a picture
// MNIST's strokes are about an eighth as thick as its digits are high. A pen of one width would make small drawings blots
// and large ones hairlines: of 1512 drawings (bench/handwriting.py, seeds 2 and 3), the bundled ViT recognises 1420 with a
// radius of 6 and 1486 with this (small ones: 436 and 495 of 504). The share was chosen on seeds 0 and 1, where a pen that
// is also limited by the shorter side gave 1482 at best, and this 1487.
const PEN_SHARE = 0.06; // of the longer side
const [THINNEST, THICKEST] = [2, 12];

/** Join a stroke's points by curves through their midpoints. @param {Stroke} stroke @returns {[number, number][]} */
export function smooth(stroke) {
  if (stroke.length < 3) return stroke.map(([x, y]) => [x, y]);
  /** @type {[number, number][]} */
  const line = [[stroke[0][0], stroke[0][1]]];
  for (let i = 1; i < stroke.length - 1; i++) {
    const [x0, y0] = middle(stroke[i - 1], stroke[i]);
    const [x1, y1] = stroke[i];
    const [x2, y2] = middle(stroke[i], stroke[i + 1]);
    for (let t = i === 1 ? 0 : 0.25; t <= 1; t += 0.25) {
      const [a, b, c] = [(1 - t) * (1 - t), 2 * t * (1 - t), t * t];
      line.push([a * x0 + b * x1 + c * x2, a * y0 + b * y1 + c * y2]);
    }
  }
  const last = stroke[stroke.length - 1];
  line.push([last[0], last[1]]);
  return line;
}

/** @param {Point} a @param {Point} b */
function middle(a, b) {
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
}

/** Return the radius of the pen that suits a drawing's size. @param {Stroke[]} strokes @returns {number} */
export function penRadius(strokes) {
  const points = strokes.flat();
  const sides = [0, 1].map((axis) => {
    const places = points.map((point) => point[axis]);
    return places.reduce((a, b) => Math.max(a, b), 0) - places.reduce((a, b) => Math.min(a, b), SHEET);
  });
  return Math.min(THICKEST, Math.max(THINNEST, PEN_SHARE * Math.max(...sides)));
}

/**
 * Draw light strokes on a dark sheet, as thick as suits the drawing's size; over a picture (`under`, also a sheet, which
 * shows where it is lighter) as thick as they are shown.
 * @param {Stroke[]} strokes @param {Gray | null} [under] @returns {Gray}
 */
export function rasterise(strokes, under = null) {
  const values = under === null ? new Uint8Array(SHEET * SHEET) : Uint8Array.from(under.values);
  const radius = under === null ? penRadius(strokes) : PEN_RADIUS;
  for (const stroke of strokes) {
    const line = smooth(stroke);
    if (line.length === 1) segment(values, line[0], line[0], radius);
    for (let i = 1; i < line.length; i++) segment(values, line[i - 1], line[i], radius);
  }
  return { values, height: SHEET, width: SHEET };
}

/**
 * Draw a round-ended segment: values fall from 255 to 0 over the one pixel around the edge.
 * @param {Uint8Array} values @param {Point} from @param {Point} to @param {number} radius
 */
function segment(values, [x0, y0], [x1, y1], radius) {
  const reach = radius + 0.5;
  const [dx, dy] = [x1 - x0, y1 - y0];
  const length2 = dx * dx + dy * dy;
  const [left, right] = pixelRange(Math.min(x0, x1) - reach, Math.max(x0, x1) + reach);
  const [top, bottom] = pixelRange(Math.min(y0, y1) - reach, Math.max(y0, y1) + reach);
  for (let row = top; row <= bottom; row++) {
    const y = row + 0.5 - y0;
    for (let column = left; column <= right; column++) {
      const x = column + 0.5 - x0;
      const along = length2 === 0 ? 0 : Math.min(1, Math.max(0, (x * dx + y * dy) / length2));
      const [offX, offY] = [x - along * dx, y - along * dy];
      const distance2 = offX * offX + offY * offY;
      if (distance2 >= reach * reach) continue;
      const at = row * SHEET + column;
      if (values[at] === 255) continue;
      const value = Math.floor(255 * Math.min(1, reach - Math.sqrt(distance2)) + 0.5);
      if (value > values[at]) values[at] = value;
    }
  }
}

/** @param {number} low @param {number} high */
function pixelRange(low, high) {
  return [Math.max(0, Math.floor(low)), Math.min(SHEET - 1, Math.ceil(high))];
}

/**
 * Enlarge a smaller picture by a whole factor into the middle of the sheet, to be drawn over.
 * @param {Gray} picture  at most as large as the sheet @returns {Gray}
 */
export function onSheet(picture) {
  const factor = Math.max(1, Math.floor(SHEET / Math.max(picture.height, picture.width)));
  const top = Math.floor((SHEET - picture.height * factor) / 2);
  const left = Math.floor((SHEET - picture.width * factor) / 2);
  const values = new Uint8Array(SHEET * SHEET);
  for (let y = 0; y < picture.height * factor; y++) {
    for (let x = 0; x < picture.width * factor; x++) {
      const from = Math.floor(y / factor) * picture.width + Math.floor(x / factor);
      values[(top + y) * SHEET + left + x] = picture.values[from];
    }
  }
  return { values, height: SHEET, width: SHEET };
}
