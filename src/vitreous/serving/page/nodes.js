/**
 * The nodes of the diagram: which intermediate each one shows, and on which colour scale.
 *
 * @import { LayerTrace, Trace } from "./forward.js"
 * @import { ViTModel } from "./engine.js"
 *
 * @typedef {(typeof LAYER_NODES)[number] | (typeof OUTER_NODES)[number]} NodeName
 * @typedef {"stream" | "added" | "normed" | "qkv" | "carried" | "mlp" | "logits" | "probabilities"} ScaleKind
 * @typedef {{ data: Float32Array, columns: number, offset: number, kind: ScaleKind }} Numbers  offset: the token of row 0
 */

import { patchOffset } from "./vit-maths.js";
import { scaleEnd } from "./strips.js";

export const LAYER_NODES = /** @type {const} */ ([
  "normed", "q", "k", "v", "heads", "attended", "middle", "normedMiddle", "hidden", "active", "mlp", "output",
]);
export const OUTER_NODES = /** @type {const} */ (["embedded", "tokens", "final", "logits", "probabilities"]);
export const NODES = /** @type {const} */ ([...LAYER_NODES, ...OUTER_NODES]);

/** @type {Record<NodeName, ScaleKind>} */
const KINDS = {
  embedded: "stream", tokens: "stream", middle: "stream", output: "stream",
  attended: "added", mlp: "added",
  normed: "normed", normedMiddle: "normed", final: "normed",
  q: "qkv", k: "qkv", v: "qkv",
  heads: "carried",
  hidden: "mlp", active: "mlp",
  logits: "logits", probabilities: "probabilities",
};

/** @param {string} name @returns {name is keyof LayerTrace & (typeof LAYER_NODES)[number]} */
export function isLayerNode(name) {
  return LAYER_NODES.some((node) => node === name);
}

/** Return a node's numbers. @param {NodeName} node @param {Trace} trace @param {number} layer @param {ViTModel} model @returns {Numbers} */
export function numbersOf(node, trace, layer, model) {
  const kind = KINDS[node];
  const whole = (/** @type {Float32Array} */ data, columns = model.dim) => ({ data, columns, offset: 0, kind });
  if (isLayerNode(node)) {
    const data = trace.layers[layer][node];
    return whole(data, node === "hidden" || node === "active" ? data.length / (trace.tokens.length / model.dim) : model.dim);
  }
  if (node === "embedded") return { ...whole(trace.embedded), offset: patchOffset(model) };
  if (node === "tokens") return whole(trace.tokens);
  if (node === "final") return model.pool === "cls" ? whole(trace.normed) : whole(trace.pooled);
  return whole(trace[node], trace[node].length);
}

/** Return the row of a token. @param {Numbers} numbers @param {number} token @returns {Float32Array | null}  null: it has none */
export function rowOf({ data, columns, offset }, token) {
  const row = data.length === columns ? 0 : token - offset;
  return row < 0 ? null : data.subarray(row * columns, (row + 1) * columns);
}

/** @type {WeakMap<Trace, Record<ScaleKind, number>>} */
const known = new WeakMap();

/** Return the end of each kind's colour scale: the same in all layers. @param {Trace} trace @returns {Record<ScaleKind, number>} */
export function scalesOf(trace) {
  const found = known.get(trace);
  if (found !== undefined) return found;
  const { layers } = trace;
  const scales = {
    stream: scaleEnd([trace.tokens, ...layers.map(({ output }) => output)]),
    added: scaleEnd(layers.flatMap(({ attended, mlp }) => [attended, mlp])),
    carried: scaleEnd(layers.map(({ heads }) => heads)),
    normed: scaleEnd(layers.map(({ normed }) => normed)),
    qkv: scaleEnd(layers.flatMap(({ q, k, v }) => [q, k, v])),
    mlp: scaleEnd(layers.map(({ hidden }) => hidden)),
    logits: Math.max(...trace.logits.map(Math.abs)) || 1,
    probabilities: 1,
  };
  known.set(trace, scales);
  return scales;
}
