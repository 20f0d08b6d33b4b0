/**
 * The page: holds the state, asks the models whenever the drawing changes, and has every part show what it should.
 *
 * @typedef {import("./engine.js").Answer} Answer
 * @typedef {import("./engine.js").Engine} Engine
 * @typedef {import("./engine.js").Model} Model
 * @typedef {import("./engine.js").ViTModel} ViTModel
 * @typedef {import("./engine.js").Want} Want
 * @typedef {import("./maps.js").Layer} Layer
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").View} View
 *
 * @typedef {object} Found  all that is known about the drawing at hand
 * @property {Uint8Array} pixels  what the models got, 28×28
 * @property {Answer | null} vit
 * @property {Float32Array | null} vitBefore  with nothing removed; null where nothing is
 * @property {Answer | null} cnn
 * @property {Float32Array | null} cnnBefore
 */

import { Arithmetic } from "./arithmetic.js";
import { Bars } from "./bars.js";
import { byId, make, say, setAttributes } from "./dom.js";
import { DrawingPad } from "./draw.js";
import { chooseEngine, EngineError, isAbort, isViT } from "./engine.js";
import { HeadGrid } from "./heads.js";
import { Latest } from "./latest.js";
import { Lens } from "./lens.js";
import { PatchMap, picture, positionsPicture, showScale } from "./maps.js";
import { SIDE } from "./normalise.js";
import { lookCommand, notice, offerSharing } from "./sharing.js";
import { FARTHEST_SHIFT, firstState, fromHash, toHash, VIEWS, within } from "./state.js";
import { showSteps } from "./steps.js";
import { toggleTheme } from "./theme.js";
import { Tour } from "./tour.js";
import { blanked, headAttention, largest, lookOf, patchesOf, shifted, shuffled, shuffledOrder, tokensOf } from "./vit-maths.js";
import { patchesWords, percent, placeOf, signed, thousands } from "./words.js";

const QUIET = 140; // ms after the last stroke, before work that is not urgent
const SPEAK_AFTER = 900; // ms, so that a screen reader hears the answer and not every stroke
const LIVE_COST = 30; // ms a costly map may take to be drawn along with every stroke

/** @type {Record<View, { title: string, kind: import("./maps.js").MapKind }>} */
const VIEW_FACTS = {
  patches: { title: "patches", kind: "plain" },
  attention: { title: "attention", kind: "amount" },
  rollout: { title: "rollout", kind: "amount" },
  occlusion: { title: "occlusion", kind: "signed" },
  relevance: { title: "relevance", kind: "amount" },
  positions: { title: "positions", kind: "positions" },
};

class Page {
  /** @type {State} */
  state = firstState();
  /** @type {Engine | null} */
  engine = null;
  /** those that take what is drawn here @type {Model[]} */
  models = [];
  /** the ids of the models that `found` is about @type {(string | undefined)[]} */
  asked = [];
  /** @type {Found} */
  found = { pixels: new Uint8Array(SIDE * SIDE), vit: null, vitBefore: null, cnn: null, cnnBefore: null };
  /** the patch under the pointer or the keyboard's focus @type {number | null} */
  pointed = null;
  lastPointed = 0;
  extrasAreOld = true;
  /** ends the work on maps that a newer question makes idle */
  extras = new AbortController();
  costOfExtras = 0;
  written = "";
  /** what is still to be done; see `mark` */
  pending = { answer: true, extras: false, address: false };
  /** @type {number[]} */
  timers = [0, 0, 0];

  constructor() {
    this.pad = new DrawingPad((drawing) => this.set({ drawing }, true));
    this.map = new PatchMap(byId("map"), {
      onPoint: (patch) => this.point(patch),
      onPick: (patch, byTouch) => this.pick(patch, byTouch),
    });
    this.heads = new HeadGrid(byId("heads"), {
      onChoose: (layer, head) => this.set({ layer, head, view: "attention" }, false),
      onRemove: (layer, head) => this.toggleHead(layer, head),
    });
    this.bars = new Bars(byId("bars"));
    this.lens = new Lens(byId("lens"), byId("lens-said"), (layer) => this.set({ layer, view: "attention" }, false));
    this.arithmetic = new Arithmetic(byId("arithmetic-body"), {
      onAsk: (token) => this.set({ query: this.patchOf(token) }, false),
      onAnswer: (token) => this.set({ key: token }, false),
    });
    this.tour = new Tour((step, set) => this.enterStep(step, set));
    /** @type {Latest<number>} */
    this.asking = new Latest((since, isNewest) => this.ask(since, isNewest));
    this.sharing = offerSharing({
      address: async () => {
        this.writeAddress();
        return location.href;
      },
      command: () => lookCommand(this.vit() ?? this.cnn(), this.vit() ? this.cnn() : null, this.state),
      picture: () => (this.isRearranged() ? { values: this.found.pixels, height: SIDE, width: SIDE } : this.pad.picture()),
    });
    this.listen();
  }

