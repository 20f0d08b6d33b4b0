/**
 * The search for few patches whose removal changes a prediction. It knows no model: `predict` gives the probabilities
 * without some patches.
 *
 * @typedef {(removed: number[]) => Promise<ArrayLike<number>>} Predict
 * @typedef {object} Found
 * @property {number[]} removed  in ascending order
 * @property {number} before  the class with nothing removed
 * @property {number} after
 * @property {number} tried  sets whose prediction was computed
 * @property {boolean} smallest  every smaller set was tried, and none does it
 */

import { argmax } from "../vit-maths.js";

const MOST_TRIED = 700; // sets of a smaller size that are tried to show that there is none

/**
 * Remove the patch that costs the predicted class most, again and again, until another class wins; put back whatever is
 * not needed; then try all smaller sets where there are few enough.
 * @param {readonly number[]} candidates  patches that can be removed; one remains
 * @param {Predict} predict
 * @param {(tried: number, removed: number[]) => void} [progress]
 * @returns {Promise<{ found: Found | null, before: number }>}  null: no set was found
 */
export async function findFewestPatches(candidates, predict, progress = () => {}) {
  let tried = 0;
  const before = argmax(await predict([]));
  const attempt = async (/** @type {number[]} */ removed) => {
    tried++;
    const probabilities = await predict(removed);
    return { after: argmax(probabilities), share: probabilities[before] };
  };
  /** @param {number[]} removed @param {number} after @param {boolean} smallest */
  const result = (removed, after, smallest) =>
    ({ before, found: { removed: removed.toSorted((a, b) => a - b), before, after, tried, smallest } });

  /** @type {number[]} */
  let removed = [];
  let after = before;
  while (after === before && removed.length < candidates.length - 1) {
    let best = { patch: -1, share: Infinity, after: before };
    for (const patch of candidates.filter((each) => !removed.includes(each))) {
      const { share, after: changed } = await attempt([...removed, patch]);
      const isBetter = changed !== before && best.after === before ? true : share < best.share;
      if (isBetter && !(changed === before && best.after !== before)) best = { patch, share, after: changed };
    }
    removed = [...removed, best.patch];
    after = best.after;
    progress(tried, removed);
  }
  if (after === before) return { found: null, before };
  for (const patch of [...removed]) {
    const fewer = removed.filter((each) => each !== patch);
    const { after: without } = await attempt(fewer);
    if (without === before) continue;
    [removed, after] = [fewer, without];
    progress(tried, removed);
  }
  for (let size = 1; size < removed.length; size++) {
    if (count(candidates.length, size) > MOST_TRIED) return result(removed, after, false);
    for (const set of setsOf(candidates, size)) {
      const { after: other } = await attempt(set);
      if (other !== before) return result(set, other, true); // all smaller ones were tried before it
      if (tried % 10 === 0) progress(tried, removed);
    }
  }
  return result(removed, after, true);
}

/** Return how many sets of a size there are. @param {number} of @param {number} size */
function count(of, size) {
  let sets = 1;
  for (let i = 0; i < size; i++) sets = (sets * (of - i)) / (i + 1);
  return sets;
}

/** @param {readonly number[]} items @param {number} size @returns {Generator<number[]>} */
function* setsOf(items, size) {
  if (size === 0) yield [];
  for (let i = 0; size > 0 && i <= items.length - size; i++) {
    for (const rest of setsOf(items.slice(i + 1), size - 1)) yield [items[i], ...rest];
  }
}
