/**
 * The models of `vitreous serve`, over HTTP.
 *
 * @import { LookRequest, LookResult, Model, Progress, ViTModel } from "./engine.js"
 */

import { toBase64 } from "./codec.js";
import { EngineError, isAbort, readModels, readSamples } from "./engine.js";
import { readTensors } from "./tensors.js";
import { text } from "./texts.js";
import { weightsAt } from "./weights.js";

export class HttpEngine {
  place = text("engine.onServer");
  hasGradients = true;
  mostNumbers = 4_000_000; // as serving/limits.py

  /** @param {Progress} progress @param {(models: Model[]) => Model | null | void} onList */
  async start(progress, onList) {
    progress(text("engine.list"), null);
    onList(readModels(await jsonOf(fetch("v1/models"))));
  }

  isReady() {
    return true;
  }

  async load() {}

  /** @param {ViTModel} model */
  weights({ weights = "" }) {
    return weightsAt(weights, async () => bodyOf((await responseTo(fetch(weights))).arrayBuffer()));
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
    const headers = { "Content-Type": "application/json", Accept: "application/x-safetensors" };
    const response = await responseTo(fetch("v1/look", { method: "POST", headers, body, signal }));
    const found = readTensors(await bodyOf(response.arrayBuffer()));
    return {
      probabilities: found.probabilities?.data,
      novelty: found.novelty?.data[0] ?? null,
      attention: found.attention,
      lens: found.lens,
      queries: found.queries,
      keys: found.keys,
      values: found.values,
      kept: found.kept?.data,
      rollout: found.rollout?.data,
      patch_removal: found.patch_removal?.data,
      relevance: found.relevance?.data,
    };
  }
}

/** @param {Promise<Response>} request */
async function jsonOf(request) {
  return bodyOf((await responseTo(request)).json());
}

/** Return a successful response, or throw a sentence that says what went wrong. @param {Promise<Response>} request */
async function responseTo(request) {
  const response = await bodyOf(request);
  if (response.ok) return response;
  if (response.status === 429 || response.status === 503) {
    throw new EngineError(text("engine.busy"));
  }
  if (response.status === 401) throw new EngineError(text("engine.signedOut"));
  const problem = await response.json().catch(() => null);
  const detail = typeof problem?.detail === "string" ? problem.detail : problem?.title;
  throw new EngineError(text("engine.status", response.status, detail));
}

/** Wait for a response or its body. @template Body @param {Promise<Body>} arriving */
async function bodyOf(arriving) {
  try {
    return await arriving;
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new EngineError(text("engine.silent"));
  }
}
