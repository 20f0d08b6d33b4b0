/**
 * The chosen model's numbers and properties, for the sentences that name them; parts of index.html with `data-when` are
 * shown where it applies.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { Session } from "./session.js"
 *
 * @typedef {Record<string, string | number | boolean>} Facts  for the texts of the tour
 */

import { isViT, takesDrawings } from "./engine.js";
import { numPatches, rowAndColumn, sum } from "./vit-maths.js";
import { signed, times } from "./words.js";

/** Return what the texts name of the chosen models, and show the parts that apply. @param {Session} session @returns {Facts} */
export function stateFacts({ lead, cnn, vit }) {
  if (lead === null) return {};
  const { channels, image_size } = lead;
  const isDrawing = takesDrawings(lead);
  /** @type {Record<string, boolean>} */
  const when = {
    drawing: isDrawing,
    picture: !isDrawing,
    "class-token": vit?.has_class_token ?? false,
    "no-class-token": !vit?.has_class_token,
  };
  for (const element of document.querySelectorAll("[data-when]")) {
    element.classList.toggle("does-not-apply", !when[element.getAttribute("data-when") ?? ""]);
  }
  return {
    isDrawing,
    pixels: times(image_size),
    numbers: times(channels === 1 ? image_size : [...image_size, channels]),
    compared: vit !== null && cnn !== null,
    ...(isViT(lead) && factsOfViT(lead)),
  };
}

/** @param {ViTModel} model @returns {Facts} */
function factsOfViT(model) {
  const [tall, wide] = model.patch_size;
  return {
    patches: numPatches(model),
    patchSize: times(model.patch_size),
    patchNumbers: tall * wide * model.channels,
    dim: model.dim,
    heads: model.num_heads,
    depth: model.depth,
    isExact: model.cells.exact,
    cellsNote: model.cells.note,
    hasClassToken: model.has_class_token,
    hasPositions: model.position_similarity !== null,
    ...positionSimilarity(model),
  };
}

/**
 * Return the mean similarity of neighbouring positions, and of all other pairs.
 * @param {ViTModel} model @returns {Record<string, string>}
 */
function positionSimilarity({ position_similarity: similarity, grid }) {
  /** @type {Record<"near" | "far", number[]>} */
  const pairs = { near: [], far: [] };
  similarity?.forEach((row, one) =>
    row.forEach((value, other) => {
      const [[top, left], [bottom, right]] = [rowAndColumn(one, grid), rowAndColumn(other, grid)];
      const distance = Math.abs(top - bottom) + Math.abs(left - right);
      if (distance > 0) pairs[distance === 1 ? "near" : "far"].push(value);
    }),
  );
  const mean = (/** @type {number[]} */ values) => signed(values.length > 0 ? sum(values) / values.length : 0);
  return { near: mean(pairs.near), far: mean(pairs.far) };
}
