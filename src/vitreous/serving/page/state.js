/**
 * What the user chose, and the address that holds it: everything on the page can be sent as a link.
 *
 * @import { NodeName } from "./nodes.js"
 * @import { Image } from "./fitting.js"
 * @import { Stroke } from "./raster.js"
 *
 * @typedef {{ kind: "sample", index: number } | { kind: "pixels", pixels: Uint8Array }} Under
 *   what is under the strokes: a test image by its number, or 28×28 normalised pixels of a picture
 * @typedef {{ under: Under | null, strokes: Stroke[] }} Drawing
 * @typedef {{ kind: "sample", index: number } | { kind: "image", image: Image } | { kind: "file", file: Blob }} Picture
 *   the input of a model that takes any image: a test image, what a link holds, or a file
 * @typedef {"patches" | "attention" | "rollout" | "patch_removal" | "relevance" | "positions"} View
 *
 * @typedef {object} State
 * @property {Drawing} drawing
 * @property {Picture} picture
 * @property {string | null} vit  the model's id; null: the first
 * @property {string | null} cnn  the model next to it
 * @property {View} view
 * @property {number} layer  from 0; -1: the last, however many the model has
 * @property {number} head  from 0; -1: the mean of all heads
 * @property {number} query  the patch whose attention is shown; -1: the class token, or the mean if there is none
 * @property {"model" | "layer" | "head"} level  how far the diagram is zoomed in
 * @property {number | null} key  the token whose weight the arithmetic explains; null: no weight is explained
 * @property {NodeName | null} node  the node whose number the arithmetic explains; null: none is open
 * @property {number} at  the number's component; -1: the one furthest from 0
 * @property {string} grid  the grid that `query`, `key` and `removedPatches` refer to, as "4x4"; empty: unknown
 * @property {number[]} removedPatches
 * @property {[number, number][]} removedHeads  layer, head
 * @property {[number, number]} shift  pixels to the right, pixels down
 * @property {number} shuffle  the seed of the patches' order; 0: not shuffled
 * @property {number} step  of the tour, from 1; 0: free
 */

import { NODES } from "./nodes.js";
import { decodeImage, decodePixels, decodeStrokes, encodeImage, encodePixels, encodeStrokes } from "./codec.js";
import { SIDE } from "./normalise.js";
import { text } from "./texts.js";

/** @type {View[]} */
export const VIEWS = ["patches", "attention", "rollout", "patch_removal", "relevance", "positions"];
export const TOUR_STEPS = 7;
const MAX_SHIFT = 999;
const MAX_LINK_SIDE = 64; // a larger image would make a link of more than 16,384 characters
const TOO_LARGE = "none"; // in place of such an image

/** @returns {State} */
export function initialState() {
  return {
    drawing: { under: { kind: "sample", index: 2 }, strokes: [] },
    picture: { kind: "sample", index: 2 },
    vit: null,
    cnn: null,
    view: "attention",
    layer: -1, // the one nearest to the prediction
    head: -1,
    query: -1,
    level: "model",
    key: null,
    node: null,
    at: -1,
    grid: "",
    removedPatches: [],
    removedHeads: [],
    shift: [0, 0],
    shuffle: 0,
    step: 0,
  };
}

/** Whether a link can hold an image. @param {Image} image */
export function fitsLink({ height, width }) {
  return Math.max(height, width) <= MAX_LINK_SIDE;
}

/**
 * Write only what differs from the initial state, so that a fresh page has a short address.
 * @param {State} state
 * @param {Image | null} seen  the input as the model gets it, if it takes any image; null: the drawing
 * @returns {string}  without the leading #
 */
