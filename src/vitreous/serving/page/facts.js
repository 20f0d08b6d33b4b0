/**
 * The chosen model's numbers and properties in the words of index.html: `data-fact` is replaced by a value, and
 * `data-when` is shown where it applies.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { Session } from "./session.js"
 */

import { isViT, takesDrawings } from "./engine.js";
import { numPatches, rowAndColumn, sum } from "./vit-maths.js";
import { signed, times } from "./words.js";

/** @param {Session} session */
export function stateFacts({ lead, cnn, vit }) {
  if (lead === null) return;
  const { channels, image_size } = lead;
  const isDrawing = takesDrawings(lead);
  /** @type {Record<string, string>} */
  const facts = {
    input: isDrawing ? "drawing" : "image",
    pixels: `${times(image_size)} pixels`,
    numbers: `${times(channels === 1 ? image_size : [...image_size, channels])} numbers`,
    ...(isViT(lead) && factsOfViT(lead)),
  };
  /** @type {Record<string, boolean>} */
  const when = {
    drawing: isDrawing,
    picture: !isDrawing,
    compared: vit !== null && cnn !== null,
    ...(isViT(lead) && {
      "class-token": lead.has_class_token,
      "no-class-token": !lead.has_class_token,
      "exact-cells": lead.cells.exact,
      "other-cells": !lead.cells.exact,
      positions: lead.position_similarity !== null,
    }),
  };
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-fact]"))) {
    element.textContent = facts[element.dataset.fact ?? ""] ?? "";
  }
  for (const element of document.querySelectorAll("[data-when]")) {
    element.classList.toggle("does-not-apply", !when[element.getAttribute("data-when") ?? ""]);
  }
}

/** @param {ViTModel} model @returns {Record<string, string>} */
function factsOfViT(model) {
  const [tall, wide] = model.patch_size;
  return {
    patches: String(numPatches(model)),
    "patch-size": times(model.patch_size),
    "patch-numbers": String(tall * wide * model.channels),
    dim: String(model.dim),
    heads: String(model.num_heads),
    depth: String(model.depth),
    "cells-note": model.cells.note && `${model.cells.note} `,
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
