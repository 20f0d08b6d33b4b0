/**
 * The models in this browser: ONNX graphs run by onnxruntime-web in a worker (engine-worker.js), so that the pen never
 * waits for them. Nothing drawn leaves the machine.
 *
 * @typedef {import("./engine.js").Answer} Answer
 * @typedef {import("./engine.js").Model} Model
 * @typedef {import("./engine.js").Progress} Progress
 * @typedef {import("./engine.js").Question} Question
 * @typedef {import("./engine.js").Tensor} Tensor
 * @typedef {import("./engine.js").ViTModel} ViTModel
 */

import { EngineError, isViT, readModels, readSamples } from "./engine.js";
import { largest, patchesOf, rollout, softmax } from "./vit-maths.js";
import { megabytes } from "./words.js";

const OCCLUSION_ROWS = 8; // asked at a time: a newer question waits for so many, not for all

export class BrowserEngine {
  place = "The models run in your browser: what you draw stays here.";
  hasGradients = false;

  /** @type {Worker | null} */
  #worker = null;
  /** @type {Map<number, { resolve: (outputs: any) => void, reject: (error: Error) => void }>} */
  #waiting = new Map();
  #lastRequest = 0;

  /** @param {Progress} progress */
  async start(progress) {
    progress("Loading the list of models …", null);
    const models = readModels(await readJson("models.json"));
    const files = ["ort/ort-wasm-simd-threaded.wasm", ...models.map((model) => model.onnx ?? `models/${model.id}.onnx`)];
    const [wasm, ...graphs] = await fetchAll(files, progress);
    progress("Starting the models …", 1);
    this.#worker = new Worker(new URL("./engine-worker.js", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#receive(data));
    this.#worker.addEventListener("error", () => this.#fail());
    await this.#request({ wasm, graphs: models.map((model, i) => ({ id: model.id, bytes: graphs[i] })) });
    return models;
  }

  async samples() {
    return readSamples(await readJson("samples.json"));
  }

  /**
   * @param {Model} model
   * @param {Question} question
   * @param {AbortSignal} [signal]
   * @returns {Promise<Answer>}
   */
  async look(model, question, signal) {
    const pixels = Float32Array.from(question.pixels, (value) => value / 255);
    const [height, width] = model.image_size;
    const image = { data: pixels, dims: [1, model.channels, height, width] };
    if (!isViT(model) || model.lean) {
      const { probabilities } = await this.#run(model, { pixels: image }, ["probabilities"]);
      return { probabilities: probabilities.data };
    }
    const masks = masksOf(model, question);
    const outputs = outputsFor(question.want);
    const found = outputs.length > 0 ? await this.#run(model, { pixels: image, ...masks }, outputs) : {};
    /** @type {Answer} */
    const answer = { probabilities: found.probabilities?.data };
    for (const name of /** @type {const} */ (["attention", "queries", "keys", "values"])) {
      if (found[name]) answer[name] = withoutBatch(found[name]);
    }
    if (found.lens) answer.lens = perRow(withoutBatch(found.lens), softmax);
    if (question.want.includes("rollout") && answer.attention) answer.rollout = rollout(answer.attention, model, question.tokenMask);
    if (question.want.includes("occlusion")) answer.occlusion = await this.#occlusion(model, pixels, masks, signal);
    if (question.want.includes("relevance")) answer.relevance = null;
    return answer;
  }

  /**
   * What the answer's probability loses without each patch: row 0 has nothing more removed, row i + 1 also patch i.
   * @param {ViTModel} model
   * @param {Float32Array} pixels
   * @param {ReturnType<typeof masksOf>} masks
   * @param {AbortSignal} [signal]
   */
  async #occlusion(model, pixels, masks, signal) {
    const patches = patchesOf(model);
    const [height, width] = model.image_size;
    const kept = Array.from({ length: patches + 1 }, (_, i) => {
      const row = masks.token_mask.data.map((value, patch) => (patch === i - 1 ? 0 : value));
      // the last patch of a model that reads patches only cannot be removed
      return !model.has_class_token && row.every((value) => value === 0) ? masks.token_mask.data : row;
    });
    /** @type {Float32Array[]} */
    const shares = [];
    for (let start = 0; start <= patches; start += OCCLUSION_ROWS) {
      signal?.throwIfAborted();
      const rows = kept.slice(start, start + OCCLUSION_ROWS);
      const feeds = {
        pixels: { data: joined(rows.map(() => pixels)), dims: [rows.length, model.channels, height, width] },
        head_mask: masks.head_mask,
        token_mask: { data: joined(rows), dims: [rows.length, patches] },
      };
      const { data } = (await this.#run(model, feeds, ["probabilities"])).probabilities;
      const classes = data.length / rows.length;
      rows.forEach((_, i) => shares.push(data.subarray(i * classes, (i + 1) * classes)));
    }
    const [whole, ...without] = shares;
    const answer = largest(whole);
    return Float32Array.from(without, (each) => whole[answer] - each[answer]);
  }

