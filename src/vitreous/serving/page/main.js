/**
 * The page: connects the input, the controls and the address with the session, its requests and its painting.
 *
 * @import { Model, Samples } from "./engine.js"
 * @import { State } from "./state.js"
 */

import { byId, onClick, setText } from "./dom.js";
import { chooseEngine, isViT } from "./engine.js";
import { hideParts, isHidden } from "./hide.js";
import { Input } from "./input.js";
import { Painter } from "./painting.js";
import { markPending } from "./pending.js";
import { Requests, showError } from "./requests.js";
import { KINDS, Session } from "./session.js";
import { offerSharing, showNotice } from "./sharing.js";
import { fitsLink, fromHash, namesView, toHash } from "./state.js";
import { loadTexts, text } from "./texts.js";
import { toggleTheme } from "./theme.js";
import { viewOf } from "./tour.js";
import { numPatches, patchOffset } from "./vit-maths.js";

const ADDRESS_DELAY = 250; // ms after the last change

class Page {
  #session = new Session();
  #input = new Input((change) => this.update(change, true));
  #painter = new Painter(this.#session, this);
  #requests = new Requests(this.#session, this.#input, this.#painter);
  /** @type {Map<Model, Promise<Samples>>} */
  #samples = new Map();
  #writtenHash = "";
  #addressTimer = 0;

  async start() {
    const session = this.#session;
    this.#listen();
    this.#readAddress();
    try {
      session.engine = await chooseEngine();
      /** @type {Promise<void> | null} */
      let fitted = null;
      await session.engine.start(showProgress, (models) => {
        session.isAlone = isHidden("cnn") && models.some(isViT);
        session.models = session.isAlone ? models.filter(isViT) : models;
        fitted = this.#useChosenModels(); // the input is shown before the models are loaded
        return session.lead; // loaded first
      });
      await fitted;
      this.#requests.predict();
      const { mountPlay } = await import("./play/play.js"); // after the first prediction
      mountPlay(byId("play"), { session, update: (change) => this.update(change, true) });
    } catch (error) {
      showError(error);
    } finally {
      byId("loading").hidden = true;
    }
  }

