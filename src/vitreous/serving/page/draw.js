/**
 * The sheet for drawn digits: mouse, pen, finger or keys; undo, clear; a picture or a test image to draw over.
 *
 * @import { Model, Sample } from "./engine.js"
 * @import { Image } from "./fitting.js"
 * @import { Gray, Steps } from "./normalise.js"
 * @import { Stroke } from "./raster.js"
 * @import { Drawing } from "./state.js"
 */

import { byId, canvasOf, contextOf, onClick, resize, setAttributes, setText } from "./dom.js";
import { fitImage, toChannels } from "./fitting.js";
import { normalise, shrink, SIDE } from "./normalise.js";
import { readDigit } from "./picture-files.js";
import { onSheet, PEN_RADIUS, rasterise, SHEET, smooth } from "./raster.js";
import { showSteps } from "./steps.js";
import { text } from "./texts.js";

const MIN_STEP = 3; // closer points make the address longer and the line no better
const KEY_STEP = 4;
const MAX_UNDO = 100;

export class DrawingPad {
  #canvas = byId("pad", HTMLCanvasElement);
  #keep = byId("keep", HTMLInputElement);
  /** @type {Drawing[]} */
  #past = [];
  /** @type {Drawing} */
  #drawing = { under: null, strokes: [] };
  /** @type {Stroke | null} */
  #stroke = null;
  /** @type {Sample[]} */
  #samples = [];
  /** the position of the keyboard's pen; null: it was not used @type {[number, number] | null} */
  #cursor = null;
  #penDown = false;
  /** @type {WeakMap<Uint8Array, HTMLCanvasElement>} */
  #bitmaps = new WeakMap();
  /** how an opened picture became its pixels; a link holds only the pixels @type {WeakMap<Uint8Array, Steps>} */
  #opened = new WeakMap();

  /** @param {(drawing: Drawing) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.#listenToPointer();
    this.#listenToKeys();
    onClick("clear", () => this.#replace({ under: null, strokes: [] }));
    new ResizeObserver(() => this.paint()).observe(this.#canvas);
  }

  /** @param {Drawing} drawing */
  show(drawing) {
    this.#drawing = drawing;
    this.paint();
  }

  undo() {
    const before = this.#past.pop();
    if (before !== undefined) this.#set(before);
  }

