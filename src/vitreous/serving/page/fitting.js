/**
 * How an image of any size becomes one of the model's: the same integers as `data/fitting.py`, which states the rule;
 * tests/page/test_fitting.py compares the two. No part of this needs a page, so it also runs in a worker.
 *
 * @import { Preprocessing } from "./engine.js"
 *
 * @typedef {object} Image
 * @property {Uint8Array} values  channel by channel, row by row
 * @property {number} channels  1 or 3
 * @property {number} height
 * @property {number} width
 *
 * @typedef {{ top: number, left: number, height: number, width: number }} Box
 * @typedef {{ from: Box, to: Box }} Placement  the part of the image that is used, and where it is in the model's
 * @typedef {readonly [number, number]} Size  height, width
 */

const BITS = 22; // of the weights' fractions
const HALF = 1 << (BITS - 1);

/** @param {Preprocessing["fit"]} fit @param {Size} extent  of the image @param {Size} size  of the model's @returns {Placement} */
export function placement(fit, [h, w], [H, W]) {
  const [whole, all] = [{ top: 0, left: 0, height: h, width: w }, { top: 0, left: 0, height: H, width: W }];
  if (h === H && w === W) return { from: whole, to: all };
  const isWide = w * H > h * W;
  if (fit === "crop") {
    const [rows, columns] = isWide ? [h, share(h, W, H)] : [share(w, H, W), w];
    return { from: centred(rows, columns, [h, w]), to: all };
  }
  if (fit === "letterbox") {
    const [rows, columns] = isWide ? [share(h, W, w), W] : [H, share(w, H, h)];
    return { from: whole, to: centred(rows, columns, [H, W]) };
  }
  return { from: whole, to: all };
}

/** Return a · b / c, rounded, at least 1. @param {number} a @param {number} b @param {number} c */
function share(a, b, c) {
  return Math.max(1, Math.floor((2 * a * b + c) / (2 * c)));
}

/** @param {number} rows @param {number} columns @param {Size} within @returns {Box} */
function centred(rows, columns, [height, width]) {
  return { top: Math.floor((height - rows) / 2), left: Math.floor((width - columns) / 2), height: rows, width: columns };
}

/** Return an image in the size and the channels of a model. @param {Image} image @param {Preprocessing} preprocessing */
export function fitImage(image, { fit, image_size, channels }) {
  const { height, width, values } = image;
  const { from, to } = placement(fit, [height, width], image_size);
  const planes = Array.from({ length: image.channels }, (_, channel) => {
    const plane = values.subarray(channel * height * width, (channel + 1) * height * width);
    return resizeRows(cropped(plane, width, from), from.height, from.width, to.width);
  });
  return finish(planes, from.height, to, image_size, channels);
}

/**
 * Complete an image whose rows are resized: resize its columns, put it into its place, convert its channels.
 * @param {Uint8Array[]} planes  one per channel, (rows, to.width) @param {number} rows
 * @param {Box} to @param {Size} size @param {number} channels @returns {Image}
 */
export function finish(planes, rows, to, [height, width], channels) {
  const values = new Uint8Array(planes.length * height * width);
  planes.forEach((plane, channel) => {
    const resized = resizeColumns(plane, rows, to.width, to.height);
    for (let y = 0; y < to.height; y++) {
      const row = resized.subarray(y * to.width, (y + 1) * to.width);
      values.set(row, channel * height * width + (to.top + y) * width + to.left);
    }
  });
  return toChannels({ values, channels: planes.length, height, width }, channels);
}

/** @param {Uint8Array} plane @param {number} width @param {Box} box */
function cropped(plane, width, box) {
  if (box.height * box.width === plane.length) return plane;
  const part = new Uint8Array(box.height * box.width);
  for (let y = 0; y < box.height; y++) {
    const start = (box.top + y) * width + box.left;
    part.set(plane.subarray(start, start + box.width), y * box.width);
  }
  return part;
}

/** Resize (rows, source) to (rows, target). @param {Uint8Array} plane @param {number} rows @param {number} source @param {number} target */
export function resizeRows(plane, rows, source, target) {
  if (source === target) return plane;
  const resized = new Uint8Array(rows * target);
  const kernels = kernelsOf(source, target);
  for (let row = 0; row < rows; row++) {
    for (let x = 0; x < target; x++) {
      const { first, weights } = kernels[x];
      const start = row * source + first;
      let sum = HALF;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * plane[start + i];
      resized[row * target + x] = clamp(sum >> BITS);
    }
  }
  return resized;
}

/** Resize (source, width) to (target, width). @param {Uint8Array} plane @param {number} source @param {number} width @param {number} target */
function resizeColumns(plane, source, width, target) {
  if (source === target) return plane;
  const resized = new Uint8Array(target * width);
  kernelsOf(source, target).forEach(({ first, weights }, y) => {
    for (let x = 0; x < width; x++) {
      let sum = HALF;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * plane[(first + i) * width + x];
      resized[y * width + x] = clamp(sum >> BITS);
    }
  });
  return resized;
}

/**
 * For each of `target` output pixels, return the first input pixel and the weights of it and of the next ones.
 * @param {number} source @param {number} target
 */
function kernelsOf(source, target) {
  const scale = source / target;
  const reach = Math.max(scale, 1);
  return Array.from({ length: target }, (_, output) => {
    const centre = (output + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - reach + 0.5));
    const end = Math.min(source, Math.floor(centre + reach + 0.5));
    const parts = Array.from({ length: end - first }, (_unused, i) => {
      return Math.max(0, 1 - Math.abs((first + i - centre + 0.5) * (1 / reach)));
    });
    const total = parts.reduce((sum, part) => sum + part, 0);
    return { first, weights: Int32Array.from(parts, (part) => Math.floor((part / total) * 2 ** BITS + 0.5)) };
  });
}

/** @param {number} level */
function clamp(level) {
  return level < 0 ? 0 : level > 255 ? 255 : level;
}

/** Return the image in one channel or three. @param {Image} image @param {number} channels @returns {Image} */
export function toChannels(image, channels) {
  if (image.channels === channels) return image;
  const area = image.height * image.width;
  const values = new Uint8Array(channels * area);
  const [red, green, blue] = [0, 1, 2].map((channel) => image.values.subarray(channel * area, (channel + 1) * area));
  if (channels === 1) for (let i = 0; i < area; i++) values[i] = luma(red[i], green[i], blue[i]);
  else for (let channel = 0; channel < channels; channel++) values.set(red, channel * area);
  return { ...image, values, channels };
}

/** Return the gray of a colour: ITU-R 601 in integers. @param {number} red @param {number} green @param {number} blue */
export function luma(red, green, blue) {
  return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16;
}