export function toHash(state, seen) {
  const initial = initialState();
  const parts = seen === null ? drawingParts(state.drawing) : pictureParts(state.picture, seen);
  if (state.vit !== null) parts.vit = state.vit;
  if (state.cnn !== null) parts.cnn = state.cnn;
  if (state.view !== initial.view) parts.view = state.view;
  if (state.layer !== initial.layer) parts.layer = String(state.layer + 1);
  if (state.head !== initial.head) parts.head = String(state.head + 1);
  if (state.query >= 0) parts.from = String(state.query);
  if (state.level !== initial.level) parts.zoom = state.level;
  if (state.key !== null) parts.key = String(state.key);
  else if (state.node !== null) parts.node = state.node;
  if (state.node !== null && state.at >= 0) parts.at = String(state.at + 1);
  if (state.removedPatches.length > 0) parts.without = state.removedPatches.join(".");
  const namesPatches = state.query >= 0 || state.key !== null || state.removedPatches.length > 0;
  if (namesPatches && state.grid !== "") parts.grid = state.grid;
  if (state.removedHeads.length > 0) parts.heads = state.removedHeads.map(([l, h]) => `${l + 1}-${h + 1}`).join(".");
  if (state.shift.some((by) => by !== 0)) parts.shift = state.shift.join("_");
  if (state.shuffle !== 0) parts.shuffle = String(state.shuffle);
  if (state.step !== 0) parts.step = String(state.step);
  return Object.entries(parts).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

/** @param {Drawing} drawing @returns {Record<string, string>} */
function drawingParts({ under, strokes }) {
  if (under === null && strokes.length === 0) return { strokes: "" };
  return {
    ...(under?.kind === "sample" && { test: String(under.index) }),
    ...(under?.kind === "pixels" && { pixels: encodePixels(under.pixels) }),
    ...(strokes.length > 0 && { strokes: encodeStrokes(strokes) }),
  };
}

/** @param {Picture} picture @param {Image} seen @returns {Record<string, string>} */
function pictureParts(picture, seen) {
  if (picture.kind === "sample") return { test: String(picture.index) };
  return { image: fitsLink(seen) ? encodeImage(seen) : TOO_LARGE };
}

/**
 * @param {string} hash  with or without the leading #
 * @returns {{ state: State, notice: string }}  notice: a sentence if the link's drawing or image is missing
 */
export function fromHash(hash) {
  const state = initialState();
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const image = parts.get("image");
  let notice = image === TOO_LARGE ? text("link.tooLarge") : "";
  try {
    state.drawing = drawingIn(parts) ?? state.drawing;
    if (parts.has("test")) state.picture = { kind: "sample", index: integer(parts.get("test"), 0, 9999, 0) };
    if (image !== null && image !== TOO_LARGE) state.picture = { kind: "image", image: decodeImage(image, MAX_LINK_SIDE) };
  } catch {
    notice = text("link.unreadable");
  }
  state.vit = parts.get("vit");
  state.cnn = parts.get("cnn");
  const view = parts.get("view") === "occlusion" ? "patch_removal" : parts.get("view"); // its name in 0.1
  state.view = VIEWS.find((known) => known === view) ?? state.view;
  state.layer = integer(parts.get("layer"), 1, 64, 0) - 1;
  state.head = integer(parts.get("head"), 1, 64, 0) - 1; // 0, or "mean" of version 0.1: the mean
  state.query = integer(parts.get("from"), 0, 4095, -1);
  state.key = parts.has("key") ? integer(parts.get("key"), 0, 4096, 0) : null;
  state.node = state.key === null ? (NODES.find((node) => node === parts.get("node")) ?? null) : null;
  state.at = integer(parts.get("at"), 1, 99_999, 0) - 1;
  const zoom = parts.get("zoom");
  if (zoom === "layer" || zoom === "head") state.level = zoom;
  state.removedPatches = list(parts.get("without"), /^\d{1,4}$/).map(Number);
  state.grid = /^\d{1,4}x\d{1,4}$/.exec(parts.get("grid") ?? "")?.[0] ?? "";
  state.removedHeads = list(parts.get("heads"), /^\d{1,2}-\d{1,2}$/).map((pair) => {
    const [layer, head] = pair.split("-").map(Number);
    return [layer - 1, head - 1];
  });
  const shift = (parts.get("shift") ?? "").split("_");
  state.shift = [integer(shift[0], -MAX_SHIFT, MAX_SHIFT, 0), integer(shift[1], -MAX_SHIFT, MAX_SHIFT, 0)];
  state.shuffle = integer(parts.get("shuffle"), 0, 9999, 0);
  state.step = integer(parts.get("step"), 0, TOUR_STEPS, 0);
  return { state, notice };
}

/** Whether a link says which part of the model to show. @param {string} hash */
export function namesView(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  return ["view", "layer", "head", "from", "zoom", "key", "node"].some((name) => parts.has(name));
}

/** @param {URLSearchParams} parts @returns {Drawing | null} */
function drawingIn(parts) {
  const strokes = decodeStrokes(parts.get("strokes") ?? "");
  const pixels = parts.get("pixels");
  if (pixels !== null) return { under: { kind: "pixels", pixels: decodePixels(pixels, SIDE * SIDE) }, strokes };
  if (parts.has("test")) return { under: { kind: "sample", index: integer(parts.get("test"), 0, 9999, 0) }, strokes };
  return parts.has("strokes") ? { under: null, strokes } : null;
}

/** @param {string | null | undefined} part @param {number} low @param {number} high @param {number} otherwise */
function integer(part, low, high, otherwise) {
  const value = part && /^-?\d{1,5}$/.test(part) ? Number(part) : otherwise;
  return value < low || value > high ? otherwise : value;
}

/** @param {string | null} parts @param {RegExp} form */
function list(parts, form) {
  return (parts ?? "").split(".").filter((part) => form.test(part)).slice(0, 4096);
}

/**
 * Limit a state to what the chosen model has: a link may come from a larger one. Patches of another grid are dropped,
 * because the same number would mean another place; a link without a grid is assumed to fit.
 * @param {State} state
 * @param {{ depth: number, num_heads: number, grid: readonly [number, number], tokens: number, views: View[] }} limits
 * @returns {State}
 */
export function limited(state, limits) {
  const patches = limits.grid[0] * limits.grid[1];
  const grid = limits.grid.join("x");
  const sameGrid = state.grid === "" || state.grid === grid;
  const removed = sameGrid ? [...new Set(state.removedPatches)] : [];
  return {
    ...state,
    grid,
    view: [state.view, /** @type {const} */ ("attention")].find((view) => limits.views.includes(view)) ?? "patches",
    layer: state.layer >= limits.depth - 1 ? -1 : state.layer,
    head: Math.min(state.head, limits.num_heads - 1),
    query: sameGrid && state.query < patches ? state.query : -1,
    key: state.key === null ? null : sameGrid ? Math.min(state.key, limits.tokens - 1) : 0,
    removedPatches: removed.filter((patch) => patch < patches).slice(0, patches - 1),
    removedHeads: state.removedHeads.filter(([l, h]) => l >= 0 && h >= 0 && l < limits.depth && h < limits.num_heads),
  };
}