  /**
   * @param {Model} model
   * @param {Record<string, { data: Float32Array, dims: number[] }>} feeds
   * @param {string[]} outputs
   * @returns {Promise<Record<string, { data: Float32Array, dims: number[] }>>}
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
      reject(new EngineError("The engine that runs the models did not start in this browser; a newer one may do."));
    }
    this.#waiting.clear();
  }
}

/** @param {Float32Array[]} rows  of one length */
function joined(rows) {
  const all = new Float32Array(rows.length * rows[0].length);
  rows.forEach((row, i) => all.set(row, i * row.length));
  return all;
}

/** @param {string} address */
async function readJson(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new EngineError(`The file ${address} is missing beside this page.`);
  return response.json();
}

/**
 * All files at once, telling how much is left.
 * @param {string[]} addresses
 * @param {Progress} progress
 * @returns {Promise<Uint8Array[]>}
 */
async function fetchAll(addresses, progress) {
  const responses = await Promise.all(addresses.map((address) => fetch(address).catch(() => null)));
  const missing = addresses.find((_, i) => !responses[i]?.ok);
  if (missing !== undefined) throw new EngineError(`The file ${missing} is missing beside this page.`);
  const sizes = responses.map((response) => Number(response?.headers.get("Content-Length") ?? 0));
  const total = sizes.every((size) => size > 0) ? sizes.reduce((sum, size) => sum + size, 0) : null;
  let done = 0;
  const count = (/** @type {number} */ bytes) => {
    done += bytes;
    // a compressed transfer states fewer bytes than arrive: then say only how much has come
    const known = total !== null && done <= total;
    progress(`Loading the models and their engine: ${megabytes(done)}${known ? ` of ${megabytes(total)}` : ""}`, known ? done / total : null);
  };
  return Promise.all(responses.map((response) => drain(/** @type {Response} */ (response), count)));
}

/**
 * @param {Response} response
 * @param {(bytes: number) => void} count
 */
async function drain(response, count) {
  if (response.body === null) return new Uint8Array(await response.arrayBuffer());
  /** @type {Uint8Array[]} */
  const parts = [];
  const reader = response.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    count(part.value.length);
  }
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * The graph wants both masks always: ones where nothing is removed.
 * @param {ViTModel} model
 * @param {Question} question
 */
function masksOf(model, question) {
  const { depth, num_heads } = model;
  const patches = patchesOf(model);
  const heads = question.headMask?.flat() ?? new Float32Array(depth * num_heads).fill(1);
  const tokens = question.tokenMask ?? new Float32Array(patches).fill(1);
  return {
    head_mask: { data: Float32Array.from(heads), dims: [depth, num_heads] },
    token_mask: { data: Float32Array.from(tokens), dims: [1, patches] },
  };
}

/** @param {import("./engine.js").Want[]} want */
function outputsFor(want) {
  const outputs = new Set();
  if (want.includes("probabilities")) outputs.add("probabilities");
  if (want.includes("lens")) outputs.add("lens");
  if (want.includes("attention") || want.includes("rollout")) outputs.add("attention");
  if (want.includes("qkv")) for (const name of ["queries", "keys", "values"]) outputs.add(name);
  return [...outputs];
}

/**
 * @param {{ data: Float32Array, dims: number[] }} output  of a batch of one
 * @returns {Tensor}
 */
function withoutBatch({ data, dims }) {
  return { data, shape: dims.slice(1) };
}

/**
 * @param {Tensor} tensor  (rows, columns)
 * @param {(row: Float32Array) => Float32Array} change
 * @returns {Tensor}
 */
function perRow({ data, shape }, change) {
  const changed = new Float32Array(data.length);
  for (let row = 0; row < shape[0]; row++) {
    changed.set(change(data.subarray(row * shape[1], (row + 1) * shape[1])), row * shape[1]);
  }
  return { data: changed, shape };
}
