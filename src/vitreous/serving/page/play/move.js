/**
 * "Move a patch": patches of the current input change places, and both models predict again.
 *
 * @import { Host } from "./play.js"
 * @import { Model, ViTModel } from "../engine.js"
 */

import { canvasOf, contextOf, make, makeButton, resize, setAttributes, setText } from "../dom.js";
import { EngineError } from "../engine.js";
import { Latest } from "../latest.js";
import { moveWithArrows } from "../maps.js";
import { KINDS } from "../session.js";
import { fill } from "../train/texts.js";
import { argmax, numPatches, pixelEdges, range, shuffled } from "../vit-maths.js";
import { percent, placeName } from "../words.js";
import { sameImage } from "./play.js";
import { MOVE } from "./texts.js";

const MOST_PATCHES = 196; // smaller ones cannot be grasped

export class MovePatch {
  #canvas = make("canvas", { "aria-hidden": "true" });
  #cells = make("div", { class: "move-cells", role: "group", "aria-label": MOVE.board });
  #reset = makeButton({ class: "plain", hidden: true }, () => this.#putBack(), MOVE.reset);
  #verdicts = make("p", { class: "small result number", role: "status" });
  /** @type {HTMLButtonElement[]} */
  #buttons = [];
  /** the patch that each place shows @type {number[]} */
  #order = [];
  /** the place chosen first @type {number | null} */
  #chosen = null;
  /** @type {ViTModel | null} */
  #vit = null;
  /** @type {Uint8Array | null} */
  #pixels = null;
  /** @type {Latest<null>} */
  #predictions = new Latest(() => this.#predict());

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    const board = make("div", { class: "move-board" }, this.#canvas, this.#cells);
    const parts = [board, make("p", { class: "row" }, this.#reset), this.#verdicts];
    const about = make("p", { class: "small soft" }, MOVE.about);
    this.element = make("div", { class: "play-part", id: "move" }, make("h3", {}, MOVE.title), about, ...parts);
    this.#listen();
  }

  refresh() {
    const { vit, results } = this.host.session;
    const usable = vit !== null && numPatches(vit) <= MOST_PATCHES && !results.isBlank;
    this.element.hidden = !usable;
    if (!usable) return;
    if (vit !== this.#vit) this.#fit(vit);
    if (sameImage(this.#pixels, results.pixels)) return;
    this.#pixels = results.pixels;
    this.#putBack();
  }

  /** @param {ViTModel} vit */
  #fit(vit) {
    this.#vit = vit;
    this.#pixels = null;
    this.#buttons = range(numPatches(vit)).map((place) =>
      make("button", { type: "button", "data-place": place, tabindex: place === 0 ? 0 : -1 }),
    );
    this.#cells.replaceChildren(...this.#buttons);
    this.#cells.style.gridTemplate = pixelEdges(vit)
      .map((edges) => edges.slice(1).map((edge, i) => `${edge - edges[i]}fr`).join(" "))
      .join(" / ");
    moveWithArrows(this.#cells, { across: 1, down: vit.grid[1] });
  }

  #listen() {
    const placeAt = (/** @type {Element | null} */ target) =>
      target instanceof HTMLElement && target.dataset.place ? Number(target.dataset.place) : null;
    let dragged = /** @type {number | null} */ (null);
    this.#cells.addEventListener("pointerdown", (event) => {
      dragged = event.target instanceof Element ? placeAt(event.target) : null;
      if (event.target instanceof Element && dragged !== null) event.target.releasePointerCapture(event.pointerId);
    });
    this.#cells.addEventListener("pointerup", (event) => {
      const place = placeAt(document.elementFromPoint(event.clientX, event.clientY));
      if (dragged !== null && place !== null && place !== dragged) this.#swap(dragged, place);
      dragged = null;
    });
    this.#cells.addEventListener("click", (event) => {
      const place = event.target instanceof Element ? placeAt(event.target) : null;
      if (place === null) return;
      if (this.#chosen === null) this.#chosen = place;
      else if (this.#chosen === place) this.#chosen = null;
      else this.#swap(this.#chosen, place);
      this.#paint();
    });
  }

  /** @param {number} one @param {number} other */
  #swap(one, other) {
    [this.#order[one], this.#order[other]] = [this.#order[other], this.#order[one]];
    this.#chosen = null;
    this.#paint();
    this.#predictions.request(null);
  }

  #putBack() {
    this.#order = range(this.#buttons.length);
    this.#chosen = null;
    setText(this.#verdicts, "");
    this.#paint();
  }

  get #isMoved() {
    return this.#order.some((patch, place) => patch !== place);
  }

  #paint() {
    const [vit, pixels] = [this.#vit, this.#pixels];
    if (vit === null || pixels === null) return;
    const [height, width] = vit.image_size;
    resize(this.#canvas, width, height);
    const values = this.#isMoved ? shuffled(pixels, vit, this.#order) : pixels;
    contextOf(this.#canvas).drawImage(canvasOf({ values, channels: vit.channels, height, width }), 0, 0);
    this.#reset.hidden = !this.#isMoved;
    this.#buttons.forEach((button, place) => {
      const places = { place: placeName(place, vit.grid), from: placeName(this.#order[place], vit.grid) };
      const label = fill(this.#order[place] === place ? MOVE.cell : MOVE.cellMoved, places);
      const chosen = this.#chosen === place;
      setAttributes(button, { "aria-label": label + (chosen ? MOVE.chosen : ""), "aria-pressed": String(chosen) });
      button.classList.toggle("moved", this.#order[place] !== place);
    });
  }

  async #predict() {
    const { session } = this.host;
    const { engine, results } = session;
    const [vit, pixels, order] = [this.#vit, this.#pixels, [...this.#order]];
    if (engine === null || vit === null || pixels === null) return;
    const moved = shuffled(pixels, vit, order);
    try {
      const lines = await Promise.all(
        KINDS.map(async (kind) => {
          const model = /** @type {Model | null} */ (session[kind]);
          if (model === null) return "";
          const request = { pixels: moved, headMask: null, tokenMask: null, want: [/** @type {const} */ ("probabilities")] };
          const { probabilities } = await engine.look(model, request);
          const [best, old] = [argmax(probabilities ?? []), results.before[kind] ?? results[kind]?.probabilities];
          const after = session.classNames[best];
          const before = old ? session.classNames[argmax(old)] : after;
          const values = { name: model.name, after, before, probability: percent(probabilities?.[best] ?? 0) };
          return fill(before === after ? MOVE.verdict : MOVE.verdictBefore, values);
        }),
      );
      setText(this.#verdicts, this.#isMoved ? lines.filter(Boolean).join(" · ") : "");
    } catch (error) {
      if (!(error instanceof EngineError)) throw error;
      setText(this.#verdicts, error.message);
    }
  }
}
