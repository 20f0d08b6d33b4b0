/**
 * Reads a picture file into the model's 28×28 pixels.
 *
 * @import { Gray } from "./normalise.js"
 */

import { contextOf, make } from "./dom.js";
import { normalise, shrink } from "./normalise.js";

const MAX_BYTES = 32 * 1024 ** 2; // as data/images.py
const MAX_PIXELS = 50_000_000;
const MAX_SIDE = 16_384;

/** Its message is a sentence for the user. */
export class PictureError extends Error {}

/** @param {Blob} file */
export async function readPicture(file) {
  if (file.size > MAX_BYTES) throw new PictureError("That file is larger than 32 MB; use a smaller picture.");
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new PictureError("That file is not an image I can read: PNG, JPEG, WebP or BMP, please.");
  });
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    throw new PictureError("That picture has more than 50 million pixels; use a smaller one.");
  }
  if (Math.max(width, height) > MAX_SIDE) {
    throw new PictureError("That picture is longer than 16,384 pixels along one side; crop or shrink it.");
  }
  const context = contextOf(make("canvas", { width, height }));
  context.drawImage(bitmap, 0, 0);
  const steps = normalise(shrink(grayOf(context.getImageData(0, 0, width, height).data, height, width)));
  if (steps === null) throw new PictureError("That picture looks blank: no stroke stands out from its background.");
  return steps;
}

/**
 * Return RGBA pixels as gray values, as `data/images.py` does: transparent parts over whichever of black and white
 * contrasts, then ITU-R 601 in integers.
 * @param {Uint8ClampedArray} rgba @param {number} height @param {number} width @returns {Gray}
 */
function grayOf(rgba, height, width) {
  const values = new Uint8Array(height * width);
  const backdrop = backdropOf(rgba);
  for (let i = 0; i < values.length; i++) {
    const alpha = rgba[4 * i + 3];
    const over = (/** @type {number} */ value) => Math.floor((value * alpha + backdrop * (255 - alpha) + 127) / 255);
    values[i] = luma(over(rgba[4 * i]), over(rgba[4 * i + 1]), over(rgba[4 * i + 2]));
  }
  return { values, height, width };
}

/** @param {Uint8ClampedArray} rgba */
function backdropOf(rgba) {
  let [weighted, weight] = [0, 0];
  for (let i = 0; i < rgba.length; i += 4) {
    weighted += luma(rgba[i], rgba[i + 1], rgba[i + 2]) * rgba[i + 3];
    weight += rgba[i + 3];
  }
  return weighted > 127.5 * weight ? 0 : 255;
}

/** @param {number} red @param {number} green @param {number} blue */
function luma(red, green, blue) {
  return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16;
}
