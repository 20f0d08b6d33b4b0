/**
 * The models in this browser: ONNX graphs run by onnxruntime-web in a worker (engine-worker.js), so that drawing never
 * waits for them. Nothing drawn or opened leaves the computer.
 *
 * The runtime is large. Until it is there, a ViT that forward.js can compute predicts by its weights alone.
 *
 * @import { LookRequest, LookResult, Model, Progress, Tensor, ViTModel, Want } from "./engine.js"
 * @import { Trace } from "./forward.js"
 * @import { GraphTensor } from "./engine-worker.js"
 */

import { EngineError, isViT, readModels, readSamples } from "./engine.js";
import { concatenate, fetchAll, readJson, readLargeJson } from "./fetching.js";
import { prepareForward, runForward } from "./forward-pass.js";
import { whyNotTraced } from "./forward.js";
import { text } from "./texts.js";
import { argmax, numPatches, numTokens, range, rollout, softmax } from "./vit-maths.js";
import { weightsAt } from "./weights.js";

const RUNTIME = "ort/ort-wasm-simd-threaded.wasm";
const SLOW = /** @type {Set<Want>} */ (new Set(["patch_removal", "relevance"])); // of many runs
const REMOVALS_PER_BATCH = 8; // a newer request waits for this many, not for all

export class BrowserEngine {
  place = text("engine.inBrowser");
  hasGradients = false;
  mostNumbers = 16_000_000; // 64 MB of memory

  /** @type {Worker | null} */
  #worker = null;
  /** @type {Map<number, { resolve: (outputs: any) => void, reject: (error: Error) => void }>} */
  #waiting = new Map();
  #lastRequest = 0;
  #hasFailed = false;

  /** whether the files have compressed copies */
  #hasCopies = false;
  /** the models that are loaded or being loaded, by id @type {Map<string, Promise<void>>} */
  #loading = new Map();
  /** @type {Set<string>} */
  #loaded = new Set();
  /** @type {Promise<void> | null} */
  #runtime = null;

  /** @param {Progress} progress @param {(models: Model[]) => Model | null | void} onList */
  async start(progress, onList) {
    progress(text("engine.list"), null);
    const list = await readJson("models.json");
    const models = readModels(list);
    this.#hasCopies = list.gzip === true;
    const first = onList(models) ?? models[0];
    if (predictsEarly(first)) {
      prepareForward();
      await this.weights(first, progress).catch(() => this.load(first, progress));
    } else await this.load(first, progress);
  }

  /** Whether its graph is open. @param {Model} model */
  isReady({ id }) {
    return this.#loaded.has(id);
  }

  /** Open a model's graph, unless it is open already. @param {Model} model @param {Progress} [progress] */
  async load(model, progress = () => {}) {
    const { id } = model;
    if (!this.#loading.has(id)) {
      const opened = this.#open(model, progress);
      this.#loading.set(id, opened);
      opened.catch(() => this.#loading.delete(id)); // it can be tried again
    }
    await this.#loading.get(id);
  }

  /** @param {Model} model @param {Progress} progress */
  async #open(model, progress) {
    const addresses = this.#runtime === null ? [graphOf(model), RUNTIME] : [graphOf(model)];
    const files = fetchAll(addresses, this.#hasCopies, progress);
    this.#runtime ??= files.then(([, wasm]) => {
      progress(text("engine.starting"), 1);
      return this.#startWorker(wasm);
    });
    this.#runtime.catch(() => (this.#runtime = null)); // it can be tried again
    const [[graph]] = await Promise.all([files, this.#runtime]);
    await this.#request({ open: model.id, graph });
    this.#loaded.add(model.id);
  }

  /** @param {Uint8Array} wasm  the runtime */
  #startWorker(wasm) {
    this.#worker = new Worker(new URL("./engine-worker.js", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#receive(data));
    this.#worker.addEventListener("error", () => this.#fail());
    return this.#request({ wasm });
  }

