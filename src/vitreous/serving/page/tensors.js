/**
 * Arrays from the server, in the safetensors format: the length of the header (8 bytes, little-endian), the header (JSON
 * with the type, shape and place of each array), the arrays.
 *
 * @import { Tensor } from "./engine.js"
 * @typedef {{ dtype: "F16" | "F32", shape: number[], data_offsets: [number, number] }} Description
 */

/** @param {ArrayBuffer} buffer @returns {Record<string, Tensor>} */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {[string, Description][]} */
  const described = Object.entries(header).filter(([name]) => name !== "__metadata__");
  return Object.fromEntries(
    described.map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
      const bytes = buffer.slice(8 + length + start, 8 + length + end); // a copy: arrays must start at multiples of 4
      return [name, { data: dtype === "F16" ? fromHalf(new Uint16Array(bytes)) : new Float32Array(bytes), shape }];
    }),
  );
}

/** @type {Float32Array | null} the value of each of the 65,536 codes of float16 */
let numbers = null;

/** @param {Uint16Array} codes */
function fromHalf(codes) {
  numbers ??= Float32Array.from({ length: 1 << 16 }, (_, code) => half(code));
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = numbers[codes[i]];
  return values;
}

/** Return the number that 16 bits stand for: sign, 5 bits of exponent, 10 of fraction. @param {number} code */
function half(code) {
  const sign = code >> 15 ? -1 : 1;
  const exponent = (code >> 10) & 31;
  const fraction = (code & 1023) / 1024;
  if (exponent === 0) return sign * 2 ** -14 * fraction;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * 2 ** (exponent - 15) * (1 + fraction);
}
