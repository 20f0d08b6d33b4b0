/**
 * The sheet: draw with mouse, pen, finger or keys; undo, clear; open, paste or drop a picture; pick a test image.
 *
 * @typedef {import("./normalise.js").Gray} Gray
 * @typedef {import("./normalise.js").Steps} Steps
 * @typedef {import("./raster.js").Stroke} Stroke
 * @typedef {import("./state.js").Drawing} Drawing
 * @typedef {import("./engine.js").Sample} Sample
 */

import { byId, make, pen, say, setAttributes } from "./dom.js";
import { grayOf, normalise, shrink } from "./normalise.js";
import { onSheet, PEN_RADIUS, rasterise, SHEET, smooth } from "./raster.js";

const LEAST_STEP = 3; // points closer than this add bytes to the address and nothing to the line
const KEY_STEP = 4;
const MOST_UNDO = 100;
const LARGEST_FILE = 32 * 1024 ** 2; // as data/images.py
const MOST_PIXELS = 50_000_000;
const SAMPLES_SHOWN = 10;
const READABLE = "That file is not an image I can read: PNG, JPEG, WebP or BMP, please.";

export class DrawingPad {
  #canvas = byId("pad", HTMLCanvasElement);
  #keep = byId("keep", HTMLInputElement);
  #error = byId("draw-error");
  /** @type {Drawing[]} */
  #past = [];
  /** @type {Drawing} */
  #drawing = { under: null, strokes: [] };
  /** @type {Stroke | null} */
  #stroke = null;
  /** @type {Sample[]} */
  #samples = [];
  #firstSample = 0;
  /** where the keyboard's pen is; null: it has not been used */
  /** @type {[number, number] | null} */
  #cursor = null;
  #inkDown = false;
  /** @type {WeakMap<Uint8Array, HTMLCanvasElement>} */
  #bitmaps = new WeakMap();
  /** how a picture that was opened became its pixels; a link keeps the pixels alone */
  /** @type {WeakMap<Uint8Array, Steps>} */
  #opened = new WeakMap();

  /** @param {(drawing: Drawing) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.#listenToPointer();
    this.#listenToKeys();
    this.#listenToFiles();
    byId("undo").addEventListener("click", () => this.undo());
    byId("clear").addEventListener("click", () => this.#replace({ under: null, strokes: [] }));
    byId("more-samples").addEventListener("click", () => this.#showSamples(this.#firstSample + SAMPLES_SHOWN));
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

  undo() {
    const before = this.#past.pop();
    if (before !== undefined) this.#set(before);
  }

  /** What lies under the strokes, as a picture of its own size. @returns {Gray | null} */
  under() {
    const { under } = this.#drawing;
    if (under === null) return null;
    const pixels = under.kind === "pixels" ? under.pixels : this.#samples[under.index % (this.#samples.length || 1)]?.pixels;
    return pixels ? { values: pixels, height: 28, width: 28 } : null;
  }

  /** The sheet's gray values, as they would be saved: a picture alone stays as it is. @returns {Gray} */
  picture() {
    const under = this.under();
    const { strokes } = this.#drawing;
    if (under !== null && strokes.length === 0) return under;
    return rasterise(strokes, under === null ? null : onSheet(under));
  }

  /** How the drawing becomes the model's 28×28 pixels; null where it is blank. @returns {Steps | null} */
  steps() {
    const under = this.under();
    const opened = under === null || this.#drawing.strokes.length > 0 ? undefined : this.#opened.get(under.values);
    return opened ?? normalise(this.picture());
  }

