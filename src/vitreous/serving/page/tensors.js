/**
 * Arrays in the safetensors format, of a server's response or a model's file: the length of the header (8 bytes,
 * little-endian), the header (JSON with the type, shape and place of each array), the arrays.
 *
 * @import { Tensor } from "./engine.js"
 * @typedef {{ dtype: "F16" | "F32", shape: number[], data_offsets: [number, number] }} Description
 */

/** A file that cannot be read; its message is for developers. */
export class TensorsError extends Error {}

/** @param {ArrayBuffer} buffer @returns {Record<string, Tensor>} */
export function readTensors(buffer) {
  if (buffer.byteLength < 8) throw new TensorsError("the file is too short");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (8 + length > buffer.byteLength) throw new TensorsError("the header is longer than the file");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {[string, Description][]} */
  const described = Object.entries(header).filter(([name]) => name !== "__metadata__");
  return Object.fromEntries(
    described.map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
      if (dtype !== "F16" && dtype !== "F32") throw new TensorsError(`${name} is ${dtype}`);
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
