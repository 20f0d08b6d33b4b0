/**
 * The models of `vitreous serve`, over HTTP.
 *
 * @typedef {import("./engine.js").Answer} Answer
 * @typedef {import("./engine.js").Model} Model
 * @typedef {import("./engine.js").Progress} Progress
 * @typedef {import("./engine.js").Question} Question
 * @typedef {import("./engine.js").Tensor} Tensor
 */

import { toBase64 } from "./codec.js";
import { EngineError, isAbort, readModels, readSamples } from "./engine.js";

export class HttpEngine {
  place = "The models run on this server.";
  hasGradients = true;

  /** @param {Progress} progress */
  async start(progress) {
    progress("Asking the server for its models …", null);
    return readModels(await answered(fetch("v1/models")));
  }

  async samples() {
    return readSamples(await answered(fetch("v1/samples")));
  }

  /**
   * @param {Model} model
   * @param {Question} question
   * @param {AbortSignal} [signal]
   * @returns {Promise<Answer>}
   */
  async look(model, question, signal) {
    const body = JSON.stringify({
      model: model.id,
      pixels: toBase64(question.pixels),
      head_mask: question.headMask,
      token_mask: question.tokenMask,
      relevance_class: null,
      want: question.want,
    });
    const headers = { "Content-Type": "application/json" };
    const found = await answered(fetch("v1/look", { method: "POST", headers, body, signal }));
    return {
      probabilities: vector(found.probabilities),
      attention: tensor(found.attention),
      lens: tensor(found.lens),
      queries: tensor(found.queries),
      keys: tensor(found.keys),
      values: tensor(found.values),
      rollout: vector(found.rollout),
      occlusion: vector(found.occlusion),
      relevance: vector(found.relevance),
    };
  }
}

/**
 * The JSON of a response, or a sentence that says what went wrong.
 * @param {Promise<Response>} request
 */
async function answered(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new EngineError("The server does not answer. Is `vitreous serve` still running? Your drawing is safe: it lives in the address.");
  }
  const document = await response.json().catch((error) => {
    if (isAbort(error)) throw error;
    return null;
  });
  if (response.ok && document !== null) return document;
  const detail = typeof document?.detail === "string" ? document.detail : document?.title;
  if (response.status === 429 || response.status === 503) {
    throw new EngineError("The server is busy; the next stroke asks again.");
  }
  throw new EngineError(`The server answered ${response.status}${detail ? `: ${detail}` : "."}`);
}

/** @param {number[] | null | undefined} values */
function vector(values) {
  return values ? Float32Array.from(values) : undefined;
}

/**
 * Nested lists → one flat array and its shape.
 * @param {unknown} nested
 * @returns {Tensor | undefined}
 */
function tensor(nested) {
  if (!Array.isArray(nested)) return undefined;
  /** @type {number[]} */
  const shape = [];
  for (let inner = nested; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  const data = Float32Array.from(nested.flat(/** @type {1} */ (shape.length - 1)));
  return { data, shape };
}
