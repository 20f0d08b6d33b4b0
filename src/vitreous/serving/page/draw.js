/**
 * The sheet: draw with mouse, pen, finger or keys; undo, clear; open, paste or drop a picture; choose a test image.
 *
 * @import { Sample } from "./engine.js"
 * @import { Gray, Steps } from "./normalise.js"
 * @import { Stroke } from "./raster.js"
 * @import { Drawing } from "./state.js"
 */

import { byId, contextOf, grayCanvas, makeButton, onClick, resize, setAttributes, setText } from "./dom.js";
import { normalise, SIDE } from "./normalise.js";
import { PictureError, readPicture } from "./picture-files.js";
import { onSheet, PEN_RADIUS, rasterise, SHEET, smooth } from "./raster.js";
import { range } from "./vit-maths.js";

const MIN_STEP = 3; // closer points make the address longer and the line no better
const KEY_STEP = 4;
const MAX_UNDO = 100;
const SAMPLES_SHOWN = 10;

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
  #firstSample = 0;
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
    this.#listenToFiles();
    onClick("undo", () => this.#undo());
    onClick("clear", () => this.#replace({ under: null, strokes: [] }));
    onClick("more-samples", () => this.#showSamples(this.#firstSample + SAMPLES_SHOWN));
    new ResizeObserver(() => this.paint()).observe(this.#canvas);
  }

  /** @param {Drawing} drawing */
  show(drawing) {
    this.#drawing = drawing;
    this.paint();
  }

  /** @param {Sample[]} samples */
  offer(samples) {
    this.#samples = samples;
    this.#showSamples(0);
    this.paint();
  }

  #undo() {
    const before = this.#past.pop();
    if (before !== undefined) this.#set(before);
  }

  /** What is under the strokes. @returns {Gray | null} */
  #under() {
    const { under } = this.#drawing;
    const sample = under?.kind === "sample" ? this.#samples[under.index % (this.#samples.length || 1)] : null;
    const pixels = under?.kind === "pixels" ? under.pixels : sample?.pixels;
    return pixels ? { values: pixels, height: SIDE, width: SIDE } : null;
  }

  /** The sheet's gray values, as saved; without strokes, the picture under them at its own size. @returns {Gray} */
  picture() {
    const under = this.#under();
    const { strokes } = this.#drawing;
    if (under !== null && strokes.length === 0) return under;
    return rasterise(strokes, under === null ? null : onSheet(under));
  }

  /** How the drawing becomes the model's 28×28 pixels; null if it is blank. @returns {Steps | null} */
  steps() {
    const under = this.#under();
    const opened = under === null || this.#drawing.strokes.length > 0 ? undefined : this.#opened.get(under.values);
    return opened ?? normalise(this.picture());
  }

  /** @param {Drawing} drawing */
  #replace(drawing) {
    this.#past = [...this.#past.slice(-MAX_UNDO), this.#drawing];
    this.#set(drawing);
  }

  /** @param {Drawing} drawing */
  #set(drawing) {
    this.#drawing = drawing;
    setText("draw-error", "");
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
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
      if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing) {
        event.preventDefault();
        this.#undo();
      }
    });
  }

  // --- pictures ------------------------------------------------------------------------------------------------------

  #listenToFiles() {
    const input = byId("file", HTMLInputElement);
    onClick("open", () => input.click());
    input.addEventListener("change", () => {
      const file = input.files?.[0];
      if (file) void this.#read(file);
      input.value = "";
    });
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file) void this.#read(file);
      else if (event.clipboardData?.types.length) setText("draw-error", "The clipboard does not hold a picture.");
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) void this.#read(file);
    });
  }

  /** @param {Blob} file */
  async #read(file) {
    try {
      const steps = await readPicture(file);
      this.#opened.set(steps.centred.values, steps);
      this.#replace({ under: { kind: "pixels", pixels: steps.centred.values }, strokes: [] });
    } catch (error) {
      if (!(error instanceof PictureError)) throw error;
      setText("draw-error", error.message);
    }
  }

  /** @param {number} from */
  #showSamples(from) {
    const count = this.#samples.length;
    this.#firstSample = count > 0 ? from % count : 0;
    const shown = range(Math.min(SAMPLES_SHOWN, count)).map((i) => (this.#firstSample + i) % count);
    byId("samples").replaceChildren(
      ...shown.map((index) => {
        const { label, pixels } = this.#samples[index];
        const choose = () => this.#replace({ under: { kind: "sample", index }, strokes: [] });
        const canvas = grayCanvas({ values: pixels, height: SIDE, width: SIDE });
        return makeButton({ class: "sample", "aria-label": `Test image: ${label}` }, choose, canvas);
      }),
    );
    byId("more-samples").hidden = count <= SAMPLES_SHOWN;
  }

  // --- painting ------------------------------------------------------------------------------------------------------

  paint() {
    const side = Math.max(1, Math.round(this.#canvas.clientWidth * devicePixelRatio));
    resize(this.#canvas, side, side);
    const context = contextOf(this.#canvas);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, side, side);
    context.setTransform(side / SHEET, 0, 0, side / SHEET, 0, 0);
    const under = this.#under();
    if (under !== null) {
      context.imageSmoothingQuality = "high";
      context.drawImage(this.#bitmapOf(under), 0, 0, SHEET, SHEET);
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
    setText("invite", empty ? "Draw a digit." : hasStrokes ? "" : "Draw over it.");
    setAttributes(byId("undo"), { disabled: this.#past.length === 0 });
    setAttributes(byId("clear"), { disabled: empty });
  }

  /** @param {Gray} picture */
  #bitmapOf(picture) {
    let canvas = this.#bitmaps.get(picture.values);
    if (canvas === undefined) this.#bitmaps.set(picture.values, (canvas = grayCanvas(picture)));
    return canvas;
  }
}

/** @param {number} value */
function clampToSheet(value) {
  return Math.min(SHEET, Math.max(0, Math.round(value)));
}
