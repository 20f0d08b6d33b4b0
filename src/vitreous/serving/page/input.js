/**
 * What the models get to see: a drawing for those of digits (draw.js), an image for all others (photo.js). The chosen
 * model decides which; files, test images and undo are the same for both.
 *
 * @import { Model, Samples } from "./engine.js"
 * @import { Image } from "./fitting.js"
 * @import { State } from "./state.js"
 */

import { Camera } from "./camera.js";
import { byId, onClick, setText } from "./dom.js";
import { DrawingPad } from "./draw.js";
import { takesDrawings } from "./engine.js";
import { markPending } from "./pending.js";
import { PhotoPane } from "./photo.js";
import { PictureError } from "./picture-files.js";
import { SampleStrip } from "./samples.js";
import { text } from "./texts.js";

export class Input {
  #pad;
  #photo;
  #camera;
  #strip;
  /** @type {Model | null} */
  #model = null;

  /** @param {(change: Partial<State>) => void} onChange */
  constructor(onChange) {
    const changed = (/** @type {Partial<State>} */ change) => {
      setText("draw-error", "");
      onChange(change);
    };
    this.#pad = new DrawingPad((drawing) => changed({ drawing }));
    this.#photo = new PhotoPane((picture) => changed({ picture }));
    this.#camera = new Camera((photo) => void this.#open(photo));
    this.#strip = new SampleStrip((index) => this.#active.choose(index));
    onClick("undo", () => this.#active.undo());
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
      if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing) {
        event.preventDefault();
        this.#active.undo();
      }
    });
    this.#listenToFiles();
  }

  get isDrawing() {
    return this.#model === null || takesDrawings(this.#model);
  }

  get #active() {
    return this.isDrawing ? this.#pad : this.#photo;
  }

  /** Show the area for this model's input. @param {Model} model */
  fit(model) {
    this.#model = model;
    this.#camera.close();
    setText("draw-error", "");
    document.documentElement.dataset.input = this.isDrawing ? "drawing" : "picture";
    this.#active.paint();
  }

  /** @param {State} state */
  show({ drawing, picture }) {
    this.#pad.show(drawing);
    this.#photo.show(picture);
  }

  /** @param {Samples} offered */
  offer(offered) {
    this.#strip.offer(offered);
    this.#active.offer(offered.samples);
  }

  /** Return the image as a model gets it; null if there is nothing to see. @param {Model} model */
  async prepare(model) {
    return this.#active.prepare(model);
  }

  /** Return the image to save for the command line. @param {Image} seen  as the model gets it */
  saved(seen) {
    return this.isDrawing ? this.#pad.picture() : seen;
  }

  // --- files: opened, pasted, dropped, photographed ------------------------------------------------------------------

  #listenToFiles() {
    for (const id of ["file", "capture-file"]) {
      const input = byId(id, HTMLInputElement);
      input.addEventListener("change", () => {
        const file = input.files?.[0];
        if (file) void this.#open(file);
        input.value = "";
      });
    }
    onClick("open", () => byId("file").click());
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file) void this.#open(file);
      else if (event.clipboardData?.types.length) setText("draw-error", text("file.notPasted"));
    });
    const dragging = (/** @type {boolean} */ begins) => document.documentElement.classList.toggle("dragging", begins);
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      dragging(event.dataTransfer?.types.includes("Files") ?? false);
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && dragging(false));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      dragging(false);
      const file = event.dataTransfer?.files[0];
      if (file) void this.#open(file);
      else setText("draw-error", text("file.notDropped"));
    });
  }

  /** @param {Blob} file */
  async #open(file) {
    if (this.#model === null) return; // the models are still loading
    this.#camera.close();
    markPending({ file: true });
    setText("invite", text("file.reading"));
    try {
      await this.#active.open(file, this.#model);
    } catch (error) {
      if (!(error instanceof PictureError)) throw error;
      setText("draw-error", error.message);
    } finally {
      this.#active.paint(); // with its own invitation
      markPending({ file: false });
    }
  }
}
