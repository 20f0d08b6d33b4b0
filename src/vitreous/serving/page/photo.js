/**
 * The image for a model that takes any: a file, a photograph, a test image or what a link holds. It is shown whole, and
 * next to it as the model gets it.
 *
 * @import { Model, Sample } from "./engine.js"
 * @import { Image, Placement } from "./fitting.js"
 * @import { Picture } from "./state.js"
 *
 * @typedef {object} Fitted  an image as it is, and as a model gets it
 * @property {CanvasImageSource} whole
 * @property {readonly [number, number]} extent  of the whole: height, width
 * @property {Image} image
 * @property {boolean} isOpened  not a test image
 */

import { byId, canvasOf, contextOf, resize, setAttributes, setText } from "./dom.js";
import { fitImage, placement } from "./fitting.js";
import { readPicture } from "./picture-files.js";
import { showFit } from "./steps.js";
import { text } from "./texts.js";

const MAX_UNDO = 20;

export class PhotoPane {
  #canvas = byId("photo", HTMLCanvasElement);
  /** @type {Picture[]} */
  #past = [];
  /** @type {Picture} */
  #picture = { kind: "sample", index: 0 };
  /** @type {Sample[]} */
  #samples = [];
  /** what is shown, and for which model @type {{ fitted: Fitted, placed: Placement } | null} */
  #shown = null;
  /** each file as the last model that it was read for gets it @type {WeakMap<Blob, { model: Model, fitted: Fitted }>} */
  #read = new WeakMap();

  /** @param {(picture: Picture) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    new ResizeObserver(() => this.paint()).observe(this.#canvas);
  }

  /** @param {Picture} picture */
  show(picture) {
    this.#picture = picture;
  }

  /** @param {Sample[]} samples */
  offer(samples) {
    this.#samples = samples;
  }

  /** @param {number} index  of a test image */
  choose(index) {
    this.#replace({ kind: "sample", index });
  }

  /** @param {Blob} file @param {Model} model */
  async open(file, model) {
    await this.#readFile(file, model); // first: a file that cannot be read changes nothing
    this.#replace({ kind: "file", file });
  }

  undo() {
    const before = this.#past.pop();
    if (before !== undefined) this.#set(before);
  }

  /** @param {Picture} picture */
  #replace(picture) {
    this.#past = [...this.#past.slice(-MAX_UNDO), this.#picture];
    this.#set(picture);
  }

  /** @param {Picture} picture */
  #set(picture) {
    this.#picture = picture;
    this.onChange(picture);
  }

  /** Return the image as the model gets it, and show it; null if there is none. @param {Model} model */
  async prepare(model) {
    const fitted = await this.#fit(model);
    this.#shown = fitted && { fitted, placed: placement(model.preprocessing.fit, fitted.extent, model.image_size) };
    this.paint();
    showFit(fitted, model);
    return fitted?.image ?? null;
  }

  /** @param {Model} model @returns {Promise<Fitted | null>} */
  async #fit(model) {
    const picture = this.#picture;
    if (picture.kind === "file") return this.#readFile(picture.file, model);
    const sample = picture.kind === "sample" ? this.#samples[picture.index % (this.#samples.length || 1)] : null;
    const image = picture.kind === "image" ? picture.image : sample?.image;
    if (!image) return null;
    const extent = /** @type {const} */ ([image.height, image.width]);
    const isOpened = picture.kind === "image";
    return { whole: canvasOf(image), extent, image: fitImage(image, model.preprocessing), isOpened };
  }

  /** @param {Blob} file @param {Model} model @returns {Promise<Fitted>} */
  async #readFile(file, model) {
    const known = this.#read.get(file);
    if (known?.model === model) return known.fitted;
    const { preview, extent, image } = await readPicture(file, model.preprocessing);
    const fitted = { whole: preview, extent, image, isOpened: true };
    this.#read.set(file, { model, fitted });
    return fitted;
  }

  paint() {
    const canvas = this.#canvas;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (width === 0) return; // the model takes drawings
    resize(canvas, Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio));
    const context = contextOf(canvas);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    const { fitted, placed } = this.#shown ?? {};
    setAttributes(byId("undo"), { disabled: this.#past.length === 0 });
    setText("invite", fitted === undefined ? text("photo.open") : fitted.isOpened ? "" : text("photo.yours"));
    setAttributes(canvas, { "aria-label": text(fitted === undefined ? "photo.none" : "photo.one") });
    if (fitted === undefined || placed === undefined) return;
    const [tall, wide] = fitted.extent;
    const scale = Math.min(width / wide, height / tall);
    const [left, top] = [(width - scale * wide) / 2, (height - scale * tall) / 2];
    context.imageSmoothingEnabled = scale < 4; // small images are shown pixel by pixel
    context.imageSmoothingQuality = "high";
    context.drawImage(fitted.whole, left, top, scale * wide, scale * tall);
    const { from } = placed;
    if (from.height === tall && from.width === wide) return;
    const used = /** @type {const} */ ([left + scale * from.left, top + scale * from.top, scale * from.width, scale * from.height]);
    const outside = new Path2D();
    outside.rect(left, top, scale * wide, scale * tall);
    outside.rect(...used);
    context.fillStyle = "rgb(16 22 26 / .6)";
    context.fill(outside, "evenodd");
    context.strokeStyle = "#f3db42";
    context.lineWidth = 1.5;
    context.strokeRect(...used);
  }
}
