/**
 * A model's weights, read from its safetensors file, and the matrices and vectors in it by name.
 *
 * @typedef {Record<string, Float32Array>} Weights  by parameter name; matrices row by row, as (out, in)
 */

/** A file that cannot be read; its message is for developers. */
export class WeightsError extends Error {}

/**
 * Return the tensors of a safetensors file: 8 bytes of length, a JSON header with every tensor's place, then the data.
 * @param {ArrayBuffer} file @returns {Weights}
 */
export function readSafetensors(file) {
  if (file.byteLength < 8) throw new WeightsError("the file is too short");
  const length = Number(new DataView(file).getBigUint64(0, true));
  if (8 + length > file.byteLength) throw new WeightsError("the header is longer than the file");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
  /** @type {Weights} */
  const weights = {};
  for (const [name, { dtype, data_offsets: place }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "F32") throw new WeightsError(`${name} is ${dtype}`);
    const [start, end] = place;
    weights[name] = new Float32Array(file.slice(8 + length + start, 8 + length + end)); // a copy: it may not be aligned
  }
  return weights;
}

/** Fetch and read a model's weights. @param {string} address */
export async function fetchWeights(address) {
  const response = await fetch(address);
  if (!response.ok) throw new WeightsError(`${address} responded with ${response.status}`);
  return readSafetensors(await response.arrayBuffer());
}
