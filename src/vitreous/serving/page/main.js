/**
 * The page: connects the drawing, the controls and the address with the session, its requests and its painting.
 *
 * @import { State } from "./state.js"
 */

import { byId, onClick, setText } from "./dom.js";
import { DrawingPad } from "./draw.js";
import { chooseEngine } from "./engine.js";
import { SIDE } from "./normalise.js";
import { Painter } from "./painting.js";
import { markPending, Requests, showError } from "./requests.js";
import { KINDS, Session } from "./session.js";
import { offerSharing, showNotice } from "./sharing.js";
import { fromHash, MAX_SHIFT, toHash } from "./state.js";
import { showSteps } from "./steps.js";
import { toggleTheme } from "./theme.js";
import { numPatches, patchOffset } from "./vit-maths.js";

const ADDRESS_DELAY = 250; // ms after the last change

class Page {
  #session = new Session();
  #pad = new DrawingPad((drawing) => this.update({ drawing }, true));
  #painter = new Painter(this.#session, this);
  #requests = new Requests(this.#session, this.#pad, this.#painter);
  #writtenHash = "";
  #addressTimer = 0;

  async start() {
    const session = this.#session;
    this.#listen();
    this.#readAddress();
    try {
      session.engine = await chooseEngine();
      const [models, samples] = await Promise.all([session.engine.start(showProgress), this.#loadSamples()]);
      if (samples.length === 0 && session.state.drawing.under?.kind === "sample") session.state.drawing.under = null;
      session.useModels(models);
      this.#useChosenModels();
      this.#pad.show(session.state.drawing);
      this.#requests.predict();
    } catch (error) {
      showError(error);
    } finally {
      byId("loading").hidden = true;
    }
  }

  async #loadSamples() {
    const samples = (await this.#session.engine?.samples().catch(() => [])) ?? [];
    this.#pad.offer(samples); // the digit is on the sheet before the models are loaded
    showSteps(this.#pad.steps());
    return samples;
  }

  #useChosenModels() {
    this.#session.useChosenModels();
    this.#painter.fit();
  }

  #listen() {
    const session = this.#session;
    onClick("theme", toggleTheme);
    offerSharing(
      () => this.#writeAddress(),
      () => {
        const { isRearranged, results } = session;
        return isRearranged ? { values: results.pixels, height: SIDE, width: SIDE } : this.#pad.picture();
      },
    );
    onClick("from-readout", () => {
      const key = session.vit?.has_class_token ? session.state.key : null; // a mean of all tokens has no query
      this.update({ query: -1, key, view: "attention" });
    });
    onClick("from-patch", () => this.update({ query: session.lastPointed, view: "attention" }));
    onClick("remove-head", () => this.toggleHead(session.layer, session.state.head));
    onClick("open-arithmetic", () => {
      const { state } = session;
      this.update(state.key === null ? { ...session.strongestWeight(state.query), view: "attention" } : { key: null });
    });
    onClick("close-arithmetic", () => {
      this.update({ key: null });
      byId("open-arithmetic").focus();
    });
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-shift]"))) {
      const [right, down] = (button.dataset.shift ?? "").split(" ").map(Number);
      const clamp = (/** @type {number} */ by) => Math.min(MAX_SHIFT, Math.max(-MAX_SHIFT, by));
      button.addEventListener("click", () => {
        const [x, y] = session.state.shift;
        this.update({ shift: [clamp(x + right), clamp(y + down)] }, true);
      });
    }
    onClick("shuffle", () => this.update({ shuffle: session.state.shuffle === 0 ? 1 + (Date.now() % 997) : 0 }, true));
    onClick("reset-whatif", () => this.update({ shift: [0, 0], shuffle: 0 }, true));
    for (const kind of KINDS) {
      const select = byId(kind, HTMLSelectElement);
      select.addEventListener("change", () => {
        session.state = { ...session.state, [kind]: select.value };
        this.#useChosenModels(); // first: the page is fitted to the new model before it shows any of its results
        this.update({}, true);
      });
    }
    window.addEventListener("hashchange", () => {
      if (location.hash.replace(/^#/, "") !== this.#writtenHash) this.#readAddress();
    });
  }

  /** @param {Partial<State>} change @param {boolean} [predict]  whether the models must run again */
  update(change, predict = false) {
    const needsVectors = change.key !== undefined && change.key !== null && !this.#session.results.vit?.queries;
    this.#session.update(change);
    if (predict || needsVectors) this.#requests.predict();
    if (change.drawing === undefined) this.#painter.paint(); // a stroke is painted with its prediction
    clearTimeout(this.#addressTimer);
    this.#addressTimer = setTimeout(() => this.#writeAddress(), ADDRESS_DELAY);
    markPending({ address: true });
  }

  #writeAddress() {
    this.#writtenHash = toHash(this.#session.state);
    history.replaceState(null, "", `#${this.#writtenHash}`);
    clearTimeout(this.#addressTimer);
    markPending({ address: false });
    return location.href;
  }

  #readAddress() {
    const { state, unreadable } = fromHash(location.hash);
    this.#session.state = state;
    if (unreadable) showNotice("The drawing in that link could not be read; here is a test digit instead.");
    this.#pad.show(state.drawing);
    if (this.#session.models.length === 0) return; // they are still loading
    this.#useChosenModels();
    this.#requests.predict();
  }

  /** @param {number | null} patch */
  point(patch) {
    this.#session.pointed = patch;
    if (patch !== null) this.#session.lastPointed = patch;
    this.#painter.paint();
  }

  /** @param {number} patch @param {boolean} byTouch */
  pick(patch, byTouch) {
    const { vit, state } = this.#session;
    if (vit === null) return;
    if (state.key !== null) {
      this.update({ key: patch + patchOffset(vit) });
    } else if (byTouch && state.query !== patch) {
      this.#session.lastPointed = patch;
      this.update({ query: patch }); // a finger cannot hover: the first tap looks, the second removes
    } else {
      this.togglePatch(patch);
    }
  }

  /** @param {number} patch */
  togglePatch(patch) {
    const { vit, state } = this.#session;
    const others = state.removedPatches.filter((each) => each !== patch);
    const removedPatches = others.length < state.removedPatches.length ? others : [...others, patch];
    if (vit !== null && removedPatches.length >= numPatches(vit)) showNotice("At least one patch must remain.");
    else this.update({ removedPatches }, true);
  }

  /** @param {number} layer @param {number} head */
  toggleHead(layer, head) {
    if (head < 0) return;
    const { removedHeads } = this.#session.state;
    const others = removedHeads.filter(([l, h]) => l !== layer || h !== head);
    const isNew = others.length === removedHeads.length;
    this.update({ layer, head, removedHeads: isNew ? [...others, [layer, head]] : others }, true);
  }

  /** @param {number} step @param {Partial<State>} change */
  enterStep(step, change) {
    const weight = change.key === 0 ? this.#session.strongestWeight(-1) : {};
    this.update({ ...change, ...weight, step }, this.#session.slowMaps.stale);
  }
}

/** @param {string} sentence @param {number | null} fraction */
function showProgress(sentence, fraction) {
  setText("loading", sentence);
  byId("loading").style.setProperty("--fraction", String(fraction ?? 0));
}

void new Page().start();
