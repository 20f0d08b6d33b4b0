/**
 * The digits that come with the page: one picture, each class a row (export/training_digits.py).
 *
 * @import { Digits } from "./trainer.js"
 * @typedef {{ name: string, credit: string, side: number, classes: number, train: number, validation: number }} Description
 */

import { contextOf, make } from "../dom.js";
import { TEXTS } from "./texts.js";

/** @returns {Promise<{ digits: Digits, about: Description }>} */
export async function loadDigits() {
  const about = /** @type {Description} */ (await (await fetchFile("train/digits.json")).json());
  const picture = await createImageBitmap(await (await fetchFile("train/digits.png")).blob());
  const canvas = make("canvas", { width: picture.width, height: picture.height });
  contextOf(canvas).drawImage(picture, 0, 0);
  const { data } = contextOf(canvas).getImageData(0, 0, picture.width, picture.height);
  return { about, digits: split(data, picture.width, about) };
}

/** @param {string} address */
async function fetchFile(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Error(TEXTS.noDigits);
  return response;
}

/** @param {Uint8ClampedArray} rgba @param {number} width @param {Description} about @returns {Digits} */
function split(rgba, width, { side, classes, train, validation }) {
  const digitAt = (/** @type {number} */ label, /** @type {number} */ column) =>
    Uint8Array.from({ length: side * side }, (_, i) => {
      const [y, x] = [label * side + Math.floor(i / side), column * side + (i % side)];
      return rgba[4 * (y * width + x)];
    });
  // alternating classes, so that any few digits are different ones
  const take = (/** @type {number} */ from, /** @type {number} */ count) =>
    Array.from({ length: count * classes }, (_, i) => digitAt(i % classes, from + Math.floor(i / classes)));
  const labels = (/** @type {number} */ count) => Uint8Array.from({ length: count * classes }, (_, i) => i % classes);
  return {
    train: take(0, train),
    trainLabels: labels(train),
    validation: take(train, validation),
    validationLabels: labels(validation),
  };
}
