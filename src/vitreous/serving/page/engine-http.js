/**
 * The models of `vitreous serve`, over HTTP.
 *
 * @import { LookRequest, LookResult, Model, Progress, Tensor } from "./engine.js"
 */

import { toBase64 } from "./codec.js";
import { EngineError, isAbort, readModels, readSamples } from "./engine.js";

export class HttpEngine {
  place = "The models run on this server.";
  hasGradients = true;
  mostNumbers = 4_000_000; // as serving/limits.py

  /** @param {Progress} progress @param {(models: Model[]) => void} onList */
  async start(progress, onList) {
    progress("Loading the list of models …", null);
    onList(readModels(await jsonOf(fetch("v1/models"))));
  }

  /** @param {Model} model */
  async samples({ id }) {
    return readSamples(await jsonOf(fetch(`v1/samples?model=${encodeURIComponent(id)}`)));
  }

  /** @param {Model} model @param {LookRequest} request @param {AbortSignal} [signal] @returns {Promise<LookResult>} */
  async look(model, request, signal) {
    const body = JSON.stringify({
      model: model.id,
      pixels: toBase64(request.pixels),
      head_mask: request.headMask,
      token_mask: request.tokenMask,
      relevance_class: null,
      want: request.want,
    });
    const headers = { "Content-Type": "application/json" };
    const found = await jsonOf(fetch("v1/look", { method: "POST", headers, body, signal }));
    return {
      probabilities: vector(found.probabilities),
      novelty: found.novelty,
      attention: tensor(found.attention),
      lens: tensor(found.lens),
      queries: tensor(found.queries),
      keys: tensor(found.keys),
      values: tensor(found.values),
      kept: vector(found.kept),
      rollout: vector(found.rollout),
      patch_removal: vector(found.patch_removal),
      relevance: vector(found.relevance),
    };
  }
}

/** Return a response's JSON, or throw a sentence that says what went wrong. @param {Promise<Response>} request */
async function jsonOf(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new EngineError(
      "The server does not respond. Is `vitreous serve` still running?",
    );
  }
  const document = await response.json().catch((error) => {
    if (isAbort(error)) throw error;
    return null;
  });
  if (response.ok && document !== null) return document;
  if (response.status === 429 || response.status === 503) {
    throw new EngineError("The server is busy; the next change tries again.");
  }
  const detail = typeof document?.detail === "string" ? document.detail : document?.title;
  throw new EngineError(`The server responded with ${response.status}${detail ? `: ${detail}` : "."}`);
}

/** @param {number[] | null | undefined} values */
function vector(values) {
  return values ? Float32Array.from(values) : undefined;
}

/** Flatten nested lists into one array with its shape. @param {unknown} nested @returns {Tensor | undefined} */
function tensor(nested) {
  if (!Array.isArray(nested)) return undefined;
  /** @type {number[]} */
  const shape = [];
  for (let inner = nested; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  return { data: Float32Array.from(nested.flat(/** @type {1} */ (shape.length - 1))), shape };
}
