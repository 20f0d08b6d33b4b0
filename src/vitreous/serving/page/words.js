/** Numbers and places in plain words, the same everywhere on the page. */

/**
 * A share as percent, with the digits that matter; never "100 %" or "0 %" for what is not quite that.
 * @param {number} share
 */
export function percent(share) {
  if (share >= 0.9995 && share < 1) return ">99.9 %";
  if (share > 0 && share < 0.0005) return "<0.1 %";
  return `${signed(100 * share, 1)} %`;
}

/**
 * A signed number with a true minus.
 * @param {number} value
 * @param {number} [digits]
 */
export function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/**
 * @param {number} patch
 * @param {readonly [number, number]} grid
 */
export function placeOf(patch, grid) {
  return `row ${Math.floor(patch / grid[1]) + 1}, column ${(patch % grid[1]) + 1}`;
}

/**
 * How many patches, and of what size where they are cut from the picture itself.
 * @param {import("./engine.js").ViTModel} model
 */
export function patchesWords({ grid, patch_size, cells }) {
  const count = `${grid[0] * grid[1]} patches`;
  return cells.exact ? `${count} of ${patch_size.join(" × ")} pixels` : count;
}

/** @param {number} count */
export function thousands(count) {
  return count.toLocaleString("en").replaceAll(",", "\u2009");
}

/** @param {number} bytes */
export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
