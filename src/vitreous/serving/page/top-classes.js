/**
 * Which classes are shown: all of them where they are few, otherwise the most probable.
 *
 * @import { Tensor } from "./engine.js"
 */

import { argmax, range } from "./vit-maths.js";

const ALL = 20; // up to this many are shown
const TOP = 10; // of more, these

/**
 * Return the indices of the classes to show: of many, the most probable of the first row by their probability, with the
 * predicted class of every other row.
 * @param {number} count  of classes @param {ArrayLike<number>[]} rows  of probabilities, one per class
 */
export function topClasses(count, rows) {
  if (count <= ALL) return range(count);
  const [first, ...others] = rows;
  if (first === undefined) return range(TOP);
  const byProbability = range(count).sort((a, b) => first[b] - first[a]);
  const top = new Set([...byProbability.slice(0, TOP), ...others.map(argmax)]);
  return byProbability.filter((index) => top.has(index));
}

/** Return some of a row's values. @template {Float32Array | null} Row @param {Row} row @param {number[]} indices @returns {Row} */
export function some(row, indices) {
  return /** @type {Row} */ (row === null || indices.length === row.length ? row : Float32Array.from(indices, (i) => row[i]));
}

/** Return the rows of a tensor. @param {Tensor} tensor  (rows, columns) */
export function rowsOf({ data, shape: [rows, columns] }) {
  return range(rows).map((row) => data.subarray(row * columns, (row + 1) * columns));
}

/** Return some columns. @param {Tensor} tensor  (rows, columns) @param {number[]} indices @returns {Tensor} */
export function someColumns(tensor, indices) {
  if (indices.length === tensor.shape[1]) return tensor;
  const data = rowsOf(tensor).flatMap((row) => indices.map((i) => row[i]));
  return { data: Float32Array.from(data), shape: [tensor.shape[0], indices.length] };
}
