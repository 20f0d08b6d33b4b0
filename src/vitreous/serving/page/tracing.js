/**
 * The intermediates of the current input, beside its prediction: the weights are loaded once there is something to show,
 * and a worker computes the newest input only.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { Trace, TraceMasks } from "./forward.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{ model: ViTModel, pixels: Uint8Array, masks: TraceMasks }} Traced
 * @typedef {object} Traces
 * @property {Trace | null} trace
 * @property {Weights | null} weights
 * @property {ReturnType<typeof whyNotTraced>} missing  why there are none, as a key of the texts; null: they are loading
 */

import { whyNotTraced } from "./forward.js";
import { Latest } from "./latest.js";
import { markPending } from "./pending.js";
import { fetchWeights } from "./weights.js";

export class Tracing {
  /** @type {(Traces & { model: ViTModel }) | null} */
  #newest = null;

  /** @type {Map<string, Promise<Weights | null>>} */
  #loaded = new Map();
  /** @type {Worker | null} */
  #worker = null;
  /** the model whose weights the worker has @type {string | null} */
  #workerModel = null;
  #lastRequest = 0;
  #generation = 0;
  /** @type {Latest<Traced>} */
  #latest = new Latest((traced, isNewest) => this.#compute(traced, isNewest));

  /** @param {() => void} onTrace */
  constructor(onTrace) {
    this.onTrace = onTrace;
  }

  /** Return what is known of a model: never another one's numbers. @param {ViTModel} model @returns {Traces} */
  of(model) {
    if (this.#newest?.model === model) return this.#newest;
    return { trace: null, weights: null, missing: whyNotTraced(model) };
  }

  /** @param {Traced} traced */
  request(traced) {
    if (whyNotTraced(traced.model) !== null) return;
    markPending({ trace: true });
    this.#latest.request(traced);
  }

  /** Drop what belongs to an earlier input. */
  forget() {
    this.#newest = null;
    this.#generation++;
  }

  /** @param {Traced} traced @param {() => boolean} isNewest */
  async #compute({ model, pixels, masks }, isNewest) {
    const generation = this.#generation;
    try {
      const address = model.weights ?? "";
      if (!this.#loaded.has(address)) this.#loaded.set(address, fetchWeights(address).catch(() => null));
      const weights = (await this.#loaded.get(address)) ?? null;
      if (!isNewest()) return;
      const trace = weights && (await this.#run(model, weights, pixels, masks));
      if (generation !== this.#generation) return; // the sheet was cleared; a newer stroke's comes soon
      this.#newest = { model, trace, weights, missing: trace ? null : "noWeights" };
      this.onTrace();
    } finally {
      markPending({ trace: !isNewest() });
    }
  }

  /**
   * @param {ViTModel} model @param {Weights} weights @param {Uint8Array} pixels @param {TraceMasks} masks
   * @returns {Promise<Trace | null>}
   */
  #run(model, weights, pixels, masks) {
    this.#worker ??= new Worker(new URL("./forward-worker.js", import.meta.url), { type: "module" });
    const worker = this.#worker;
    if (this.#workerModel !== model.id) worker.postMessage({ weights });
    this.#workerModel = model.id;
    const id = ++this.#lastRequest;
    return new Promise((resolve) => {
      const receive = (/** @type {MessageEvent} */ { data }) => {
        if (data.id !== id) return;
        worker.removeEventListener("message", receive);
        resolve(data.trace ?? null);
      };
      worker.addEventListener("message", receive);
      worker.postMessage({ id, model, pixels, masks });
    });
  }
}
