/**
 * One small interface to the models; behind it a server (engine-http.js) or the browser itself (engine-browser.js).
 * Both give the same results: tests/page/test_engines.py.
 *
 * @import { Image } from "./fitting.js"
 * @import { Weights } from "./weights.js"
 *
 * Shapes: L layers, H heads, N tokens (the class token first, if there is one), K = head width, P patches.
 *
 * @typedef {{ data: Float32Array, shape: readonly number[] }} Tensor
 *
 * @typedef {object} Model
 * @property {string} id
 * @property {string} name
 * @property {"vit" | "cnn"} kind  vit: has attention to show; cnn: only predicts
 * @property {string[]} class_names
 * @property {readonly [number, number]} image_size
 * @property {number} channels
 * @property {Preprocessing} preprocessing
 * @property {number} parameters
 * @property {number | null} accuracy
 * @property {number} temperature  probabilities are softmax(logits / temperature)
 * @property {boolean} novelty  whether it measures how far an image is from its training images
 * @property {string} [run]  the run's folder, if the server names it
 * @property {string} [onnx]  the graph's address, if the browser runs it
 * @property {string} [samples]  the address of its test images, if there is no server
 * @property {boolean} [lean]  the graph takes only pixels
 * @property {boolean} [skips_patches]  blank patches are no tokens, if the browser runs the model
 * @property {string} [weights]  the address of a ViT's weights (safetensors), where they are offered
 *
 * @typedef {object} Preprocessing  as data/preprocessing.py
 * @property {readonly [number, number]} image_size
 * @property {number} channels
 * @property {"mnist" | "bilinear"} resize  mnist: a drawn digit, normalised as MNIST's are; bilinear: any image
 * @property {readonly number[]} mean  of each channel, of 0 … 1
 * @property {readonly number[]} std
 * @property {"stretch" | "crop" | "letterbox"} [fit]  what happens to an image of another shape; stretch if missing
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
 * @property {Architecture} [architecture]
 * @typedef {Model & ViTShape} ViTModel
 *
 * @typedef {object} Architecture  what a forward pass needs besides the shape (forward.js)
 * @property {readonly [number, number] | null} window  what a token sees, where that is more than its patch
 * @property {number | null} embed_hidden
 * @property {number} mlp_dim
 * @property {string} positions
 * @property {number} norm_eps
 * @property {"erf" | "tanh" | "quick"} gelu
 * @property {boolean} pre_norm
 * @property {boolean} norm_after_pool  the mean is normalised, not each token
 * @property {string} fit
 * @property {boolean} has_stem
 * @property {"linear" | "mlp"} head
 *
 * @typedef {object} Cells  where the patches are in the picture
 * @property {readonly number[]} row_edges  in pixels from the top, one more than there are rows
 * @property {readonly number[]} column_edges
 * @property {boolean} exact  false where a token sees more than its cell
 * @property {string} note  a caveat for the reader; usually empty
 *
 * @typedef {"probabilities" | "novelty" | "attention" | "lens" | "qkv" | "kept" | "rollout" | "patch_removal"
 *   | "relevance"} Want
 *
 * @typedef {object} LookRequest
 * @property {Uint8Array} pixels  (channels, height, width), as the model takes them
 * @property {number[][] | null} headMask  (L, H), 0 removes the head
 * @property {number[] | null} tokenMask  (P,), 0 removes the patch
 * @property {Want[]} want
 *
 * @typedef {object} LookResult  what was wanted; null where this engine cannot compute it
 * @property {Float32Array} [probabilities]  (classes,)
 * @property {number | null} [novelty]  above 1: unlike the images the model was trained on; null: not measured
 * @property {Tensor} [attention]  (L, H, N, N), [query, key]
 * @property {Tensor} [lens]  (L + 1, classes): the probabilities read out after the embedding and after each layer
 * @property {Tensor} [queries]  (L, H, N, K), as are keys and values
 * @property {Tensor} [keys]
 * @property {Tensor} [values]
 * @property {Float32Array} [kept]  (P,): 0 where the patch was removed or, being blank, skipped
 * @property {Float32Array | null} [rollout]  (P,)
 * @property {Float32Array} [patch_removal]  (P,): the probability that the predicted class loses without each patch
 * @property {Float32Array | null} [relevance]  (P,)
 *
 * @typedef {{ label: string, image: Image }} Sample
 * @typedef {{ samples: Sample[], note: string }} Samples  note: why there are none
 * @typedef {(sentence: string, fraction: number | null) => void} Progress  fraction: how much is loaded, 0 … 1, if known
 *
 * @typedef {object} Engine
 * @property {string} place  where the models run, as a sentence
 * @property {boolean} hasGradients  whether it can compute `relevance`
 * @property {number} mostNumbers  in one result
 * @property {(progress: Progress, onList: (models: Model[]) => Model | null | void) => Promise<void>} start  load what
 *   is needed; the list of models comes first, and of these the one that `onList` returns, or else the first
 * @property {(model: Model) => boolean} isReady  whether all of its results are there at once
 * @property {(model: Model) => Promise<void>} load  make a model ready that is not
 * @property {(model: ViTModel) => Promise<Weights>} weights  where they are offered
 * @property {(model: Model) => Promise<Samples>} samples
 * @property {(model: Model, request: LookRequest, signal?: AbortSignal) => Promise<LookResult>} look
 */

import { fromBase64 } from "./codec.js";
import { text } from "./texts.js";

/** Its message is a sentence for the user; any other exception is a bug. */
export class EngineError extends Error {}

/** Whether the request was cancelled because its result is no longer needed. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Return the engine that index.html names. @returns {Promise<Engine>} */
export async function chooseEngine() {
  const kind = document.querySelector('meta[name="vitreous-engine"]')?.getAttribute("content");
  if (kind === "browser") return new (await import("./engine-browser.js")).BrowserEngine();
  return new (await import("./engine-http.js")).HttpEngine();
}

/** @param {unknown} document  of /v1/models or models.json @returns {Model[]} */
export function readModels(document) {
  const models = /** @type {{ models?: unknown }} */ (document)?.models;
  if (!Array.isArray(models) || models.length === 0) throw new EngineError(text("engine.noModels"));
  return models;
}

/** @param {unknown} document  of /v1/samples or samples/ID.json @returns {Samples} */
export function readSamples(document) {
  const { shape: [channels, height, width], samples, note } =
    /** @type {{ shape: number[], samples: { label: string, pixels: string }[], note: string }} */ (document);
  const decoded = samples.map(({ label, pixels }) => {
    return { label, image: { values: fromBase64(pixels), channels, height, width } };
  });
  return { samples: decoded, note };
}

/** Whether the model is of drawn digits; any other takes images as they are. @param {Model} model */
export function takesDrawings({ preprocessing }) {
  return preprocessing.resize === "mnist";
}

/** @param {Model} model @returns {model is ViTModel} */
export function isViT(model) {
  return model.kind === "vit" && "grid" in model;
}
