/**
 * The models in this browser: ONNX graphs run by onnxruntime-web in a worker (engine-worker.js), so that drawing never
 * waits for them. Nothing drawn or opened leaves the computer.
 *
 * @import { LookRequest, LookResult, Model, Progress, Tensor, ViTModel, Want } from "./engine.js"
 * @import { GraphTensor } from "./engine-worker.js"
 */

import { EngineError, isViT, readModels, readSamples } from "./engine.js";
import { argmax, numPatches, range, rollout, softmax, sum } from "./vit-maths.js";
import { megabytes } from "./words.js";

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

  /** @param {Progress} progress @param {(models: Model[]) => void} onList */
  async start(progress, onList) {
    progress("Loading the list of models …", null);
    const models = readModels(await readJson("models.json"));
    onList(models);
    const graphFiles = models.map((model) => model.onnx ?? `models/${model.id}.onnx`);
    const [wasm, ...graphs] = await fetchAll(["ort/ort-wasm-simd-threaded.wasm", ...graphFiles], progress);
    progress("Starting the models …", 1);
    this.#worker = new Worker(new URL("./engine-worker.js", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#receive(data));
    this.#worker.addEventListener("error", () => this.#fail());
    await this.#request({ wasm, graphs: models.map((model, i) => ({ id: model.id, bytes: graphs[i] })) });
  }

  /** @param {Model} model */
  async samples({ id, samples }) {
    return readSamples(await readJson(samples ?? `samples/${id}.json`));
  }

  /** @param {Model} model @param {LookRequest} request @param {AbortSignal} [signal] @returns {Promise<LookResult>} */
  async look(model, { pixels: bytes, headMask, tokenMask, want }, signal) {
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
    for (const { reject } of this.#waiting.values()) {
      reject(new EngineError("The models could not be started in this browser; try a newer one."));
    }
    this.#waiting.clear();
  }
}

/** @template {Float32Array | Uint8Array} Bytes @param {Bytes[]} arrays  at least one @returns {Bytes} */
function concatenate(arrays) {
  const Kind = /** @type {new (length: number) => Bytes} */ (arrays[0].constructor);
  const all = new Kind(sum(arrays.map((array) => array.length)));
  let filled = 0;
  for (const array of arrays) {
    all.set(array, filled);
    filled += array.length;
  }
  return all;
}

/** @param {string} address */
async function readJson(address) {
  return (await fetchFile(address)).json();
}

/** @param {string} address */
async function fetchFile(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new EngineError(`The file ${address} is missing next to this page.`);
  return response;
}

/** Fetch all files at once and report how much is loaded. @param {string[]} addresses @param {Progress} progress */
async function fetchAll(addresses, progress) {
  const responses = await Promise.all(addresses.map(fetchFile));
  const sizes = responses.map((response) => Number(response.headers.get("Content-Length") ?? 0));
  const total = sizes.every((size) => size > 0) ? sum(sizes) : 0;
  let loaded = 0;
  const count = (/** @type {number} */ bytes) => {
    loaded += bytes;
    const known = loaded <= total; // a compressed transfer states fewer bytes than arrive
    const of = known ? ` of ${megabytes(total)}` : "";
    progress(`Loading the models and their runtime: ${megabytes(loaded)}${of}`, known ? loaded / total : null);
  };
  return Promise.all(responses.map((response) => readBytes(response, count)));
}

/** @param {Response} response @param {(bytes: number) => void} count */
async function readBytes(response, count) {
  const parts = [new Uint8Array(0)];
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    parts.push(part.value);
    count(part.value.length);
  }
  return concatenate(parts);
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
