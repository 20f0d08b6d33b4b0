/**
 * "Fool it": the fewest patches without which the ViT predicts another class, found live (search.js).
 *
 * @import { Host } from "./play.js"
 * @import { Found } from "./search.js"
 */

import { make, makeButton, setText } from "../dom.js";
import { EngineError, isAbort } from "../engine.js";
import { fill } from "../train/texts.js";
import { argmax, blanked, numPatches, range } from "../vit-maths.js";
import { placeName } from "../words.js";
import { sameImage } from "./play.js";
import { findFewestPatches } from "./search.js";
import { FOOL } from "./texts.js";

const MOST_CANDIDATES = 64; // with more patches, only those whose removal costs the prediction most are tried
const MOST_NAMED = 3;

export class FoolIt {
  #run = makeButton({}, () => void this.#toggle(), FOOL.start);
  #undo = makeButton({ class: "plain", hidden: true }, () => this.#putBack(), FOOL.undo);
  #result = make("p", { class: "small result", role: "status" });
  /** @type {AbortController | null} */
  #search = null;
  /** the input that the result is about @type {Uint8Array | null} */
  #pixels = null;

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    const buttons = make("p", { class: "row" }, this.#run, this.#undo);
    const about = make("p", { class: "small soft" }, FOOL.about);
    this.element = make("div", { class: "play-part", id: "fool" }, make("h3", {}, FOOL.title), about, buttons, this.#result);
  }

  refresh() {
    const { vit, results, state } = this.host.session;
    this.element.hidden = vit === null;
    if (this.#pixels !== null && !sameImage(this.#pixels, results.pixels)) {
      this.#search?.abort(); // another drawing
      this.#pixels = null;
      setText(this.#result, "");
    }
    this.#undo.hidden = this.#pixels === null || state.removedPatches.length === 0;
  }

  #putBack() {
    this.host.update({ removedPatches: [] });
    this.#pixels = null;
    setText(this.#result, "");
  }

  async #toggle() {
    if (this.#search !== null) {
      this.#search.abort();
      return;
    }
    this.#search = new AbortController();
    setText(this.#run, FOOL.stop);
    try {
      await this.#find(this.#search.signal);
    } catch (error) {
      if (error instanceof EngineError) setText(this.#result, error.message);
      else if (isAbort(error)) setText(this.#result, FOOL.stopped);
      else throw error;
    } finally {
      this.#search = null;
      setText(this.#run, FOOL.start);
    }
  }

  /** @param {AbortSignal} signal */
  async #find(signal) {
    const { session } = this.host;
    const { engine, vit, results, classNames } = session;
    if (engine === null || vit === null || results.isBlank) {
      setText(this.#result, FOOL.nothing);
      return;
    }
    const { pixels } = results;
    this.#pixels = pixels;
    const { headMask } = session.masks();
    const look = async (/** @type {number[]} */ removed) => {
      signal.throwIfAborted();
      const tokenMask = removed.length === 0 ? null : range(numPatches(vit)).map((patch) => Number(!removed.includes(patch)));
      const { probabilities } = await engine.look(vit, { pixels, headMask, tokenMask, want: ["probabilities"] }, signal);
      return probabilities ?? [];
    };
    const { candidates, all } = await this.#candidates(signal);
    const progress = (/** @type {number} */ tried, /** @type {number[]} */ removed) =>
      setText(this.#result, fill(FOOL.searching, { tried, removed: removed.length }));
    progress(0, []);
    const { found, before } = await findFewestPatches(candidates, look, progress);
    if (found === null) {
      setText(this.#result, fill(FOOL.stubborn, { before: classNames[before] }));
      return;
    }
    const sentence = this.#sentence({ ...found, smallest: found.smallest && all });
    const verdict = await this.#compared(found.removed);
    setText(this.#result, [sentence, verdict].join(" "));
    this.host.update({ removedPatches: found.removed });
  }

  /** Return the patches that the model has as tokens, and whether these are all of them. @param {AbortSignal} signal */
  async #candidates(signal) {
    const { engine, vit, results } = this.host.session;
    if (engine === null || vit === null) return { candidates: [], all: true };
    const { headMask } = this.host.session.masks();
    const request = { pixels: results.pixels, headMask, tokenMask: null };
    const { kept } = await engine.look(vit, { ...request, want: ["kept"] }, signal);
    const tokens = range(numPatches(vit)).filter((patch) => !kept || kept[patch] > 0);
    if (tokens.length <= MOST_CANDIDATES) return { candidates: tokens, all: true };
    const { patch_removal: costs } = await engine.look(vit, { ...request, want: ["patch_removal"] }, signal);
    const dearest = tokens.toSorted((a, b) => (costs?.[b] ?? 0) - (costs?.[a] ?? 0));
    return { candidates: dearest.slice(0, MOST_CANDIDATES), all: false };
  }

  /** @param {Found} found */
  #sentence({ removed, before, after, smallest, tried }) {
    const { vit, classNames } = this.host.session;
    const places = removed.map((patch) => placeName(patch, vit?.grid ?? [1, 1]));
    const text = places.length === 1 ? FOOL.onePatch : places.length <= MOST_NAMED ? FOOL.somePatches : FOOL.manyPatches;
    const patches = fill(text, { count: places.length, place: places[0], places: places.join("; ") });
    const found = fill(FOOL.found, { patches, before: classNames[before], after: classNames[after] });
    const proof = removed.length === 1 ? "" : smallest ? fill(FOOL.smallest, { tried }) : FOOL.minimal;
    return [found, proof].filter(Boolean).join(" ");
  }

  /** What the other model makes of the picture with these patches black. @param {number[]} removed */
  async #compared(removed) {
    const { engine, vit, cnn, results, classNames } = this.host.session;
    if (engine === null || vit === null || cnn === null) return "";
    const [before, after] = await Promise.all(
      [results.pixels, blanked(results.pixels, vit, removed)].map(async (pixels) => {
        const { probabilities } = await engine.look(cnn, { pixels, headMask: null, tokenMask: null, want: ["probabilities"] });
        return classNames[argmax(probabilities ?? [])];
      }),
    );
    return fill(before === after ? FOOL.cnnSame : FOOL.cnnOther, { before, after });
  }
}
