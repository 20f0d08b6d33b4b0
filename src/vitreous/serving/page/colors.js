/**
 * The colour scales of the reports (reports/colors.py, inspection/pictures.py), so that a map looks the same in both:
 * cividis over the picture for amounts; blue – white – orange, the picture in ink, for signed values.
 */

export const COLOR_OPACITY = 0.66;
export const INK = [23, 28, 33];
export const INK_OPACITY = 0.6;

// cividis at 0, 1/32 … 1, linear in between
const CIVIDIS = [
  "00224e", "00285b", "002e6a", "053371", "1a386f", "273e6e", "32436d", "3b496c", "434e6c", "4b546c", "535a6d",
  "5a5f6e", "61656f", "686a71", "6f7073", "767676", "7d7c78", "848279", "8c8878", "938e78", "9b9476", "a39a74",
  "aba072", "b4a76f", "bcae6c", "c4b468", "cdbb63", "d5c25e", "dec958", "e7d150", "f0d846", "f9e03a", "fee838",
].map(bytesOf);
const BLUE = bytesOf("2f6db5");
const ORANGE = bytesOf("d9730d");
const WHITE = [255, 255, 255];

/** @param {string} hex */
function bytesOf(hex) {
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** @param {number[]} from @param {number[]} to @param {number} fraction */
function mix(from, to, fraction) {
  return from.map((value, i) => value + (to[i] - value) * fraction);
}

/** @param {number} fraction  0 … 1 */
export function amountColor(fraction) {
  const at = Math.min(1, Math.max(0, fraction)) * (CIVIDIS.length - 1);
  const first = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return mix(CIVIDIS[first], CIVIDIS[first + 1], at - first);
}

/** @param {number} value  -1 … 1 */
export function signedColor(value) {
  return mix(WHITE, value < 0 ? BLUE : ORANGE, Math.min(1, Math.abs(value)));
}

/** @param {number[]} color */
export function css(color) {
  return `rgb(${color.map((value) => Math.round(value)).join(" ")})`;
}
