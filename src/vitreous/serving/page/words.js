/** Numbers and places in words, the same everywhere on the page. */

import { numPatches, rowAndColumn } from "./vit-maths.js";

/** Return a fraction as a percentage; "100 %" and "0 %" only for exactly 1 and 0. @param {number} fraction */
export function percent(fraction) {
  if (fraction >= 0.9995 && fraction < 1) return ">99.9 %";
  if (fraction > 0 && fraction < 0.0005) return "<0.1 %";
  return `${signed(100 * fraction, 1)} %`;
}

/** Return a number with a true minus sign. @param {number} value @param {number} [digits] */
export function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** @param {number} patch @param {readonly [number, number]} grid */
export function placeName(patch, grid) {
  const [row, column] = rowAndColumn(patch, grid);
  return `row ${row + 1}, column ${column + 1}`;
}

/**
 * Return how many patches there are, and their size where they are split from the picture itself.
 * @param {import("./engine.js").ViTModel} model
 */
export function describePatches(model) {
  const count = `${numPatches(model)} patches`;
  return model.cells.exact ? `${count} of ${model.patch_size.join(" × ")} pixels` : count;
}

/** @param {number} count */
export function thousands(count) {
  return count.toLocaleString("en").replaceAll(",", "\u2009");
}

/** @param {number} bytes */
export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Return a size in words. @param {readonly number[]} sides  height, width */
export function times(sides) {
  return sides.join(" × ");
}