  /** Fit the page to the chosen models, and offer the test images of the leading one. */
  async #useChosenModels() {
    const session = this.#session;
    session.useChosenModels();
    const { lead, engine, state } = session;
    if (lead === null || engine === null) return;
    this.#input.fit(lead);
    this.#painter.fit();
    markPending({ samples: true });
    if (!this.#samples.has(lead)) {
      const none = { samples: [], note: text("samples.failed") };
      this.#samples.set(lead, engine.samples(lead).catch(() => none));
    }
    const offered = await this.#samples.get(lead);
    if (lead !== session.lead || offered === undefined) return; // another was chosen meanwhile
    if (offered.samples.length === 0 && state.drawing.under?.kind === "sample") session.update({ drawing: { under: null, strokes: state.drawing.strokes } });
    this.#input.offer(offered);
    this.#input.show(session.state);
    await this.#input.prepare(lead);
    markPending({ samples: false });
  }

  #listen() {
    const session = this.#session;
    onClick("theme", toggleTheme);
    offerSharing(
      () => this.#writeAddress(),
      () => {
        if (this.#input.isDrawing) return text("link.drawing");
        const isMissing = session.state.picture.kind !== "sample" && session.seen !== null && !fitsLink(session.seen);
        return text(isMissing ? "link.noImage" : "link.image");
      },
      () => {
        const { isRearranged, results, seen, lead } = session;
        const [height, width] = lead?.image_size ?? [0, 0];
        const image = { values: results.pixels, channels: lead?.channels ?? 1, height, width };
        return isRearranged || seen === null ? image : this.#input.saved(seen);
      },
    );
    onClick("from-readout", () => {
      const key = session.vit?.has_class_token ? session.state.key : null; // a mean of all tokens has no query
      this.update({ query: -1, key, view: "attention" });
    });
    onClick("from-patch", () => this.update({ query: session.lastPointed, view: "attention" }));
    onClick("remove-head", () => this.toggleHead(session.layer, session.state.head));
    onClick("open-arithmetic", () => {
      const { state, opened } = session;
      this.update(opened === null ? { ...session.strongestWeight(state.query), view: "attention" } : { key: null, node: null });
    });
    onClick("close-arithmetic", () => this.#goUp());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) this.#goUp();
    });
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-shift]"))) {
      const [right, down] = (button.dataset.shift ?? "").split(" ").map(Number);
      button.addEventListener("click", () => {
        const { shiftStep, state: { shift: [x, y] } } = session;
        this.update({ shift: [x + right * shiftStep, y + down * shiftStep] }, true);
      });
    }
    onClick("shuffle", () => this.update({ shuffle: session.state.shuffle === 0 ? 1 + (Date.now() % 997) : 0 }, true));
    onClick("reset-whatif", () => this.update({ shift: [0, 0], shuffle: 0 }, true));
    for (const kind of KINDS) {
      const select = byId(kind, HTMLSelectElement);
      select.addEventListener("change", () => {
        session.state = { ...session.state, [kind]: select.value };
        // first: the page is fitted to the new model before it shows any of its results
        void this.#useChosenModels().then(() => this.update({}, true));
      });
    }
    window.addEventListener("hashchange", () => {
      if (location.hash.replace(/^#/, "") !== this.#writtenHash) this.#readAddress();
    });
  }

  /** @param {Partial<State>} change @param {boolean} [predict]  whether the models must run again */
  update(change, predict = false) {
    const { results, vit } = this.#session;
    const isTraced = vit !== null && this.#painter.tracing.of(vit).trace !== null; // then q, k and v are known already
    const needsVectors = typeof change.key === "number" && !results.vit?.queries && !isTraced;
    this.#session.update(change);
    if (predict || needsVectors) this.#requests.predict();
    if (!change.drawing && !change.picture) this.#painter.paint(); // these are painted with their prediction
    clearTimeout(this.#addressTimer);
    this.#addressTimer = setTimeout(() => this.#writeAddress(), ADDRESS_DELAY);
    markPending({ address: true });
  }

  #writeAddress() {
    const { state, seen } = this.#session;
    this.#writtenHash = toHash(state, this.#input.isDrawing ? null : seen);
    history.replaceState(null, "", `#${this.#writtenHash}`);
    clearTimeout(this.#addressTimer);
    markPending({ address: false });
    return location.href;
  }

  #readAddress() {
    const { state, notice } = fromHash(location.hash);
    if (isHidden("tour")) state.step = 0;
    this.#session.state = namesView(location.hash) ? state : { ...state, ...viewOf(state.step) };
    if (notice) showNotice(notice);
    this.#input.show(state);
    if (this.#session.models.length === 0) return; // they are still loading
    void this.#useChosenModels().then(() => this.#requests.predict());
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
    if (vit !== null && removedPatches.length >= numPatches(vit)) showNotice(text("removed.oneLeft"));
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

  /** Choose a head; a second time, open it. @param {number} layer @param {number} head */
  chooseHead(layer, head) {
    const { state, layer: shown } = this.#session;
    const isChosen = layer === shown && head === state.head;
    /** @type {Partial<State>} */
    const opened = isChosen ? { level: head < 0 ? "layer" : "head" } : {};
    this.update({ layer, head, view: "attention", ...opened });
  }

  /** @param {number} layer */
  openLayer(layer) {
    this.update({ layer, level: "layer" });
  }

  /** @type {import("./node-view.js").OpenNode} */
  openNode(node, layer, at, token) {
    const { vit } = this.#session;
    const query = token === null || vit === null ? {} : { query: token - patchOffset(vit) };
    this.update({ node, layer, at, key: null, ...query });
  }

  /** @param {number} query  a token @param {number} key  a token */
  openWeight(query, key) {
    const { vit } = this.#session;
    if (vit !== null) this.update({ query: query - patchOffset(vit), key, node: null, view: "attention" });
  }

  /** @param {"model" | "layer" | "head" | "number"} level */
  goTo(level) {
    if (level !== "number") this.update({ level, key: null, node: null });
  }

  /** Close the arithmetic, or show the next larger part of the model; at the top, end the tour. */
  #goUp() {
    const { state, opened, level } = this.#session;
    if (state.step > 0) this.#painter.tour.go(0);
    else if (opened !== null) {
      this.update({ key: null, node: null });
      byId("open-arithmetic").focus();
    } else if (level !== "model") this.update({ level: level === "head" ? "layer" : "model" });
  }

  /** @param {number} step @param {Partial<State>} change */
  enterStep(step, change) {
    const session = this.#session;
    const weight = change.key === 0 ? session.strongestWeight(-1) : {};
    const query = step === 1 ? session.fullestPatch() : -1; // the first step follows a patch, then the class token
    this.update({ ...change, ...(step > 0 && { query }), ...weight, step }, session.slowMaps.stale);
  }
}

/** @param {string} sentence @param {number | null} fraction */
function showProgress(sentence, fraction) {
  setText("loading", sentence);
  byId("loading").style.setProperty("--fraction", String(fraction ?? 0));
}

await loadTexts("play");
const unknownParts = hideParts();
void new Page().start();
if (unknownParts) showNotice(unknownParts);