  /** @param {Drawing} drawing */
  #replace(drawing) {
    this.#past = [...this.#past.slice(-MOST_UNDO), this.#drawing];
    this.#set(drawing);
  }

  /** @param {Drawing} drawing */
  #set(drawing) {
    this.#drawing = drawing;
    say(this.#error, "");
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
      this.#inked();
    });
    const end = () => {
      this.#stroke = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
  }

  /**
   * @param {PointerEvent} event
   * @returns {[number, number]}
   */
  #pointOf(event) {
    const box = this.#canvas.getBoundingClientRect();
    const along = (/** @type {number} */ at, /** @type {number} */ start, /** @type {number} */ size) =>
      Math.min(SHEET, Math.max(0, Math.round(((at - start) / size) * SHEET)));
    return [along(event.clientX, box.left, box.width), along(event.clientY, box.top, box.height)];
  }

  /**
   * @param {[number, number]} point
   * @param {boolean} [keep]
   */
  #begin(point, keep = false) {
    const { under, strokes } = this.#drawing;
    // Drawing over a test image begins anew, unless asked to add to it: two digits in one place help nobody.
    const anew = under !== null && strokes.length === 0 && !(keep || this.#keep.checked);
    this.#stroke = [point];
    this.#replace({ under: anew ? null : under, strokes: [...strokes, this.#stroke] });
  }

  /** @param {[number, number]} point */
  #extend(point) {
    if (this.#stroke === null) return;
    const [x, y] = this.#stroke[this.#stroke.length - 1];
    if (Math.hypot(point[0] - x, point[1] - y) >= LEAST_STEP) this.#stroke.push(point);
  }

  #inked() {
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
        this.#cursor = [bound(x + move[0]), bound(y + move[1])];
        if (this.#inkDown) {
          this.#extend(this.#cursor);
          this.#inked();
        }
        this.paint();
      } else if (event.key === " " && !event.repeat) {
        event.preventDefault();
        this.#cursor ??= [SHEET / 2, SHEET / 2];
        this.#inkDown = true;
        this.#begin(this.#cursor);
      } else if (event.key === " " || event.key === "Enter") {
        event.preventDefault();
      } else if (event.key === "Delete" || event.key === "Backspace") {
        this.#replace({ under: null, strokes: [] });
      }
    });
    const up = () => {
      if (this.#inkDown) this.#stroke = null;
      this.#inkDown = false;
    };
    canvas.addEventListener("keyup", (event) => event.key === " " && up());
    canvas.addEventListener("blur", up);
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
      if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing) {
        event.preventDefault();
        this.undo();
      }
    });
  }

  // --- pictures ------------------------------------------------------------------------------------------------------

  #listenToFiles() {
    const input = byId("file", HTMLInputElement);
    byId("open").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      const file = input.files?.[0];
      if (file) void this.#read(file);
      input.value = "";
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length > 0) void this.#read(files[0]);
      else if (event.clipboardData?.types.length) say(this.#error, "What was pasted is not a picture.");
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
      const steps = normalise(await decode(file));
      if (steps === null) throw new UnreadablePicture("That picture looks blank: no stroke stands out from its background.");
      this.#opened.set(steps.centred.values, steps);
      this.#replace({ under: { kind: "pixels", pixels: steps.centred.values }, strokes: [] });
    } catch (error) {
      say(this.#error, error instanceof UnreadablePicture ? error.message : READABLE);
    }
  }

  /** @param {number} from */
  #showSamples(from) {
    const count = this.#samples.length;
    this.#firstSample = count > 0 ? from % count : 0;
    const shown = Array.from({ length: Math.min(SAMPLES_SHOWN, count) }, (_, i) => (this.#firstSample + i) % count);
    byId("samples").replaceChildren(
      ...shown.map((index) => {
        const sample = this.#samples[index];
        const canvas = make("canvas", { width: 28, height: 28, "aria-hidden": "true" });
        paintGray(canvas, { values: sample.pixels, height: 28, width: 28 });
        const button = make("button", { type: "button", class: "sample", "aria-label": `Test image: a ${sample.label}` }, canvas);
        button.addEventListener("click", () => this.#replace({ under: { kind: "sample", index }, strokes: [] }));
        return button;
      }),
    );
    byId("more-samples").hidden = count <= SAMPLES_SHOWN;
  }

  // --- what is seen --------------------------------------------------------------------------------------------------

  paint() {
    const canvas = this.#canvas;
    const side = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const context = pen(canvas);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, side, side);
    context.setTransform(side / SHEET, 0, 0, side / SHEET, 0, 0);
    const under = this.under();
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
    const fresh = this.#drawing.under !== null && this.#drawing.strokes.length === 0;
    byId("keep-line").classList.toggle("away", this.#drawing.under === null);
    const empty = this.#drawing.under === null && this.#drawing.strokes.length === 0;
    say(byId("invite"), empty ? "Draw a digit." : fresh ? "Draw over it." : "");
    setAttributes(byId("undo"), { disabled: this.#past.length === 0 });
    setAttributes(byId("clear"), { disabled: empty });
  }

  /** @param {Gray} picture */
  #bitmapOf(picture) {
    let canvas = this.#bitmaps.get(picture.values);
    if (canvas === undefined) {
      canvas = make("canvas", { width: picture.width, height: picture.height });
      paintGray(canvas, picture);
      this.#bitmaps.set(picture.values, canvas);
    }
    return canvas;
  }
}

/** What the person must be told about a picture. */
class UnreadablePicture extends Error {}

/**
 * @param {Blob} file
 * @returns {Promise<Gray>}  at most 224 on its longer side
 */
async function decode(file) {
  if (file.size > LARGEST_FILE) throw new UnreadablePicture("That file is larger than 32 MB; a smaller picture will do.");
  const bitmap = await createImageBitmap(file);
  const { width, height } = bitmap;
  if (width * height > MOST_PIXELS) throw new UnreadablePicture("That picture has more than 50 million pixels; a smaller one will do.");
  const canvas = make("canvas", { width, height });
  const context = pen(canvas);
  context.drawImage(bitmap, 0, 0);
  return shrink(grayOf(context.getImageData(0, 0, width, height).data, height, width));
}

/**
 * @param {HTMLCanvasElement} canvas  of the picture's size
 * @param {Gray} picture
 */
export function paintGray(canvas, { values, height, width }) {
  const image = new ImageData(width, height);
  new Uint32Array(image.data.buffer).set(Uint32Array.from(values, (value) => (0xff000000 | (value * 0x010101)) >>> 0)); // ABGR
  pen(canvas).putImageData(image, 0, 0);
}

/** @param {number} value */
function bound(value) {
  return Math.min(SHEET, Math.max(0, value));
}