  /** What is under the strokes. @returns {Gray | null} */
  #under() {
    const { under } = this.#drawing;
    const sample = under?.kind === "sample" ? this.#samples[under.index % (this.#samples.length || 1)] : null;
    if (under?.kind === "pixels") return { values: under.pixels, height: SIDE, width: SIDE };
    return sample ? toChannels(sample.image, 1) : null;
  }

  /** The sheet's gray values; without strokes, the picture under them at its own size. @returns {Gray} */
  #gray() {
    const under = this.#under();
    const { strokes } = this.#drawing;
    if (under !== null && strokes.length === 0) return under;
    return rasterise(strokes, under === null ? null : onSheet(shrink(under)));
  }

  /** The sheet, as saved. */
  picture() {
    return asImage(this.#gray());
  }

  /** Return the drawing as the model gets it, and show how that comes about; null if it is blank. @param {Model} model */
  prepare({ preprocessing }) {
    const steps = this.#steps();
    showSteps(steps, preprocessing.image_size);
    return steps && fitImage(asImage(steps.centred), preprocessing);
  }

  /** How the drawing becomes 28×28 pixels; null if it is blank. @returns {Steps | null} */
  #steps() {
    const under = this.#under();
    const opened = under === null || this.#drawing.strokes.length > 0 ? undefined : this.#opened.get(under.values);
    return opened ?? normalise(this.#gray());
  }

  /** @param {Drawing} drawing */
  #replace(drawing) {
    this.#past = [...this.#past.slice(-MAX_UNDO), this.#drawing];
    this.#set(drawing);
  }

  /** @param {Drawing} drawing */
  #set(drawing) {
    this.#drawing = drawing;
    this.paint();
    this.onChange(drawing);
  }

  // --- mouse, pen, finger ------------------------------------------------------------------------------------------

  #listenToPointer() {
    const canvas = this.#canvas;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      event.preventDefault();
      canvas.focus({ preventScroll: true, focusVisible: false });
      canvas.setPointerCapture(event.pointerId);
      this.#cursor = null;
      this.#begin(this.#pointOf(event), event.shiftKey);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.#stroke === null || !event.isPrimary) return;
      const events = event.getCoalescedEvents?.() ?? [];
      for (const each of events.length > 0 ? events : [event]) this.#extend(this.#pointOf(each));
      this.#changed();
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (this.#stroke = null));
  }

  /** @param {PointerEvent} event @returns {[number, number]} */
  #pointOf(event) {
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    return [clampToSheet(((event.clientX - left) / width) * SHEET), clampToSheet(((event.clientY - top) / height) * SHEET)];
  }

  /** @param {[number, number]} point @param {boolean} [keep] */
  #begin(point, keep = false) {
    const { under, strokes } = this.#drawing;
    // The first stroke over a test image replaces it, unless it is to be kept.
    const replaces = under !== null && strokes.length === 0 && !(keep || this.#keep.checked);
    this.#stroke = [point];
    this.#replace({ under: replaces ? null : under, strokes: [...strokes, this.#stroke] });
  }

  /** @param {[number, number]} point */
  #extend(point) {
    if (this.#stroke === null) return;
    const [x, y] = this.#stroke[this.#stroke.length - 1];
    if (Math.hypot(point[0] - x, point[1] - y) >= MIN_STEP) this.#stroke.push(point);
  }

  #changed() {
    this.#drawing = { ...this.#drawing, strokes: [...this.#drawing.strokes] };
    this.paint();
    this.onChange(this.#drawing);
  }

  // --- the keyboard --------------------------------------------------------------------------------------------------

  #listenToKeys() {
    const canvas = this.#canvas;
    canvas.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 4 * KEY_STEP : KEY_STEP;
      const move = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[event.key];
      if (move) {
        event.preventDefault();
        const [x, y] = this.#cursor ?? [SHEET / 2, SHEET / 2];
        this.#cursor = [clampToSheet(x + move[0]), clampToSheet(y + move[1])];
        if (this.#penDown) {
          this.#extend(this.#cursor);
          this.#changed();
        }
        this.paint();
      } else if (event.key === " " && !event.repeat) {
        event.preventDefault();
        this.#cursor ??= [SHEET / 2, SHEET / 2];
        this.#penDown = true;
        this.#begin(this.#cursor);
      } else if (event.key === " " || event.key === "Enter") {
        event.preventDefault();
      } else if (event.key === "Delete" || event.key === "Backspace") {
        this.#replace({ under: null, strokes: [] });
      }
    });
    const up = () => {
      if (this.#penDown) this.#stroke = null;
      this.#penDown = false;
    };
    canvas.addEventListener("keyup", (event) => event.key === " " && up());
    canvas.addEventListener("blur", up);
  }

  // --- pictures and test images --------------------------------------------------------------------------------------

  /** @param {Sample[]} samples */
  offer(samples) {
    this.#samples = samples;
    this.paint();
  }

  /** @param {number} index  of a test image */
  choose(index) {
    this.#replace({ under: { kind: "sample", index }, strokes: [] });
  }

  /** @param {Blob} file @param {Model} model */
  async open(file, model) {
    const steps = await readDigit(file, model.preprocessing);
    this.#opened.set(steps.centred.values, steps);
    this.#replace({ under: { kind: "pixels", pixels: steps.centred.values }, strokes: [] });
  }

  // --- painting ------------------------------------------------------------------------------------------------------

  paint() {
    const side = Math.round(this.#canvas.clientWidth * devicePixelRatio);
    if (side === 0) return; // the model takes other images
    resize(this.#canvas, side, side);
    const context = contextOf(this.#canvas);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, side, side);
    context.setTransform(side / SHEET, 0, 0, side / SHEET, 0, 0);
    const under = this.#under();
    if (under !== null) {
      context.imageSmoothingQuality = "high";
      const scale = SHEET / Math.max(under.width, under.height);
      const [wide, tall] = [scale * under.width, scale * under.height];
      context.drawImage(this.#bitmapOf(under), (SHEET - wide) / 2, (SHEET - tall) / 2, wide, tall);
    }
    context.strokeStyle = context.fillStyle = "#fff";
    context.lineWidth = 2 * PEN_RADIUS;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.#drawing.strokes) {
      const line = smooth(stroke);
      context.beginPath();
      context.moveTo(...line[0]);
      for (const point of line) context.lineTo(...point);
      context.stroke();
    }
    if (this.#cursor !== null) {
      context.lineWidth = 1.5;
      context.strokeStyle = "#f3db42";
      context.beginPath();
      context.arc(...this.#cursor, PEN_RADIUS + 2, 0, 7);
      context.stroke();
    }
    const hasStrokes = this.#drawing.strokes.length > 0;
    const empty = this.#drawing.under === null && !hasStrokes;
    byId("keep-line").classList.toggle("away", this.#drawing.under === null);
    setText("invite", empty ? text("draw.invite") : hasStrokes ? "" : text("draw.over"));
    setAttributes(byId("undo"), { disabled: this.#past.length === 0 });
    setAttributes(byId("clear"), { disabled: empty });
  }

  /** @param {Gray} picture */
  #bitmapOf(picture) {
    let canvas = this.#bitmaps.get(picture.values);
    if (canvas === undefined) this.#bitmaps.set(picture.values, (canvas = canvasOf(asImage(picture))));
    return canvas;
  }
}

/** @param {Gray} gray @returns {Image} */
function asImage({ values, height, width }) {
  return { values, channels: 1, height, width };
}

/** @param {number} value */
function clampToSheet(value) {
  return Math.min(SHEET, Math.max(0, Math.round(value)));
}