  /** @param {ViTModel} model @param {Progress} [progress] */
  weights({ weights = "" }, progress = () => {}) {
    return weightsAt(weights, async () => (await fetchAll([weights], this.#hasCopies, progress))[0].buffer);
  }

  /** @param {Model} model */
  async samples({ id, samples }) {
    return readSamples(await readLargeJson(samples ?? `samples/${id}.json`, this.#hasCopies));
  }

  /** @param {Model} model @param {LookRequest} request @param {AbortSignal} [signal] @returns {Promise<LookResult>} */
  async look(model, { pixels: bytes, headMask, tokenMask, want }, signal) {
    if (!this.isReady(model)) {
      const early = predictsEarly(model) && !want.every((name) => SLOW.has(name));
      const found = early && (await this.#early(model, { pixels: bytes, headMask, tokenMask, want }));
      if (found) return found;
      await this.load(model);
    }
    const pixels = Float32Array.from(bytes, (value) => value / 255);
    const image = { data: pixels, dims: [1, model.channels, ...model.image_size] };
    if (!isViT(model) || model.lean) {
      const predicted = outputsFor(model, ["probabilities", "novelty"]);
      const { probabilities, novelty } = await this.#run(model, { pixels: image }, predicted);
      return { probabilities: probabilities.data, novelty: novelty?.data[0] ?? null };
    }
    const masks = masksFor(model, headMask, tokenMask);
    const outputs = outputsFor(model, want);
    const found = outputs.length > 0 ? await this.#run(model, { pixels: image, ...masks }, outputs) : {};
    /** @type {LookResult} */
    const result = { probabilities: found.probabilities?.data, novelty: found.novelty?.data[0] ?? null };
    for (const name of /** @type {const} */ (["attention", "queries", "keys", "values"])) {
      if (found[name]) result[name] = withoutBatch(found[name]);
    }
    if (found.kept) result.kept = found.kept.data;
    if (found.lens) result.lens = softmaxRows(withoutBatch(found.lens), model.temperature);
    if (want.includes("rollout") && result.attention) result.rollout = rollout(result.attention, model, found.kept.data);
    if (want.includes("patch_removal")) result.patch_removal = await this.#patchRemoval(model, pixels, masks, signal);
    if (want.includes("relevance")) result.relevance = null;
    return result;
  }

  /**
   * Return what the weights alone give, without the slow maps and novelty; null: they are missing.
   * @param {ViTModel} model @param {LookRequest} request @returns {Promise<LookResult | null>}
   */
  async #early(model, { pixels, headMask, tokenMask, want }) {
    const kept = Float32Array.from(tokenMask ?? Array(numPatches(model)).fill(1));
    const masks = { headMask: headMask?.flat() ?? null, kept };
    const weights = await this.weights(model).catch(() => null);
    const trace = weights && (await runForward(model, weights, pixels, masks).catch(() => null));
    return trace && resultOf(trace, model, kept, want);
  }

  /**
   * Return the probability that the predicted class loses without each patch. In the batch, row 0 removes nothing more,
   * and row i + 1 also removes patch i.
   * @param {ViTModel} model
   * @param {Float32Array} pixels
   * @param {ReturnType<typeof masksFor>} masks
   * @param {AbortSignal} [signal]
   */
  async #patchRemoval(model, pixels, { head_mask, token_mask }, signal) {
    const patches = numPatches(model);
    const kept = range(patches + 1).map((i) => {
      const row = token_mask.data.map((value, patch) => (patch === i - 1 ? 0 : value));
      // the last patch of a model without a class token cannot be removed
      return !model.has_class_token && row.every((value) => value === 0) ? token_mask.data : row;
    });
    /** @type {Float32Array[]} */
    const probabilities = [];
    for (let start = 0; start <= patches; start += REMOVALS_PER_BATCH) {
      signal?.throwIfAborted();
      const rows = kept.slice(start, start + REMOVALS_PER_BATCH);
      const feeds = {
        pixels: { data: concatenate(rows.map(() => pixels)), dims: [rows.length, model.channels, ...model.image_size] },
        head_mask,
        token_mask: { data: concatenate(rows), dims: [rows.length, patches] },
      };
      const { data } = (await this.#run(model, feeds, ["probabilities"])).probabilities;
      const classes = data.length / rows.length;
      rows.forEach((_, i) => probabilities.push(data.subarray(i * classes, (i + 1) * classes)));
    }
    const [before, ...after] = probabilities;
    const predicted = argmax(before);
    return Float32Array.from(after, (each) => before[predicted] - each[predicted]);
  }

  /**
   * @param {Model} model
   * @param {Record<string, GraphTensor>} feeds
   * @param {string[]} outputs
   * @returns {Promise<Record<string, GraphTensor>>}
   */
  #run(model, feeds, outputs) {
    return this.#request({ run: model.id, feeds, outputs });
  }

  /** @param {object} message */
  #request(message) {
    const id = ++this.#lastRequest;
    if (this.#hasFailed) return Promise.reject(new EngineError(text("engine.notStarted")));
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker?.postMessage({ id, ...message });
    });
  }

  /** @param {{ id: number, outputs?: unknown, error?: string }} message */
  #receive({ id, outputs, error }) {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) waiting?.resolve(outputs);
    else waiting?.reject(new EngineError(text("engine.notRun", error)));
  }

  #fail() {
    this.#hasFailed = true;
    for (const { reject } of this.#waiting.values()) reject(new EngineError(text("engine.notStarted")));
    this.#waiting.clear();
  }
}

/** Whether forward.js computes what the graph does, and quickly. @param {Model} model @returns {model is ViTModel} */
function predictsEarly(model) {
  return isViT(model) && model.skips_patches === false && whyNotTraced(model) === null;
}

/** @param {Trace} trace @param {ViTModel} model @param {Float32Array} kept @param {Want[]} want @returns {LookResult} */
function resultOf({ layers, lens, probabilities }, model, kept, want) {
  const { depth, num_heads: heads, head_dim: width } = model;
  const tokens = numTokens(model);
  /** @type {LookResult} */
  const result = { probabilities, novelty: null, kept };
  if (want.includes("lens")) result.lens = { data: lens, shape: [depth + 1, probabilities.length] };
  if (want.includes("attention") || want.includes("rollout")) {
    result.attention = { data: concatenate(layers.map(({ attention }) => attention)), shape: [depth, heads, tokens, tokens] };
  }
  if (want.includes("rollout") && result.attention) result.rollout = rollout(result.attention, model, kept);
  if (want.includes("qkv")) {
    for (const [name, part] of /** @type {const} */ ([["queries", "q"], ["keys", "k"], ["values", "v"]])) {
      const data = concatenate(layers.map((layer) => byHead(layer[part], heads, width)));
      result[name] = { data, shape: [depth, heads, tokens, width] };
    }
  }
  return result;
}

/** Return (N, H · K), the heads side by side, as (H, N, K). @param {Float32Array} x @param {number} heads @param {number} width */
function byHead(x, heads, width) {
  const tokens = x.length / (heads * width);
  const sorted = new Float32Array(x.length);
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const start = (token * heads + head) * width;
      sorted.set(x.subarray(start, start + width), (head * tokens + token) * width);
    }
  }
  return sorted;
}

