/**
 * Image files, read in a worker (picture-worker.js).
 *
 * @import { Preprocessing } from "./engine.js"
 * @import { Steps } from "./normalise.js"
 * @import { FittedFile } from "./picture-worker.js"
 */

import { text } from "./texts.js";

const MAX_BYTES = 32 * 1024 ** 2; // as data/images.py

/** Its message is a sentence for the user. */
export class PictureError extends Error {}

/** @type {Worker | null} */
let worker = null;
let lastRequest = 0;
/** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
const waiting = new Map();

/** Return how a picture of a digit becomes 28×28 pixels. @param {Blob} file @param {Preprocessing} preprocessing */
export function readDigit(file, preprocessing) {
  return /** @type {Promise<Steps>} */ (read(file, preprocessing));
}

/** Return a picture in a model's size and channels. @param {Blob} file @param {Preprocessing} preprocessing */
export function readPicture(file, preprocessing) {
  return /** @type {Promise<FittedFile>} */ (read(file, preprocessing));
}

/** @param {Blob} file @param {Preprocessing} preprocessing */
async function read(file, preprocessing) {
  if (file.size > MAX_BYTES) throw new PictureError(text("file.tooLarge"));
  worker ??= startWorker();
  const id = ++lastRequest;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker?.postMessage({ id, file, preprocessing });
  });
}

function startWorker() {
  const started = new Worker(new URL("./picture-worker.js", import.meta.url), { type: "module" });
  started.addEventListener("message", ({ data: { id, result, error } }) => {
    const request = waiting.get(id);
    waiting.delete(id);
    if (result !== undefined) request?.resolve(result);
    else request?.reject(new PictureError(text(error ?? "file.unreadable")));
  });
  started.addEventListener("error", () => {
    for (const { reject } of waiting.values()) reject(new PictureError(text("file.unreadable")));
    waiting.clear();
    worker = null; // the next file starts another
  });
  return started;
}
