/**
 * Drawings as short texts for the address bar. A stroke takes about one byte per point: a step of up to seven in each
 * direction is one byte, a longer one is a marker and the point itself. Pixels are runs of zeros and the values between.
 *
 * @import { Image } from "./fitting.js"
 * @import { Stroke } from "./raster.js"
 */

const LARGEST_STEP = 7;
const STEPS = 2 * LARGEST_STEP + 1; // 15: one byte holds a pair of steps as 15·(dx + 7) + (dy + 7), 0 … 224
const JUMP = 255;
const END = 254;
const MAX_POINTS = 5000; // a link with more was not made by this page

/** @param {Stroke[]} strokes @returns {string} */
export function encodeStrokes(strokes) {
  /** @type {number[]} */
  const bytes = [];
  for (const stroke of strokes) {
    stroke.forEach(([x, y], i) => {
      if (i === 0) {
        bytes.push(x, y);
        return;
      }
      const [dx, dy] = [x - stroke[i - 1][0], y - stroke[i - 1][1]];
      if (Math.max(Math.abs(dx), Math.abs(dy)) <= LARGEST_STEP) bytes.push(STEPS * (dx + LARGEST_STEP) + dy + LARGEST_STEP);
      else bytes.push(JUMP, x, y);
    });
    bytes.push(END);
  }
  return toText(Uint8Array.from(bytes));
}

/** @param {string} text @returns {Stroke[]} */
export function decodeStrokes(text) {
  const bytes = fromText(text);
  if (bytes.length > 3 * MAX_POINTS) throw new RangeError("too many points");
  /** @type {Stroke[]} */
  const strokes = [];
  let at = 0;
  const point = () => {
    const pair = /** @type {const} */ ([bytes[at], bytes[at + 1]]);
    if (!(pair[0] <= 224 && pair[1] <= 224)) throw new RangeError("a point is outside the sheet");
    at += 2;
    return pair;
  };
  while (at < bytes.length) {
    /** @type {Stroke} */
    const stroke = [point()];
    while (bytes[at] !== END) {
      if (at >= bytes.length) throw new RangeError("a stroke has no end marker");
      const code = bytes[at++];
      if (code === JUMP) {
        stroke.push(point());
        continue;
      }
      const [x, y] = stroke[stroke.length - 1];
      const next = /** @type {const} */ ([x + Math.floor(code / STEPS) - LARGEST_STEP, y + (code % STEPS) - LARGEST_STEP]);
      if (code >= STEPS * STEPS || Math.min(...next) < 0 || Math.max(...next) > 224) throw new RangeError("a step leaves the sheet");
      stroke.push(next);
    }
    at += 1;
    strokes.push(stroke);
  }
  return strokes;
}

/** @param {Uint8Array} pixels @returns {string} */
export function encodePixels(pixels) {
  /** @type {number[]} */
  const bytes = [];
  let at = 0;
  while (at < pixels.length) {
    const zeros = runLength(pixels, at, (value) => value === 0);
    const others = runLength(pixels, at + zeros, (value) => value !== 0);
    bytes.push(zeros, others, ...pixels.subarray(at + zeros, at + zeros + others));
    at += zeros + others;
  }
  return toText(Uint8Array.from(bytes));
}

/** @param {Uint8Array} pixels @param {number} from @param {(value: number) => boolean} belongs */
function runLength(pixels, from, belongs) {
  let length = 0;
  while (length < 255 && from + length < pixels.length && belongs(pixels[from + length])) length += 1;
  return length;
}

/** @param {string} text @param {number} count  the number of pixels expected @returns {Uint8Array} */
export function decodePixels(text, count) {
  const bytes = fromText(text);
  const pixels = new Uint8Array(count);
  let [at, filled] = [0, 0];
  while (at + 1 < bytes.length) {
    const [zeros, others] = [bytes[at], bytes[at + 1]];
    filled += zeros;
    if (filled + others > count || at + 2 + others > bytes.length) throw new RangeError("too many pixels");
    pixels.set(bytes.subarray(at + 2, at + 2 + others), filled);
    filled += others;
    at += 2 + others;
  }
  if (filled !== count) throw new RangeError("too few pixels");
  return pixels;
}

/** @param {Image} image @returns {string}  such as "3x32x32.AAEC…": channels, height and width come first */
export function encodeImage({ values, channels, height, width }) {
  return `${channels}x${height}x${width}.${encodePixels(values)}`;
}

/** @param {string} text @param {number} longest  side that is accepted @returns {Image} */
export function decodeImage(text, longest) {
  const [, shape, pixels] = /^([13]x\d{1,3}x\d{1,3})\.(.*)$/.exec(text) ?? [];
  const [channels, height, width] = (shape ?? "").split("x").map(Number);
  if (!(Math.min(height, width) >= 1 && Math.max(height, width) <= longest)) throw new RangeError("no image of this shape");
  return { values: decodePixels(pixels, channels * height * width), channels, height, width };
}

/** Encode as base64 in the alphabet that needs no escaping in an address. @param {Uint8Array} bytes */
function toText(bytes) {
  return toBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** @param {string} text */
function fromText(text) {
  return fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));
}

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let characters = "";
  for (const byte of bytes) characters += String.fromCharCode(byte);
  return btoa(characters);
}

/** @param {string} text */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
