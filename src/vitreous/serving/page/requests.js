/**
 * Requests to the models: predictions while the user draws, and the slower maps once the input rests.
 *
 * @import { LookRequest, Model, ViTModel, Want } from "./engine.js"
 * @import { Input } from "./input.js"
 * @import { Painter } from "./painting.js"
 * @import { Session } from "./session.js"
 */

import { setText } from "./dom.js";
import { EngineError, isAbort } from "./engine.js";
import { productsOf } from "./forward.js";
import { Latest } from "./latest.js";
import { markPending } from "./pending.js";
import { PictureError } from "./picture-files.js";
import { noResults } from "./session.js";
import { text } from "./texts.js";
import { blanked, numPatches } from "./vit-maths.js";

const PAUSE = 140; // ms after the last stroke, before the slow maps are requested
const LIVE_COST = 30; // ms that a slow map may take to be requested with every stroke
const MOST_PRODUCTS = 2e10; // a map that takes more is computed only if it is shown; seconds on one core

export class Requests {
  /** @type {Latest<number>} */
  #predictions = new Latest((since, isNewest) => this.#predict(since, isNewest));
  #slowMaps = new AbortController(); // a newer drawing cancels the work on them
  #timer = 0;
  /** @type {Set<Model>} */
  #beingLoaded = new Set();

  /** @param {Session} session @param {Input} input @param {Painter} painter */
  constructor(session, input, painter) {
    this.session = session;
    this.input = input;
    this.painter = painter;
  }

  predict() {
    this.#predictions.request(performance.now());
  }

  /** @param {number} since  the time of the user's action @param {() => boolean} isNewest */
  async #predict(since, isNewest) {
    const { session, painter } = this;
    const { engine, vit, cnn, lead } = session;
    if (engine === null || lead === null) return;
    clearTimeout(this.#timer);
    this.#slowMaps.abort();
    markPending({ prediction: true, maps: false });
    try {
      const seen = await this.input.prepare(lead);
      if (vit !== session.vit || cnn !== session.cnn) return; // others were chosen meanwhile: theirs are requested next
      session.seen = seen;
      if (seen === null) {
        session.results = noResults(lead);
        painter.paint();
        return;
      }
      const pixels = session.arrange(seen);
      const masks = session.masks();
      const isRemoving = masks.headMask !== null || masks.tokenMask !== null;
      /** @type {LookRequest} */
      const plain = { pixels, headMask: null, tokenMask: null, want: ["probabilities", "novelty"] };
      const hasCnn = cnn !== null && engine.isReady(cnn); // where it is loaded after the ViT, the ViT does not wait
      const covered = vit && masks.tokenMask ? blanked(pixels, vit, session.state.removedPatches) : null;
      const [vitResult, vitBefore, cnnResult, cnnBefore] = await Promise.all([
        vit && engine.look(vit, { pixels, ...masks, want: this.#liveWants() }),
        vit && isRemoving ? engine.look(vit, plain) : null,
        hasCnn ? engine.look(cnn, { ...plain, pixels: covered ?? pixels }) : null,
        hasCnn && covered ? engine.look(cnn, plain) : null,
      ]);
      if (vit !== session.vit || cnn !== session.cnn) return; // others were chosen meanwhile: theirs are requested next
      const old = session.results.vit; // its slow maps stay until there are new ones
      session.results = {
        pixels,
        isBlank: false,
        vit: vitResult && {
          ...vitResult,
          patch_removal: vitResult.patch_removal ?? old?.patch_removal,
          relevance: vitResult.relevance ?? old?.relevance,
        },
        cnn: cnnResult,
        before: { vit: vitBefore?.probabilities ?? null, cnn: cnnBefore?.probabilities ?? null },
        novelty: { vit: (vitBefore ?? vitResult)?.novelty ?? null, cnn: (cnnBefore ?? cnnResult)?.novelty ?? null },
      };
      session.slowMaps.stale = true;
      showError(null);
      painter.paintPrediction(since);
      for (const model of [vit, cnn]) if (model !== null && !engine.isReady(model)) this.#load(model);
      if (isNewest() && vit !== null) {
        this.#timer = setTimeout(() => void this.#requestSlowMaps(vit, { pixels, ...masks }), PAUSE);
        markPending({ maps: true });
      }
    } catch (error) {
      showError(error);
    } finally {
      markPending({ prediction: !isNewest() });
    }
  }

  /** Load the rest of a model, then predict with it too. @param {Model} model */
  #load(model) {
    const { engine } = this.session;
    if (engine === null || this.#beingLoaded.has(model)) return;
    this.#beingLoaded.add(model);
    markPending({ models: true });
    const loaded = nextFrame().then(() => engine.load(model)).then(() => this.predict()); // the first prediction is shown first
    void loaded.catch(showError).finally(() => {
      this.#beingLoaded.delete(model);
      markPending({ models: this.#beingLoaded.size > 0 });
    });
  }

  #liveWants() {
    const { state, slowMaps, hasAttention } = this.session;
    /** @type {Want[]} */
    const want = hasAttention
      ? ["probabilities", "novelty", "attention", "lens", "kept", "rollout"]
      : ["probabilities", "novelty", "lens", "kept", "rollout"];
    if (state.key !== null) want.push("qkv");
    const isLive = slowMaps.milliseconds < LIVE_COST;
    if (isLive && (state.view === "patch_removal" || state.view === "relevance")) want.push(state.view);
    return want;
  }

  /**
   * Patch removal runs the model once per patch, and relevance needs a backward pass, so both wait until the input
   * rests.
   * @param {ViTModel} vit @param {Omit<LookRequest, "want">} request
   */
  async #requestSlowMaps(vit, request) {
    const { session } = this;
    const { engine, results } = session;
    this.#slowMaps = new AbortController();
    const start = performance.now();
    try {
      /** @type {Want[]} */
      const slow = engine?.hasGradients ? ["patch_removal", "relevance"] : ["patch_removal"];
      const runs = { patch_removal: numPatches(vit), relevance: 3 }; // a backward pass counts as two
      const isQuick = (/** @type {Want} */ name) => runs[/** @type {"relevance"} */ (name)] * productsOf(vit) <= MOST_PRODUCTS;
      const want = slow.filter((name) => name === session.state.view || isQuick(name));
      const maps = want.length === 0 ? {} : await engine?.look(vit, { ...request, want }, this.#slowMaps.signal);
      if (session.results !== results || results.vit === null || maps === undefined) return; // of an earlier drawing
      results.vit = { ...results.vit, patch_removal: maps.patch_removal, relevance: maps.relevance };
      session.slowMaps = { stale: want.length < slow.length, milliseconds: performance.now() - start };
      this.painter.paint();
    } catch (error) {
      showError(error);
    } finally {
      if (session.results === results) markPending({ maps: false });
    }
  }
}

/** Wait until what was painted is on the screen. */
function nextFrame() {
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** @param {unknown} error  null: there is none */
export function showError(error) {
  if (error === null) setText("engine-error", "");
  else if (error instanceof EngineError || error instanceof PictureError) setText("engine-error", error.message);
  else if (!isAbort(error)) {
    setText("engine-error", text("error.unexpected"));
    throw error;
  }
}
