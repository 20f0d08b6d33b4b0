/** The worker that computes a model's intermediates (forward.js), so that drawing never waits for them. */

import { forward } from "./forward.js";

/** @type {import("./weights.js").Weights} */
let weights = {};

self.addEventListener("message", ({ data }) => {
  if (data.weights) {
    weights = data.weights;
    return;
  }
  const { id, model, pixels, masks } = data;
  try {
    self.postMessage({ id, trace: forward(model, weights, pixels, masks) });
  } catch (error) {
    self.postMessage({ id, error: String(error) });
  }
});
