/**
 * The colour scales of the reports (style/colors.py, internals/pictures.py), so that a map is recognised here:
 * cividis over the picture for amounts; blue – white – orange, the picture in ink, for signed values.
 */

const COLOR_SHARE = 0.66;
const INK = [23, 28, 33];
const INK_SHARE = 0.6;

// cividis at 0, 1/32 … 1, straight lines between
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

/**
 * @param {number[]} from
 * @param {number[]} to
 * @param {number} share
 */
function between(from, to, share) {
  return from.map((value, i) => value + (to[i] - value) * share);
}

/** @param {number} share  0 … 1 */
export function amountColor(share) {
  const at = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const first = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return between(CIVIDIS[first], CIVIDIS[first + 1], at - first);
}

/** @param {number} value  -1 … 1 */
export function signedColor(value) {
  const bound = Math.min(1, Math.max(-1, value));
  return between(WHITE, bound < 0 ? BLUE : ORANGE, Math.abs(bound));
}

/** @param {number[]} color */
export function css(color) {
  return `rgb(${color.map((value) => Math.round(value)).join(" ")})`;
}

/**
 * How a patch's colour and a pixel's brightness become one colour. All three ways are straight lines in the brightness,
 * so a patch needs two colours, that of black pixels and that of white ones, and a pixel no more than a mix.
 * @param {"plain" | "amount" | "signed"} kind
 * @param {number[] | null} color  null: nothing is laid over the picture
 * @returns {{ black: number[], white: number[] }}
 */
export function tint(kind, color) {
  if (kind === "plain" || color === null) return { black: [0, 0, 0], white: WHITE };
  if (kind === "signed") return { black: color, white: between(color, INK, INK_SHARE) };
  const over = (/** @type {number} */ gray) => color.map((value) => COLOR_SHARE * value + (1 - COLOR_SHARE) * gray);
  return { black: over(0), white: over(255) };
}
