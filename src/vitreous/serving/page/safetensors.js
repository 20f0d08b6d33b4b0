/** Reads a safetensors file of Float32 tensors: the header's length, the header as JSON, then the numbers. */

/** @param {ArrayBuffer} file @returns {Map<string, Float32Array>} */
export function readTensors(file) {
  const length = Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
  /** @type {Map<string, Float32Array>} */
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, data_offsets: [start, end] } = /** @type {{ dtype: string, data_offsets: [number, number] }} */ (entry);
    if (dtype !== "F32") throw new Error(`the tensor ${name} is ${dtype}, not F32`);
    tensors.set(name, new Float32Array(file.slice(8 + length + start, 8 + length + end)));
  }
  return tensors;
}