  listen() {
    byId("theme").addEventListener("click", toggleTheme);
    byId("from-readout").addEventListener("click", () => {
      const key = this.vit()?.has_class_token ? this.state.key : null; // an average has no arithmetic of its own
      this.set({ query: -1, key, view: "attention" }, false);
    });
    byId("from-patch").addEventListener("click", () => this.set({ query: this.lastPointed, view: "attention" }, false));
    byId("remove-head").addEventListener("click", () => this.toggleHead(this.layer(), this.state.head));
    byId("open-arithmetic").addEventListener("click", () => (this.state.key === null ? this.openArithmetic() : this.set({ key: null }, false)));
    byId("close-arithmetic").addEventListener("click", () => {
      this.set({ key: null }, false);
      byId("open-arithmetic").focus();
    });
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-shift]"))) {
      const [right, down] = (button.dataset.shift ?? "").split(" ").map(Number);
      button.addEventListener("click", () => {
        const move = (/** @type {number} */ by) => Math.min(FARTHEST_SHIFT, Math.max(-FARTHEST_SHIFT, by));
        this.set({ shift: [move(this.state.shift[0] + right), move(this.state.shift[1] + down)] }, true);
      });
    }
    byId("shuffle").addEventListener("click", () => this.set({ shuffle: this.state.shuffle === 0 ? 1 + (Date.now() % 997) : 0 }, true));
    byId("as-drawn").addEventListener("click", () => this.set({ shift: [0, 0], shuffle: 0 }, true));
    for (const kind of /** @type {const} */ (["vit", "cnn"])) {
      const select = byId(kind, HTMLSelectElement);
      select.addEventListener("change", () => {
        this.state = { ...this.state, [kind]: select.value };
        this.fitState(); // first: the page takes the new model's shape before it shows anything of it
        this.set({}, true);
      });
    }
    window.addEventListener("hashchange", () => {
      if (location.hash.replace(/^#/, "") !== this.written) this.readAddress();
    });
  }

  // --- starting -----------------------------------------------------------------------------------------------------

  async start() {
    this.readAddress();
    const progress = (/** @type {string} */ sentence, /** @type {number | null} */ share) => {
      say(byId("loading"), sentence);
      byId("loading").style.setProperty("--share", String(share ?? 0));
    };
    try {
      this.engine = await chooseEngine();
      const [models, samples] = await Promise.all([
        this.engine.start(progress),
        this.engine.samples().catch(() => []).then((found) => {
          this.pad.offer(found); // the digit stands on the sheet before the models are here
          showSteps(this.pad.steps());
          return found;
        }),
      ]);
      if (samples.length === 0 && this.state.drawing.under?.kind === "sample") this.state.drawing.under = null;
      this.useModels(models);
      say(byId("loading"), "");
      byId("loading").hidden = true;
      this.fitState();
      this.pad.show(this.state.drawing);
      this.asking.ask(performance.now());
    } catch (error) {
      byId("loading").hidden = true;
      this.tell(error);
    }
  }

  /** @param {Model[]} models */
  useModels(models) {
    const fitting = models.filter((model) => model.channels === 1 && model.image_size[0] === SIDE && model.image_size[1] === SIDE);
    if (fitting.length === 0) {
      const [first] = models;
      throw new EngineError(
        `This page draws 28 × 28 gray pixels, and ${first.name} wants ${first.image_size.join(" × ")} in ${first.channels} channels. ` +
          "Try it with `vitreous look` instead.",
      );
    }
    this.models = fitting;
    document.documentElement.classList.toggle("no-vit", this.vit() === null);
    if (this.vit() === null) say(byId("map-said"), "Only models without attention are served here; name a ViT's run with --run to look inside one.");
  }

  vits() {
    return this.models.filter(isViT);
  }

  vit() {
    const vits = this.vits();
    return vits.find((model) => model.id === this.state.vit) ?? vits[0] ?? null;
  }

  /** The models that may stand beside the ViT: their bars share their labels, so their classes must be the same. */
  besides() {
    const vit = this.vit();
    const alike = this.models.filter((model) => model !== vit && (vit === null || sameClasses(model, vit)));
    const others = alike.filter((model) => !isViT(model));
    return others.length > 0 ? others : alike; // with no other kind of model, another ViT
  }

  cnn() {
    const besides = this.besides();
    return besides.find((model) => model.id === this.state.cnn) ?? besides[0] ?? null;
  }

  /**
   * Whether these are the models at hand: an answer may come when others have been chosen.
   * @param {ViTModel | null} vit
   * @param {Model | null} cnn
   */
  areChosen(vit, cnn) {
    return vit === this.vit() && cnn === this.cnn();
  }

  /** The page in the shape of the models chosen; what the ones before them said is forgotten. */
  fitState() {
    const [vit, cnn] = [this.vit(), this.cnn()];
    const [hadVit, hadCnn] = this.asked;
    this.asked = [vit?.id, cnn?.id];
    if (vit?.id !== hadVit) {
      this.found = { ...this.found, vit: null, vitBefore: null };
      this.extrasAreOld = true;
      this.costOfExtras = 0;
      this.pointed = null;
      this.lastPointed = 0;
    }
    if (cnn?.id !== hadCnn) this.found = { ...this.found, cnn: null, cnnBefore: null };
    if (vit !== null) {
      this.state = within(this.state, this.limits(vit));
      this.map.shape(vit);
      this.heads.shape(vit);
      this.tour.tell(vit);
      this.shapeViews(vit);
    }
    offerChoice("vit", this.vits(), vit);
    offerChoice("cnn", this.besides(), cnn);
    this.sayFacts();
    this.paint();
  }

  sayFacts() {
    const [vit, cnn] = [this.vit(), this.cnn()];
    const facts = [vit, cnn].filter((model) => model !== null).map(factsOf);
    const others = this.models.filter((model) => vit !== null && !isViT(model) && !sameClasses(model, vit)).map(({ name }) => name);
    const [know, are] = others.length > 1 ? ["know", "are"] : ["knows", "is"];
    const apart = others.length > 0 ? `${others.join(", ")} ${know} other classes than ${vit?.name} and ${are} not shown beside it.` : "";
    say(byId("engine-said"), [this.engine?.place, ...facts, apart].join(" ").trim());
  }

  /** @param {ViTModel} vit */
  limits(vit) {
    return { depth: vit.depth, num_heads: vit.num_heads, grid: vit.grid, tokens: tokensOf(vit), views: this.views(vit) };
  }

  /** The layer shown, from 0. */
  layer() {
    return this.state.layer < 0 ? (this.vit()?.depth ?? 1) - 1 : this.state.layer;
  }

  /** @param {ViTModel} vit */
  views(vit) {
    return VIEWS.filter(
      (view) =>
        (view !== "relevance" || this.engine?.hasGradients) &&
        (view !== "positions" || vit.position_similarity !== null) &&
        (view !== "rollout" || vit.pool !== "seq") // the graph does not give that pooling's weights,
    );
  }

  /** @param {ViTModel} vit */
  shapeViews(vit) {
    byId("views").replaceChildren(
      ...this.views(vit).map((view) => {
        const canvas = make("canvas", { class: "pixels", "aria-hidden": "true" });
        if (view === "positions") positionsPicture(vit, canvas);
        const button = make("button", { type: "button", class: "view", "data-view": view }, canvas, make("span", {}, VIEW_FACTS[view].title));
        button.addEventListener("click", () => this.set({ view, key: view === "attention" ? this.state.key : null }, this.extrasAreOld));
        return button;
      }),
    );
  }

  // --- state --------------------------------------------------------------------------------------------------------

  /**
   * @param {Partial<State>} change
   * @param {boolean} asks  whether the models must be asked anew
   */
  set(change, asks) {
    const opensArithmetic = change.key !== undefined && change.key !== null && !this.found.vit?.queries;
    const vit = this.vit();
    const next = { ...this.state, ...change };
    this.state = vit === null ? next : within(next, this.limits(vit));
    if (asks || opensArithmetic) this.asking.ask(performance.now());
    if (change.drawing === undefined) this.paint(); // a stroke is painted with its answer
    clearTimeout(this.timers[0]);
    this.timers[0] = setTimeout(() => this.writeAddress(), 250);
    this.mark({ address: true });
  }

  /**
   * <html data-at="rest"> once everything asked for is shown and the address is written: scripts and tests wait for it.
   * @param {Partial<Page["pending"]>} change
   */
  mark(change) {
    this.pending = { ...this.pending, ...change };
    document.documentElement.dataset.at = Object.values(this.pending).some(Boolean) ? "work" : "rest";
  }

  writeAddress() {
    this.written = toHash(this.state);
    history.replaceState(null, "", `#${this.written}`);
    clearTimeout(this.timers[0]);
    this.mark({ address: false });
  }

  readAddress() {
    const { state, unreadable } = fromHash(location.hash);
    this.state = state;
    if (unreadable) notice("The drawing in that link could not be read; here is a test digit instead.");
    this.pad.show(state.drawing);
    if (this.models.length > 0) {
      this.fitState();
      this.asking.ask(performance.now());
    }
  }

  /** @param {number | null} patch */
  point(patch) {
    this.pointed = patch;
    if (patch !== null) this.lastPointed = patch;
    this.paint();
  }

  /**
   * @param {number} patch
   * @param {boolean} byTouch
   */
  pick(patch, byTouch) {
    const vit = this.vit();
    if (vit === null) return;
    if (this.state.key !== null) {
      this.set({ key: patch + Number(vit.has_class_token) }, false);
    } else if (byTouch && this.state.query !== patch) {
      this.lastPointed = patch;
      this.set({ query: patch }, false); // a finger cannot hover: the first tap looks, the second removes
    } else {
      this.togglePatch(patch);
    }
  }

  /** @param {number} patch */
  togglePatch(patch) {
    const vit = this.vit();
    const removed = this.state.removedPatches;
    const next = removed.includes(patch) ? removed.filter((each) => each !== patch) : [...removed, patch];
    if (vit !== null && next.length >= patchesOf(vit)) notice("One patch has to stay, or there is nothing to look at.");
    else this.set({ removedPatches: next }, true);
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  toggleHead(layer, head) {
    if (head < 0) return;
    const others = this.state.removedHeads.filter(([l, h]) => l !== layer || h !== head);
    const isNew = others.length === this.state.removedHeads.length;
    this.set({ layer, head, removedHeads: isNew ? [...others, [layer, head]] : others }, true);
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  isRemoved(layer, head) {
    return this.state.removedHeads.some(([l, h]) => l === layer && h === head);
  }

  openArithmetic() {
    this.set({ ...this.oneWeight(this.state.query), view: "attention" }, false);
  }

  /**
   * One head, one token that asks, and the token it looks at most. An average asks nothing: then a patch does.
   * @param {number} asks  a patch, or -1
   */
  oneWeight(asks) {
    const [vit, attention] = [this.vit(), this.found.vit?.attention];
    const head = Math.max(0, this.state.head);
    const query = asks < 0 && !vit?.has_class_token ? this.lastPointed : asks;
    const key = vit !== null && attention ? largest(lookOf(headAttention(attention, this.layer(), head), query, vit)) : 0;
    return { head, query, key };
  }

  /**
   * @param {number} step
   * @param {Partial<State>} change
   */
  enterStep(step, change) {
    const vit = this.vit();
    const view = change.view && vit && !this.views(vit).includes(change.view) ? "attention" : change.view;
    /** @type {Partial<State>} */
    const next = { ...change, step };
    if (view !== undefined) next.view = view;
    if (change.key === 0) Object.assign(next, this.oneWeight(-1));
    this.set(next, this.extrasAreOld);
  }

  /** @param {number} token */
  patchOf(token) {
    return token - Number(this.vit()?.has_class_token ?? false);
  }

  isRearranged() {
    return this.state.shift.some((by) => by !== 0) || this.state.shuffle !== 0;
  }

  // --- asking -------------------------------------------------------------------------------------------------------

  /**
   * @param {number} since  when the person did what this answers
   * @param {() => boolean} isNewest
   */
  async ask(since, isNewest) {
    const [engine, vit, cnn, state] = [this.engine, this.vit(), this.cnn(), this.state];
    if (engine === null || (vit === null && cnn === null)) return;
    clearTimeout(this.timers[1]);
    this.extras.abort();
    this.mark({ answer: true, extras: false });
    const steps = this.pad.steps();
    showSteps(steps);
    const moved = steps === null ? new Uint8Array(SIDE * SIDE) : shifted(steps.centred.values, [SIDE, SIDE], state.shift);
    const pixels = vit !== null && state.shuffle !== 0 ? shuffled(moved, vit, shuffledOrder(patchesOf(vit), state.shuffle)) : moved;
    if (steps === null) {
      this.found = { pixels, vit: null, vitBefore: null, cnn: null, cnnBefore: null };
      this.paint();
      this.mark({ answer: !isNewest() });
      return;
    }
    const masks = vit === null ? { headMask: null, tokenMask: null } : masksOf(vit, state);
    const removed = masks.headMask !== null || masks.tokenMask !== null;
    const live = this.costOfExtras < LIVE_COST;
    /** @type {Want[]} */
    const want = ["probabilities", "attention", "lens", "rollout"];
    if (state.key !== null) want.push("qkv");
    if (live && (state.view === "occlusion" || state.view === "relevance")) want.push(state.view);
    /** @type {Want[]} */
    const justAnswer = ["probabilities"];
    const plain = { pixels, headMask: null, tokenMask: null, want: justAnswer };
    const covered = vit !== null && masks.tokenMask !== null ? blanked(pixels, vit, state.removedPatches) : null;
    try {
      const [found, before, beside, besideBefore] = await Promise.all([
        vit && engine.look(vit, { pixels, ...masks, want }),
        vit && removed ? engine.look(vit, plain) : null,
        cnn && engine.look(cnn, { ...plain, pixels: covered ?? pixels }),
        cnn && covered ? engine.look(cnn, plain) : null,
      ]);
      if (!this.areChosen(vit, cnn)) return; // the models chosen since are asked next
      const old = this.found.vit;
      this.found = {
        pixels,
        vit: found && { ...found, occlusion: found.occlusion ?? old?.occlusion, relevance: found.relevance ?? old?.relevance },
        vitBefore: before?.probabilities ?? null,
        cnn: beside,
        cnnBefore: besideBefore?.probabilities ?? null,
      };
      this.extrasAreOld = true;
      this.tell(null);
      this.paint();
      this.reportSpeed(since);
      this.speakLater();
      if (isNewest() && vit !== null) {
        this.timers[1] = setTimeout(() => void this.askExtras(vit, { pixels, ...masks }), QUIET);
        this.mark({ extras: true });
      }
    } catch (error) {
      this.tell(error);
    } finally {
      this.mark({ answer: !isNewest() });
    }
  }

  /**
   * Occlusion asks the model once a patch, relevance goes back through it: they come when the pen rests.
   * @param {ViTModel} vit
   * @param {{ pixels: Uint8Array, headMask: number[][] | null, tokenMask: number[] | null }} question
   */
  async askExtras(vit, question) {
    const about = this.found;
    this.extras = new AbortController();
    const began = performance.now();
    try {
      /** @type {Want[]} */
      const want = this.engine?.hasGradients ? ["occlusion", "relevance"] : ["occlusion"];
      const extras = await this.engine?.look(vit, { ...question, want }, this.extras.signal);
      if (this.found !== about || about.vit === null || extras === undefined) return; // a newer stroke has been answered
      about.vit = { ...about.vit, occlusion: extras.occlusion, relevance: extras.relevance };
      this.costOfExtras = performance.now() - began;
      this.extrasAreOld = false;
      this.paint();
    } catch (error) {
      this.tell(error);
    } finally {
      if (this.found === about) this.mark({ extras: false });
    }
  }

  /** @param {unknown} error */
  tell(error) {
    const place = byId("engine-error");
    if (error === null) say(place, "");
    else if (error instanceof EngineError) say(place, error.message);
    else if (!isAbort(error)) {
      say(place, "Something went wrong in this page; reloading it may help. Your drawing is safe in the address.");
      throw error;
    }
  }

  /** @param {number} since */
  reportSpeed(since) {
    requestAnimationFrame(() => {
      const milliseconds = performance.now() - since;
      say(byId("speed"), `${Math.round(milliseconds)} ms`);
      document.dispatchEvent(new CustomEvent("vitreous:answered", { detail: { milliseconds } }));
    });
  }

  speakLater() {
    clearTimeout(this.timers[2]);
    this.timers[2] = setTimeout(() => {
      const said = this.answering().map(({ name, probabilities }) => {
        if (probabilities === null) return "";
        const best = largest(probabilities);
        return `${name}: ${this.classNames()[best]}, ${percent(probabilities[best])}.`;
      });
      say(byId("spoken"), said.join(" "));
    }, SPEAK_AFTER);
  }

  // --- showing ------------------------------------------------------------------------------------------------------

  classNames() {
    return (this.vit() ?? this.cnn())?.class_names ?? [];
  }

  answering() {
    const { vit, cnn, vitBefore, cnnBefore } = this.found;
    /** @type {import("./bars.js").Answering[]} */
    const models = [];
    const [first, second] = [this.vit(), this.cnn()];
    if (first) models.push({ name: first.name, kind: "vit", probabilities: vit?.probabilities ?? null, before: vitBefore });
    if (second) models.push({ name: second.name, kind: "cnn", probabilities: cnn?.probabilities ?? null, before: cnnBefore });
    return models;
  }

  paint() {
    const { state, found } = this;
    const vit = this.vit();
    this.tour.show(state.step);
    this.bars.paint(this.answering(), this.classNames());
    this.paintWhatIf();
    this.sharing?.refresh();
    if (vit === null) return;
    this.lens.paint(found.vit?.lens ?? null, vit.depth, vit.class_names, this.layer());
    this.paintRemoved(vit);
    const arithmetic = state.key !== null;
    const query = arithmetic || this.pointed === null ? state.query : this.pointed;
    const attention = found.vit?.attention ?? null;
    this.heads.paint({
      pixels: found.pixels,
      attention,
      query,
      layer: this.layer(),
      head: state.head,
      isRemoved: (layer, head) => this.isRemoved(layer, head),
    });
    this.paintMap(vit, query);
    this.paintViews(vit, query);
    this.paintChoices(vit);
    this.paintArithmetic(vit);
  }

  /**
   * @param {ViTModel} vit
   * @param {View} view
   * @param {number} query
   * @returns {Layer}
   */
  layerOf(vit, view, query) {
    const { vit: answer } = this.found;
    const { kind } = VIEW_FACTS[view];
    /** @type {ArrayLike<number> | null | undefined} */
    let values = null;
    if (view === "attention" && answer?.attention) {
      const look = lookOf(headAttention(answer.attention, this.layer(), this.state.head), query, vit);
      values = look.subarray(Number(vit.has_class_token));
    } else if (view === "rollout" || view === "occlusion" || view === "relevance") {
      values = answer?.[view];
    }
    const sizes = values ? Array.from(values, Math.abs) : [1];
    // A drop of less than a percent is next to nothing: the scale does not blow it up.
    return { kind: values || kind === "positions" ? kind : "plain", values: values ?? null, high: Math.max(view === "occlusion" ? 0.01 : 0, ...sizes) };
  }

  /**
   * @param {ViTModel} vit
   * @param {number} query
   */
  paintMap(vit, query) {
    const { state, found } = this;
    const layer = this.layerOf(vit, state.view, query);
    const first = Number(vit.has_class_token);
    const pointedKey = state.key !== null && this.pointed !== null ? this.pointed + first : state.key;
    const usesQuery = state.view === "attention" || state.view === "positions";
    this.map.paint({
      pixels: found.pixels,
      layer,
      removed: new Set(state.removedPatches),
      query: usesQuery && query >= 0 ? query : null,
      key: pointedKey === null ? null : pointedKey - first,
      apart: state.step === 1,
      sayOf: (patch) => (layer.values === null || layer.kind === "positions" ? "" : `, ${state.view} ${layer.kind === "signed" ? signed(100 * layer.values[patch], 1) + " %" : percent(layer.values[patch])}`),
    });
    byId("map").dataset.view = state.view;
    const ends = { plain: ["", ""], amount: ["0", percent(layer.high)], signed: [`−${percent(layer.high)}`, `+${percent(layer.high)}`], positions: ["unlike", "alike"] }[layer.kind];
    showScale(byId("scale"), layer.kind, ends[0], ends[1]);
    say(byId("map-said"), this.mapSentence(vit, layer, query));
  }

  /**
   * @param {ViTModel} vit
   * @param {Layer} layer
   * @param {number} query
   */
  mapSentence(vit, layer, query) {
    const { state, found } = this;
    const answer = found.vit?.probabilities ? vit.class_names[largest(found.vit.probabilities)] : "the answer";
    const click = matchMedia("(hover: none)").matches ? "Tap a patch to look from there, again to remove it." : "Point at a patch to look from there; click to remove it.";
    if (!found.vit) return found.pixels.some((value) => value > 0) ? "" : "Nothing is drawn yet.";
    const layerName = `layer ${this.layer() + 1}`;
    switch (state.view) {
      case "patches":
        return ["All the ViT gets:", patchesWords(vit) + ", read row by row.", vit.cells.note, click].filter(Boolean).join(" ");
      case "attention": {
        const values = layer.values ?? [];
        const most = largest(values);
        const who = state.head < 0 ? `The heads of ${layerName} together` : `Head ${state.head + 1} of ${layerName}`;
        const from = query >= 0 ? `from ${placeOf(query, vit.grid)}` : vit.has_class_token ? "from the class token" : "on average";
        const all = Array.from(values).reduce((total, value) => total + value, 0);
        const rest = vit.has_class_token ? ` ${percent(1 - all)} goes to the class token.` : "";
        if (this.isRemoved(this.layer(), state.head)) return `Head ${state.head + 1} of ${layerName} is removed: it still looks, but nothing it finds is passed on.`;
        return `${who}, ${from}, looks most at ${placeOf(most, vit.grid)}: ${percent(values[most])}.${rest} ${state.key === null ? click : "Click a patch to work out its weight."}`;
      }
      case "rollout":
        return `Attention followed through all layers: how much of each patch can reach the answer. It knows no classes, so it is the same whether or not it speaks for ${answer}. ${click}`;
      case "occlusion":
        return `What ${answer} loses (orange) or gains (blue) when a patch is removed. The model itself was asked, so this one can be trusted. Click a patch to try.`;
      case "relevance":
        return `Attention that raises ${answer}, by its gradients through all layers, in parts of 1. Check it against occlusion. ${click}`;
      case "positions":
        return query >= 0
          ? `The position of ${placeOf(query, vit.grid)} is outlined; its small grid shows how alike it is to every other. Learned, not given.`
          : "Each small grid belongs to one patch's position and shows how alike it is to every other. Learned, not given.";
    }
  }

  /**
   * @param {ViTModel} vit
   * @param {number} query
   */
  paintViews(vit, query) {
    for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (byId("views").querySelectorAll("button"))) {
      const view = /** @type {View} */ (button.dataset.view);
      setAttributes(button, { "aria-pressed": String(view === this.state.view) });
      const canvas = button.querySelector("canvas");
      if (canvas && view !== "positions") picture(this.found.pixels, vit, this.layerOf(vit, view, query), canvas);
      button.classList.toggle("old", this.extrasAreOld && (view === "occlusion" || view === "relevance") && view !== this.state.view);
    }
  }

  /** @param {ViTModel} vit */
  paintChoices(vit) {
    const { state } = this;
    const shown = this.pointed !== null && state.key === null ? this.pointed : state.query;
    say(byId("from-readout"), vit.has_class_token ? "from the class token" : "from all, on average");
    say(byId("from-patch"), shown >= 0 ? `from ${placeOf(shown, vit.grid)}` : "from a patch");
    setAttributes(byId("from-readout"), { "aria-pressed": String(shown < 0) });
    setAttributes(byId("from-patch"), { "aria-pressed": String(shown >= 0) });
    say(byId("remove-head"), this.isRemoved(this.layer(), state.head) ? "Put this head back" : "Remove this head");
    setAttributes(byId("remove-head"), { disabled: state.head < 0 });
    say(byId("open-arithmetic"), state.key === null ? "Show the arithmetic" : "Hide the arithmetic");
    setAttributes(byId("open-arithmetic"), { "aria-expanded": String(state.key !== null) });
  }

  /** @param {ViTModel} vit */
  paintArithmetic(vit) {
    const { state, found } = this;
    const drawer = byId("arithmetic");
    drawer.hidden = state.key === null;
    document.documentElement.classList.toggle("with-arithmetic", state.key !== null);
    if (state.key === null) return;
    const first = Number(vit.has_class_token);
    const key = this.pointed !== null ? this.pointed + first : state.key;
    this.arithmetic.paint({
      model: vit,
      answer: found.vit,
      layer: this.layer(),
      head: Math.max(0, state.head),
      query: Math.max(0, state.query + first),
      key,
      keyRemoved: state.removedPatches.includes(key - first),
    });
  }

  /** @param {ViTModel} vit */
  paintRemoved(vit) {
    const { removedPatches, removedHeads } = this.state;
    const key = JSON.stringify([vit.id, removedPatches, removedHeads]);
    const place = byId("removed");
    if (place.dataset.shown === key) return;
    place.dataset.shown = key;
    const chip = (/** @type {string} */ name, /** @type {() => void} */ back) => {
      const button = make("button", { type: "button", class: "chip", "aria-label": `Put ${name} back` }, name, make("span", { "aria-hidden": "true" }, "×"));
      button.addEventListener("click", back);
      return button;
    };
    const chips = [
      ...removedPatches.map((patch) => chip(`patch ${placeOf(patch, vit.grid)}`, () => this.togglePatch(patch))),
      ...removedHeads.map(([layer, head]) => chip(`head ${head + 1} of layer ${layer + 1}`, () => this.toggleHead(layer, head))),
    ];
    if (chips.length === 0) {
      place.replaceChildren();
      return;
    }
    const all = make("button", { type: "button", class: "plain" }, "put all back");
    all.addEventListener("click", () => this.set({ removedPatches: [], removedHeads: [] }, true));
    const cnnNote = removedPatches.length > 0 && this.cnn() ? make("span", { class: "soft small" }, `${this.cnn()?.name} has no tokens to leave out: it gets the patch painted black.`) : "";
    place.replaceChildren(make("span", { class: "label" }, "Removed"), ...chips, all, cnnNote);
  }

  paintWhatIf() {
    const { shift, shuffle } = this.state;
    const words = [];
    if (shift[0] !== 0) words.push(`${Math.abs(shift[0])} px to the ${shift[0] < 0 ? "left" : "right"}`);
    if (shift[1] !== 0) words.push(`${Math.abs(shift[1])} px ${shift[1] < 0 ? "up" : "down"}`);
    if (shuffle !== 0) words.push("its patches shuffled");
    say(byId("whatif-said"), words.length > 0 ? `Both models now get it ${words.join(", ")}.` : "Moved by a pixel, or its patches in another order?");
    byId("as-drawn").hidden = words.length === 0;
    setAttributes(byId("shuffle"), { "aria-pressed": String(shuffle !== 0) });
  }
}

/**
 * @param {ViTModel} vit
 * @param {State} state
 */
function masksOf(vit, state) {
  const heads = state.removedHeads.length === 0 ? null : Array.from({ length: vit.depth }, (_, layer) =>
    Array.from({ length: vit.num_heads }, (_unused, head) => Number(!state.removedHeads.some(([l, h]) => l === layer && h === head))),
  );
  const gone = new Set(state.removedPatches);
  const patches = gone.size === 0 ? null : Array.from({ length: patchesOf(vit) }, (_, patch) => Number(!gone.has(patch)));
  return { headMask: heads, tokenMask: patches };
}

/**
 * @param {"vit" | "cnn"} kind
 * @param {Model[]} models
 * @param {Model | null} chosen
 */
function offerChoice(kind, models, chosen) {
  const select = byId(kind, HTMLSelectElement);
  const offered = models.map(({ id }) => id).join("\n");
  if (select.dataset.offered !== offered) select.replaceChildren(...models.map((model) => make("option", { value: model.id }, model.name)));
  select.dataset.offered = offered;
  select.value = chosen?.id ?? "";
  byId(`choose-${kind}`).hidden = models.length < 2;
}

/**
 * @param {Model} one
 * @param {Model} other
 */
function sameClasses(one, other) {
  return JSON.stringify(one.class_names) === JSON.stringify(other.class_names);
}

/** @param {Model} model */
function factsOf(model) {
  const right = model.accuracy === null ? "" : `, ${percent(model.accuracy)} right on its test set`;
  return `${model.name}: ${thousands(model.parameters)} parameters${right}.`;
}

void new Page().start();
