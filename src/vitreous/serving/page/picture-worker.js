/**
 * The worker in which image files are decoded and fitted, so that a photograph of many megapixels does not hold up the
 * page. One kind of message: a file and a model's preprocessing.
 *
 * @import { Preprocessing } from "./engine.js"
 * @import { Image } from "./fitting.js"
 * @import { Gray, Steps } from "./normalise.js"
 *
 * @typedef {object} FittedFile  an image for a model that takes any
 * @property {Image} image  in the model's size and channels
 * @property {ImageBitmap} preview  the whole image, small enough to be shown
 * @property {readonly [number, number]} extent  of the file's image: height, width
 */

import { finish, luma, placement, resizeRows } from "./fitting.js";
import { normalise, shrink } from "./normalise.js";

const MAX_PIXELS = 50_000_000; // as data/images.py
const MAX_SIDE = 16_384;
const BAND = 1 << 20; // pixels read from the canvas at a time: a whole photograph could exceed the browser's canvas
const PREVIEW = 640; // pixels along the longer side

/** Its message is the key of a sentence for the user (texts/). */
class PictureError extends Error {}

/** @param {Blob} file @param {Preprocessing} preprocessing @returns {Promise<Steps | FittedFile>} */
async function read(file, preprocessing) {
  // orientation as EXIF says; no colour management, because training has none
  const options = /** @type {const} */ ({ imageOrientation: "from-image", colorSpaceConversion: "none" });
  const bitmap = await createImageBitmap(file, options).catch(() => {
    throw new PictureError("file.notImage");
  });
  try {
    const { width, height } = bitmap;
    if (width * height > MAX_PIXELS) {
      throw new PictureError("file.tooManyPixels");
    }
    if (Math.max(width, height) > MAX_SIDE) {
      throw new PictureError("file.tooLong");
    }
    return preprocessing.resize === "mnist" ? digitIn(bitmap) : await fitted(bitmap, preprocessing);
  } finally {
    bitmap.close();
  }
}

/** @param {ImageBitmap} bitmap @param {Preprocessing} preprocessing @returns {Promise<FittedFile>} */
async function fitted(bitmap, { fit, image_size, channels }) {
  const extent = /** @type {const} */ ([bitmap.height, bitmap.width]);
  const { from, to } = placement(fit, extent, image_size);
  const planes = [0, 1, 2].map(() => new Uint8Array(from.height * to.width));
  for (const { rgba, top, rows } of bandsOf(bitmap, from, "white")) {
    planes.forEach((plane, channel) => {
      const levels = new Uint8Array(rows * from.width);
      for (let i = 0; i < levels.length; i++) levels[i] = rgba[4 * i + channel];
      plane.set(resizeRows(levels, rows, from.width, to.width), top * to.width);
    });
  }
  const scale = Math.min(1, PREVIEW / Math.max(...extent));
  const [resizeHeight, resizeWidth] = extent.map((side) => Math.max(1, Math.round(side * scale)));
  const preview = await createImageBitmap(bitmap, { resizeHeight, resizeWidth, resizeQuality: "medium" });
  return { image: finish(planes, from.height, to, image_size, channels), preview, extent };
}

/** @param {ImageBitmap} bitmap @returns {Steps} */
function digitIn(bitmap) {
  const { height, width } = bitmap;
  const whole = { top: 0, left: 0, height, width };
  // transparent parts over whichever of black and white contrasts
  let [weighted, weight] = [0, 0];
  for (const { rgba } of bandsOf(bitmap, whole, null)) {
    for (let i = 0; i < rgba.length; i += 4) {
      weighted += luma(rgba[i], rgba[i + 1], rgba[i + 2]) * rgba[i + 3];
      weight += rgba[i + 3];
    }
  }
  /** @type {Gray} */
  const gray = { values: new Uint8Array(height * width), height, width };
  for (const { rgba, top } of bandsOf(bitmap, whole, weighted > 127.5 * weight ? "black" : "white")) {
    for (let i = 0; i < rgba.length; i += 4) {
      gray.values[top * width + i / 4] = luma(rgba[i], rgba[i + 1], rgba[i + 2]);
    }
  }
  const steps = normalise(shrink(gray));
  if (steps === null) throw new PictureError("file.blank");
  return steps;
}

/**
 * Yield a part of the image, some rows at a time, over a backdrop.
 * @param {ImageBitmap} bitmap @param {import("./fitting.js").Box} box @param {string | null} backdrop  a colour
 */
function* bandsOf(bitmap, { top, left, height, width }, backdrop) {
  const band = Math.min(height, Math.max(1, Math.floor(BAND / width)));
  const context = new OffscreenCanvas(width, band).getContext("2d", { willReadFrequently: true });
  if (context === null) throw new Error("this browser has no canvas in workers");
  for (let row = 0; row < height; row += band) {
    const rows = Math.min(band, height - row);
    context.clearRect(0, 0, width, rows);
    if (backdrop !== null) {
      context.fillStyle = backdrop;
      context.fillRect(0, 0, width, rows);
    }
    context.drawImage(bitmap, left, top + row, width, rows, 0, 0, width, rows);
    yield { rgba: context.getImageData(0, 0, width, rows).data, top: row, rows };
  }
}

self.addEventListener("message", async ({ data: { id, file, preprocessing } }) => {
  try {
    self.postMessage({ id, result: await read(file, preprocessing) });
  } catch (error) {
    self.postMessage({ id, error: error instanceof PictureError ? error.message : null });
  }
});
