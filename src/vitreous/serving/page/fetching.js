/**
 * Files next to a static page, fetched compressed where the page comes with compressed copies (`X.gz` beside `X`), which
 * works on hosts that compress nothing themselves.
 *
 * @import { Progress } from "./engine.js"
 */

import { EngineError } from "./engine.js";
import { sum } from "./vit-maths.js";
import { megabytes } from "./words.js";

/** @param {string} address */
export async function readJson(address) {
  return (await fetchFile(address)).json();
}

/** As `readJson`, from the compressed copy. @param {string} address @param {boolean} hasCopies */
export async function readLargeJson(address, hasCopies) {
  const [bytes] = await fetchAll([address], hasCopies, () => {});
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** @param {string} address */
async function fetchFile(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new EngineError(`The file ${address} is missing next to this page.`);
  return response;
}

/**
 * Fetch all files at once and report how much is loaded.
 * @param {string[]} addresses @param {boolean} hasCopies  whether each has a compressed copy @param {Progress} progress
 */
export async function fetchAll(addresses, hasCopies, progress) {
  const canUnpack = "DecompressionStream" in globalThis;
  const responses = await Promise.all(addresses.map((address) => fetchFile(hasCopies && canUnpack ? `${address}.gz` : address)));
  const sizes = responses.map((response) => Number(response.headers.get("Content-Length") ?? 0));
  const total = sizes.every((size) => size > 0) ? sum(sizes) : 0;
  let loaded = 0;
  const count = (/** @type {number} */ bytes) => {
    loaded += bytes;
    const known = loaded <= total; // a transfer that the host compressed states fewer bytes than arrive
    const of = known ? ` of ${megabytes(total)}` : "";
    progress(`Loading the models and their runtime: ${megabytes(loaded)}${of}`, known ? loaded / total : null);
  };
  return Promise.all(responses.map(async (response) => unpacked(await readBytes(response, count))));
}

/** @param {Response} response @param {(bytes: number) => void} count */
async function readBytes(response, count) {
  const parts = [new Uint8Array(0)];
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    parts.push(part.value);
    count(part.value.length);
  }
  return concatenate(parts);
}

/**
 * Return what a gzip file holds; any other file as it is, because some hosts let the browser unpack it.
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
async function unpacked(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @template {Float32Array | Uint8Array} Bytes @param {Bytes[]} arrays  at least one @returns {Bytes} */
export function concatenate(arrays) {
  const Kind = /** @type {new (length: number) => Bytes} */ (arrays[0].constructor);
  const all = new Kind(sum(arrays.map((array) => array.length)));
  let filled = 0;
  for (const array of arrays) {
    all.set(array, filled);
    filled += array.length;
  }
  return all;
}
