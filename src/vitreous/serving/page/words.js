/** Numbers and places in words, the same everywhere on the page. */

import { localised, text } from "./texts.js";
import { numPatches, patchOffset, rowAndColumn } from "./vit-maths.js";

/** Return a fraction as a percentage; "100 %" and "0 %" only for exactly 1 and 0. @param {number} fraction */
export function percent(fraction) {
  if (fraction >= 0.9995 && fraction < 1) return localised(">99.9 %");
  if (fraction > 0 && fraction < 0.0005) return localised("<0.1 %");
  return `${signed(100 * fraction, 1)} %`;
}

/** Return a fraction in whole percent, where there is little room. @param {number} fraction */
export function wholePercent(fraction) {
  return `${Math.round(100 * fraction)} %`;
}

/** Return a number with a true minus sign. @param {number} value @param {number} [digits] */
export function signed(value, digits = 2) {
  const written = Math.abs(value).toFixed(digits);
  return localised(value < 0 && Number(written) !== 0 ? `−${written}` : written);
}

/** @param {number} patch @param {readonly [number, number]} grid */
export function placeName(patch, grid) {
  const [row, column] = rowAndColumn(patch, grid);
  return text("place", row + 1, column + 1);
}

/** @param {number} token @param {import("./engine.js").ViTModel} model */
export function tokenName(token, model) {
  if (model.has_class_token && token === 0) return text("classToken");
  return text("patchAt", placeName(token - patchOffset(model), model.grid));
}

/**
 * Return how many patches there are, and their size where they are split from the picture itself.
 * @param {import("./engine.js").ViTModel} model
 */
export function describePatches(model) {
  return text("patches.count", numPatches(model), model.cells.exact ? model.patch_size.join(" × ") : "");
}

/**
 * Return a warning where the image is unlike those that models were trained on, or nothing.
 * @param {{ name: string, unlike: boolean }[]} predictions
 */
export function unlikeSentence(predictions) {
  const names = predictions.filter(({ unlike }) => unlike).map(({ name }) => name);
  if (names.length === 0) return "";
  if (names.length < predictions.length) return text("unlike.named", names[0]);
  return text(names.length > 1 ? "unlike.all" : "unlike.one");
}

/** @param {number} count */
export function thousands(count) {
  return count.toLocaleString("en").replaceAll(",", "\u202f");
}

/** @param {number} bytes */
export function megabytes(bytes) {
  return `${signed(bytes / 1e6, 1)} MB`;
}

/** Return a size in words. @param {readonly number[]} sides  height, width */
export function times(sides) {
  return sides.join(" × ");
}
