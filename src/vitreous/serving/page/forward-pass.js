/**
 * One forward pass at a time (forward.js) in a worker, so that drawing never waits for it. The newest is kept: a
 * prediction and the diagram of the same input share it.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { Trace, TraceMasks } from "./forward.js"
 * @import { Weights } from "./weights.js"
 */

/** @type {Worker | null} */
let worker = null;
/** the weights that the worker has @type {Weights | null} */
let sent = null;
let lastId = 0;
/** @type {Map<number, { resolve: (trace: Trace) => void, reject: (error: Error) => void }>} */
const waiting = new Map();
/** @type {{ pixels: Uint8Array, key: string, trace: Promise<Trace> } | null} */
let newest = null;

/** Start the worker, while the weights are on their way. */
export function prepareForward() {
  worker ??= startWorker();
}

/**
 * @param {ViTModel} model @param {Weights} weights @param {Uint8Array} pixels @param {TraceMasks} masks
 * @returns {Promise<Trace>}
 */
export function runForward(model, weights, pixels, { headMask, kept }) {
  const masks = { headMask: headMask && Array.from(headMask), kept: kept && Array.from(kept) };
  const key = JSON.stringify([model.id, masks]);
  if (newest?.pixels !== pixels || newest.key !== key || sent !== weights) {
    newest = { pixels, key, trace: run(model, weights, pixels, masks) };
  }
  return newest.trace;
}

/** @param {ViTModel} model @param {Weights} weights @param {Uint8Array} pixels @param {TraceMasks} masks */
function run(model, weights, pixels, masks) {
  worker ??= startWorker();
  if (sent !== weights) worker.postMessage({ weights });
  sent = weights;
  worker.postMessage({ id: ++lastId, model, pixels, masks });
  return new Promise((/** @type {(trace: Trace) => void} */ resolve, reject) => waiting.set(lastId, { resolve, reject }));
}

function startWorker() {
  const started = new Worker(new URL("./forward-worker.js", import.meta.url), { type: "module" });
  started.addEventListener("message", ({ data: { id, trace, error } }) => {
    if (trace) waiting.get(id)?.resolve(trace);
    else waiting.get(id)?.reject(new Error(error));
    waiting.delete(id);
  });
  started.addEventListener("error", () => {
    for (const { reject } of waiting.values()) reject(new Error("the worker did not start"));
    waiting.clear();
  });
  return started;
}
