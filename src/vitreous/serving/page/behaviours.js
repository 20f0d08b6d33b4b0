/**
 * What a head does with this input, measured from its attention. The rule: tokens fall into groups (the token itself, its
 * neighbours, the class token, patches with ink, blank patches); a head is named after the group that gets the most more
 * than an even spread would give it, if that is at least 20 points. Otherwise it is "spread out".
 *
 * @import { Tensor, ViTModel } from "./engine.js"
 *
 * @typedef {"itself" | "neighbours" | "class" | "ink" | "blank"} Group
 * @typedef {{ share: number, even: number }} Share  of the attention; `even`: what an even spread would give
 * @typedef {{ name: Group | "spread", share: number, even: number, tokens: number, groups: Partial<Record<Group, Share>> }} Behaviour
 *   tokens: over how many it spreads, the exponential of the entropy
 */

import { takesDrawings } from "./engine.js";
import { headAttention, numPatches, patchOfPixels, patchOffset, range, rowAndColumn } from "./vit-maths.js";

const LEAST = 0.2; // points more than an even spread
const INK = 26; // of 255: a patch with a brighter pixel has ink

/** Return the tokens of each group that has the same tokens for every query. @param {Uint8Array} pixels @param {ViTModel} model */
function inkPatches(pixels, model) {
  const brightest = new Uint8Array(numPatches(model));
  patchOfPixels(model).forEach((patch, i) => (brightest[patch] = Math.max(brightest[patch], pixels[i])));
  return brightest.map((level) => Number(level > INK));
}

/** @type {WeakMap<ViTModel, number[][]>} */
const knownNeighbours = new WeakMap();

/** Return the patches around each patch. @param {ViTModel} model */
function neighboursOf(model) {
  const known = knownNeighbours.get(model);
  if (known !== undefined) return known;
  const patches = range(numPatches(model));
  const found = patches.map((one) =>
    patches.filter((other) => {
      const [[top, left], [bottom, right]] = [rowAndColumn(one, model.grid), rowAndColumn(other, model.grid)];
      return one !== other && Math.max(Math.abs(top - bottom), Math.abs(left - right)) === 1;
    }),
  );
  knownNeighbours.set(model, found);
  return found;
}

/**
 * Measure all heads of all layers, the mean of a layer's heads last.
 * @param {Tensor} attention  (L, H, N, N) @param {Uint8Array} pixels @param {ViTModel} model
 * @param {ArrayLike<number> | undefined} kept  (P,), 0 where a patch is removed or skipped
 * @returns {Behaviour[][]}
 */
export function measureHeads(attention, pixels, model, kept) {
  const ink = takesDrawings(model) ? inkPatches(pixels, model) : null;
  return range(model.depth).map((layer) =>
    [...range(model.num_heads), -1].map((head) => measure(headAttention(attention, layer, head), model, ink, kept)),
  );
}

/**
 * @param {Float32Array} weights  (N, N) @param {ViTModel} model @param {Uint8Array | null} ink
 * @param {ArrayLike<number> | undefined} kept @returns {Behaviour}
 */
function measure(weights, model, ink, kept) {
  const [offset, neighbours] = [patchOffset(model), neighboursOf(model)];
  const patches = range(numPatches(model)).filter((patch) => !kept || kept[patch]);
  const [tokens, present] = [numPatches(model) + offset, patches.length + offset];
  /** @type {Partial<Record<Group, Share>>} */
  const groups = {};
  /** @param {Group} group @param {(patch: number) => number[]} keysOf  tokens */
  const count = (group, keysOf) => {
    const found = { share: 0, even: 0 };
    for (const patch of patches) {
      const row = (patch + offset) * tokens;
      const keys = keysOf(patch);
      for (const key of keys) found.share += weights[row + key] / patches.length;
      found.even += keys.length / present / patches.length;
    }
    groups[group] = found;
  };
  const isPresent = new Set(patches);
  count("itself", (patch) => [patch + offset]);
  count("neighbours", (patch) => neighbours[patch].filter((other) => isPresent.has(other)).map((other) => other + offset));
  if (offset) count("class", () => [0]);
  if (ink !== null) {
    const [drawn, blank] = [1, 0].map((value) => patches.filter((patch) => ink[patch] === value).map((patch) => patch + offset));
    count("ink", () => drawn);
    count("blank", () => blank);
  }
  let entropy = 0;
  for (const patch of patches) {
    const row = (patch + offset) * tokens;
    for (let key = 0; key < tokens; key++) {
      const weight = weights[row + key];
      if (weight > 0) entropy -= (weight * Math.log(weight)) / patches.length;
    }
  }
  const named = /** @type {[Group, Share][]} */ (Object.entries(groups));
  const [name, best] = named.reduce((one, other) => (other[1].share - other[1].even > one[1].share - one[1].even ? other : one));
  const isNamed = best.share - best.even >= LEAST;
  return { name: isNamed ? name : "spread", ...best, tokens: Math.exp(entropy), groups };
}
