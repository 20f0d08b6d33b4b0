/**
 * A model's weights: the matrices and vectors of its safetensors file, by name.
 *
 * @typedef {Record<string, Float32Array>} Weights  by parameter name; matrices row by row, as (out, in)
 */

import { readTensors } from "./tensors.js";

/** @type {Map<string, Promise<Weights>>} */
const fetched = new Map();

/** @param {ArrayBuffer} file @returns {Weights} */
export function readWeights(file) {
  return Object.fromEntries(Object.entries(readTensors(file)).map(([name, { data }]) => [name, data]));
}

/** Return a file's weights, which are fetched once. @param {string} address @param {() => Promise<ArrayBuffer>} fetchFile */
export function weightsAt(address, fetchFile) {
  const weights = fetched.get(address) ?? fetchFile().then(readWeights);
  fetched.set(address, weights);
  return weights;
}
