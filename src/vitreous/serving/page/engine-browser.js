/**
 * The models in this browser: ONNX graphs run by onnxruntime-web in a worker (engine-worker.js), so that drawing never
 * waits for them. Nothing drawn or opened leaves the computer.
 *
 * @import { LookRequest, LookResult, Model, Progress, Tensor, ViTModel, Want } from "./engine.js"
 * @import { GraphTensor } from "./engine-worker.js"
 */

import { EngineError, isViT, readModels, readSamples } from "./engine.js";
import { concatenate, fetchAll, readJson, readLargeJson } from "./fetching.js";
import { argmax, numPatches, range, rollout, softmax } from "./vit-maths.js";

const NOT_STARTED = "The models could not be started in this browser; try a newer one.";
const REMOVALS_PER_BATCH = 8; // a newer request waits for this many, not for all

export class BrowserEngine {
  place = "The models run in your browser: what you draw or open stays on your computer.";
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

  /** @param {Progress} progress @param {(models: Model[]) => Model | null | void} onList */
  async start(progress, onList) {
    progress("Loading the list of models …", null);
    this.#worker = new Worker(new URL("./engine-worker.js", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#receive(data));
    this.#worker.addEventListener("error", () => this.#fail());
    const list = await readJson("models.json");
    const models = readModels(list);
    this.#hasCopies = list.gzip === true;
    const first = onList(models) ?? models[0];
    const files = ["ort/ort-wasm-simd-threaded.wasm", graphOf(first)];
    const [wasm, graph] = await fetchAll(files, this.#hasCopies, progress);
    progress("Starting the model …", 1);
    this.#loading.set(first.id, this.#request({ wasm }).then(() => this.#open(first, graph)));
    await this.load(first);
  }

  /** Whether it runs at once. @param {Model} model */
  isReady({ id }) {
    return this.#loaded.has(id);
  }

  /** Load a model, unless it is loaded already. @param {Model} model */
  async load(model) {
    const { id } = model;
    if (!this.#loading.has(id)) {
      const opened = fetchAll([graphOf(model)], this.#hasCopies, () => {}).then(([graph]) => this.#open(model, graph));
      this.#loading.set(id, opened);
      opened.catch(() => this.#loading.delete(id)); // it can be tried again
    }
    await this.#loading.get(id);
  }

  /** @param {Model} model @param {Uint8Array} graph */
  async #open({ id }, graph) {
    await this.#request({ open: id, graph });
    this.#loaded.add(id);
  }

  /** @param {Model} model */
  async samples({ id, samples }) {
    return readSamples(await readLargeJson(samples ?? `samples/${id}.json`, this.#hasCopies));
  }

  /** @param {Model} model @param {LookRequest} request @param {AbortSignal} [signal] @returns {Promise<LookResult>} */
  async look(model, { pixels: bytes, headMask, tokenMask, want }, signal) {
    if (!this.isReady(model)) await this.load(model);
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
    if (this.#hasFailed) return Promise.reject(new EngineError(NOT_STARTED));
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
    else waiting?.reject(new EngineError(`The model could not run in this browser (${error}).`));
  }

  #fail() {
    this.#hasFailed = true;
    for (const { reject } of this.#waiting.values()) reject(new EngineError(NOT_STARTED));
    this.#waiting.clear();
  }
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
