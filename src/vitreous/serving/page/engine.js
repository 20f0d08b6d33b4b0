/**
 * One small interface to the models; behind it a server (engine-http.js) or the browser itself (engine-browser.js).
 * Both give the same answers: tests/page/test_engines.py.
 *
 * Shapes: L layers, H heads, N tokens (the class token first, if there is one), K = head width, P patches.
 *
 * @typedef {{ data: Float32Array, shape: readonly number[] }} Tensor
 *
 * @typedef {object} Model
 * @property {string} id
 * @property {string} name
 * @property {"vit" | "cnn"} kind  vit: one to look into; cnn: one that only answers
 * @property {string[]} class_names
 * @property {readonly [number, number]} image_size
 * @property {number} channels
 * @property {number} parameters
 * @property {number | null} accuracy
 * @property {string} [run]  the run's folder, where the server says it
 * @property {string} [onnx]  the graph's address, where the browser runs it
 * @property {boolean} [lean]  the graph takes pixels alone
 *
 * @typedef {object} ViTShape
 * @property {number} depth
 * @property {number} num_heads
 * @property {number} dim
 * @property {number} head_dim
 * @property {readonly [number, number]} patch_size
 * @property {readonly [number, number]} grid
 * @property {Cells} cells
 * @property {boolean} has_class_token
 * @property {"cls" | "mean" | "seq"} pool
 * @property {number[][] | null} position_similarity
 * @typedef {Model & ViTShape} ViTModel
 *
 * @typedef {object} Cells  where the patches lie in the picture
 * @property {readonly number[]} row_edges  in pixels from the top, one more than there are rows
 * @property {readonly number[]} column_edges
 * @property {boolean} exact  false where a token sees more than its cell
 * @property {string} note  what is to be known of them; mostly empty
 *
 * @typedef {"probabilities" | "attention" | "lens" | "qkv" | "rollout" | "occlusion" | "relevance"} Want
 *
 * @typedef {object} Question
 * @property {Uint8Array} pixels  28×28, light on dark
 * @property {number[][] | null} headMask  (L, H), 0 removes the head
 * @property {number[] | null} tokenMask  (P,), 0 removes the patch
 * @property {Want[]} want
 *
 * @typedef {object} Answer  what was wanted; null where this engine cannot tell
 * @property {Float32Array} [probabilities]  (classes,)
 * @property {Tensor} [attention]  (L, H, N, N), [query, key]
 * @property {Tensor} [lens]  (L + 1, classes): what the model would answer after the embedding and after each layer
 * @property {Tensor} [queries]  (L, H, N, K), as are keys and values
 * @property {Tensor} [keys]
 * @property {Tensor} [values]
 * @property {Float32Array | null} [rollout]  (P,)
 * @property {Float32Array} [occlusion]  (P,): what the answer's probability loses without each patch
 * @property {Float32Array | null} [relevance]  (P,)
 *
 * @typedef {{ label: string, pixels: Uint8Array }} Sample
 * @typedef {(sentence: string, share: number | null) => void} Progress  share: how much is there, 0 … 1, if known
 *
 * @typedef {object} Engine
 * @property {string} place  where the models run, as a sentence
 * @property {boolean} hasGradients  whether it can tell `relevance`
 * @property {(progress: Progress) => Promise<Model[]>} start  load what is needed; the models there are
 * @property {() => Promise<Sample[]>} samples
 * @property {(model: Model, question: Question, signal?: AbortSignal) => Promise<Answer>} look  the signal ends long work
 */

import { fromBase64 } from "./codec.js";
import { SIDE } from "./normalise.js";

/** A sentence for the person; anything else that is thrown is a fault of ours. */
export class EngineError extends Error {}

/** Whether this was thrown because nobody waits for the answer any more. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * The engine that index.html names or, where it says "auto", that engine.json beside it names.
 * @returns {Promise<Engine>}
 */
export async function chooseEngine() {
  const meta = document.querySelector('meta[name="vitreous-engine"]')?.getAttribute("content") ?? "auto";
  const kind = meta === "http" || meta === "browser" ? meta : await kindBeside();
  if (kind === "browser") return new (await import("./engine-browser.js")).BrowserEngine();
  return new (await import("./engine-http.js")).HttpEngine();
}

async function kindBeside() {
  const response = await fetch("engine.json").catch(() => null);
  const told = response?.ok ? await response.json().catch(() => null) : null;
  return told?.engine === "browser" ? "browser" : "http";
}

/**
 * @param {unknown} document  of /v1/models or models.json
 * @returns {Model[]}
 */
export function readModels(document) {
  const models = /** @type {{ models?: unknown }} */ (document)?.models;
  if (!Array.isArray(models) || models.length === 0) throw new EngineError("There is no model here to look at.");
  return models;
}

/**
 * @param {unknown} document  of /v1/samples or samples.json
 * @returns {Sample[]}  those that fit the sheet: a model of another size has others
 */
export function readSamples(document) {
  const samples = /** @type {{ samples?: { label: string, pixels: string }[] }} */ (document)?.samples ?? [];
  return samples.map(({ label, pixels }) => ({ label, pixels: fromBase64(pixels) })).filter(({ pixels }) => pixels.length === SIDE * SIDE);
}

/**
 * @param {Model} model
 * @returns {model is ViTModel}
 */
export function isViT(model) {
  return model.kind === "vit" && "grid" in model;
}