/** @param {Model} model */
function graphOf({ id, onnx }) {
  return onnx ?? `models/${id}.onnx`;
}

/**
 * Return both masks, which the graph always requires: ones where nothing is removed.
 * @param {ViTModel} model @param {number[][] | null} headMask @param {number[] | null} tokenMask
 */
function masksFor(model, headMask, tokenMask) {
  const { depth, num_heads } = model;
  const patches = numPatches(model);
  const heads = headMask?.flat() ?? new Float32Array(depth * num_heads).fill(1);
  const tokens = tokenMask ?? new Float32Array(patches).fill(1);
  return {
    head_mask: { data: Float32Array.from(heads), dims: [depth, num_heads] },
    token_mask: { data: Float32Array.from(tokens), dims: [1, patches] },
  };
}

/** @param {Model} model @param {Want[]} want @returns {string[]} */
function outputsFor(model, want) {
  /** @type {Partial<Record<Want, string[]>>} */
  const outputs = {
    probabilities: ["probabilities"],
    novelty: model.novelty ? ["novelty"] : [],
    attention: ["attention"],
    lens: ["lens"],
    qkv: ["queries", "keys", "values"],
    kept: ["kept"],
    rollout: ["attention", "kept"],
  };
  return [...new Set(want.flatMap((name) => outputs[name] ?? []))];
}

/** @param {GraphTensor} output  of a batch of one @returns {Tensor} */
function withoutBatch({ data, dims }) {
  return { data, shape: dims.slice(1) };
}

/** @param {Tensor} tensor  (rows, columns) @param {number} temperature @returns {Tensor} */
function softmaxRows({ data, shape: [rows, columns] }, temperature) {
  const scaled = data.map((logit) => logit / temperature);
  const parts = range(rows).map((row) => softmax(scaled.subarray(row * columns, (row + 1) * columns)));
  return { data: concatenate(parts), shape: [rows, columns] };
}
