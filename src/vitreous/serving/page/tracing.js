/**
 * The intermediates of the current input, beside its prediction: the weights are loaded once there is something to show,
 * and only the newest input's are computed.
 *
 * @import { Engine, ViTModel } from "./engine.js"
 * @import { Trace, TraceMasks } from "./forward.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{ engine: Engine, model: ViTModel, pixels: Uint8Array, masks: TraceMasks }} Traced
 * @typedef {object} Traces
 * @property {Trace | null} trace
 * @property {Weights | null} weights
 * @property {ReturnType<typeof whyNotTraced>} missing  why there are none, as a key of the texts; null: they are loading
 */

import { runForward } from "./forward-pass.js";
import { whyNotTraced } from "./forward.js";
import { Latest } from "./latest.js";
import { markPending } from "./pending.js";

export class Tracing {
  /** @type {(Traces & { model: ViTModel }) | null} */
  #newest = null;
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
  async #compute({ engine, model, pixels, masks }, isNewest) {
    const generation = this.#generation;
    try {
      const weights = await engine.weights(model).catch(() => null);
      if (!isNewest()) return;
      const trace = weights && (await runForward(model, weights, pixels, masks).catch(() => null));
      if (generation !== this.#generation) return; // the sheet was cleared; a newer stroke's comes soon
      this.#newest = { model, trace, weights, missing: trace ? null : "noWeights" };
      this.onTrace();
    } finally {
      markPending({ trace: !isNewest() });
    }
  }
}
