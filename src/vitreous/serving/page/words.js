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

/**
 * Return a warning where the image is unlike those that models were trained on, or nothing.
 * @param {{ name: string, unlike: boolean }[]} predictions
 */
export function unlikeSentence(predictions) {
  const names = predictions.filter(({ unlike }) => unlike).map(({ name }) => name);
  if (names.length === 0) return "";
  if (names.length < predictions.length) {
    return `Unlike the images that ${names[0]} was trained on: do not trust its prediction.`;
  }
  if (names.length > 1) return "Unlike the images they were trained on: do not trust these predictions.";
  return "Unlike the images it was trained on: do not trust this prediction.";
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
