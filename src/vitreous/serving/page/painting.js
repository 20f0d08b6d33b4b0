/**
 * Paints the session: every part of the page shows the current choices and results.
 *
 * @import { Model, ViTModel } from "./engine.js"
 * @import { MapKind, Overlay } from "./maps.js"
 * @import { Session } from "./session.js"
 * @import { State, View } from "./state.js"
 *
 * @typedef {object} Actions  what the user can do in the parts
 * @property {(change: Partial<State>, predict?: boolean) => void} update
 * @property {(patch: number | null) => void} point
 * @property {(patch: number, byTouch: boolean) => void} pick
 * @property {(patch: number) => void} togglePatch
 * @property {(layer: number, head: number) => void} toggleHead
 * @property {(step: number, change: Partial<State>) => void} enterStep
 */

import { Arithmetic } from "./arithmetic.js";
import { Bars } from "./bars.js";
import { announcement, footer, mapCaption, rearrangement } from "./captions.js";
import { byId, make, makeButton, setAttributes, setText } from "./dom.js";
import { stateFacts } from "./facts.js";
import { HeadGrid } from "./heads.js";
import { Lens } from "./lens.js";
import { PatchMap, picture, positionsPicture, showScale } from "./maps.js";
import { fileName, lookCommand, rearrangedNote } from "./sharing.js";
import { rowsOf, some, someColumns, topClasses } from "./top-classes.js";
import { Tour } from "./tour.js";
import { attentionFrom, patchOffset } from "./vit-maths.js";
import { percent, placeName, signed } from "./words.js";

const ANNOUNCE_AFTER = 900; // ms, so that a screen reader reads the last prediction and not every stroke's

/** @type {Record<View, { title: string, kind: MapKind }>} */
const VIEW_FACTS = {
  patches: { title: "patches", kind: "plain" },
  attention: { title: "attention", kind: "amount" },
  rollout: { title: "rollout", kind: "amount" },
  patch_removal: { title: "patch removal", kind: "signed" },
  relevance: { title: "relevance", kind: "amount" },
  positions: { title: "positions", kind: "positions" },
};

export class Painter {
  #timer = 0;

  /** @param {Session} session @param {Actions} actions */
  constructor(session, actions) {
    this.session = session;
    this.actions = actions;
    this.map = new PatchMap(byId("map"), {
      onPoint: (patch) => actions.point(patch),
      onPick: (patch, byTouch) => actions.pick(patch, byTouch),
    });
    this.heads = new HeadGrid(byId("heads"), {
      onChoose: (layer, head) => actions.update({ layer, head, view: "attention" }),
      onRemove: (layer, head) => actions.toggleHead(layer, head),
    });
    this.bars = new Bars(byId("bars"));
    this.lens = new Lens(byId("lens"), byId("lens-caption"), (layer) => actions.update({ layer, view: "attention" }));
    this.arithmetic = new Arithmetic({
      onQuery: (token) => actions.update({ query: token - Number(session.vit?.has_class_token ?? false) }),
      onKey: (token) => actions.update({ key: token }),
    });
    this.tour = new Tour((step, change) => actions.enterStep(step, change));
  }

  /** Fit the parts to the chosen models, then paint. */
  fit() {
    const { vit, lead, leading, cnn, comparable, hasAttention, shiftStep } = this.session;
    stateFacts(this.session);
    const [height, width] = lead?.image_size ?? [1, 1];
    document.documentElement.style.setProperty("--aspect", `${width} / ${height}`);
    document.documentElement.style.setProperty("--share", String(Math.min(1, width / height))); // a tall image is narrower
    document.documentElement.classList.toggle("no-vit", vit === null);
    document.documentElement.classList.toggle("no-attention", !hasAttention);
    for (const button of document.querySelectorAll("[data-shift]")) {
      const way = { "-1 0": "left", "0 -1": "up", "0 1": "down", "1 0": "right" }[button.getAttribute("data-shift") ?? ""];
      setAttributes(button, { "aria-label": `Move it ${way} by ${shiftStep === 1 ? "one pixel" : `${shiftStep} pixels`}` });
    }
    if (vit === null) {
      byId("arithmetic").hidden = true;
      byId("removed").replaceChildren();
      delete byId("removed").dataset.shown;
      setText("map-caption", `${lead?.name} is not a ViT, so there is no attention to show.`);
    } else {
      this.map.fit(vit);
      this.heads.fit(vit);
      byId("views").replaceChildren(...this.session.views.map((view) => this.#viewButton(vit, view)));
    }
    offerModels("vit", leading, lead);
    offerModels("cnn", comparable, cnn);
    setText("engine-status", footer(this.session));
    this.paint();
  }

  /** @param {ViTModel} vit @param {View} view */
  #viewButton(vit, view) {
    const { session, actions } = this;
    const canvas = make("canvas", { class: "pixels", "aria-hidden": "true" });
    if (view === "positions") positionsPicture(vit, canvas);
    const choose = () =>
      actions.update({ view, key: view === "attention" ? session.state.key : null }, session.slowMaps.stale);
    return makeButton({ class: "view", "data-view": view }, choose, canvas, make("span", {}, VIEW_FACTS[view].title));
  }

  /** Paint new results, with the time they took. @param {number} since  the time of the user's action */
  paintPrediction(since) {
    this.paint();
    requestAnimationFrame(() => {
      const milliseconds = performance.now() - since;
      setText("speed", `${Math.round(milliseconds)} ms`);
      document.dispatchEvent(new CustomEvent("vitreous:predicted", { detail: { milliseconds } }));
    });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => setText("announcement", announcement(this.session)), ANNOUNCE_AFTER);
  }

  paint() {
    const { session } = this;
    const { vit, state, results, query, layer } = session;
    this.tour.show(state.step);
    this.#paintBars();
    this.#paintWhatIf();
    setText("command-text", lookCommand(session));
    setText("file-name", fileName(session));
    setText("command-note", rearrangedNote(session));
    if (vit === null) return;
    this.#paintLens(vit);
    this.#paintRemoved(vit);
    this.heads.paint({
      pixels: results.pixels,
      attention: results.vit?.attention ?? null,
      query,
      layer,
      head: state.head,
      isRemoved: (...head) => session.isHeadRemoved(...head),
    });
    this.#paintMap(vit);
    this.#paintViews(vit);
    this.#paintChoices(vit);
    this.#paintArithmetic(vit);
  }

  #paintBars() {
    const { session } = this;
    const predictions = session.predictions();
    const shown = topClasses(session.classNames.length, predictions.flatMap(({ probabilities }) => probabilities ?? []));
    const selected = predictions.map((prediction) => {
      const { probabilities, before } = prediction;
      return { ...prediction, probabilities: some(probabilities, shown), before: some(before, shown) };
    });
    this.bars.paint(selected, shown.map((index) => session.classNames[index]));
    const all = session.classNames.length;
    setText("other-classes", shown.length < all ? `The most probable of ${all} classes.` : "");
  }

  /** @param {ViTModel} vit */
  #paintLens({ depth, class_names }) {
    const lens = this.session.results.vit?.lens ?? null;
    const shown = topClasses(class_names.length, lens === null ? [] : rowsOf(lens).reverse());
    const names = shown.map((index) => class_names[index]);
    this.lens.paint(lens && someColumns(lens, shown), depth, names, this.session.layer);
  }

  /** @param {ViTModel} vit @param {View} view @returns {Overlay} */
  #overlay(vit, view) {
    const { results, layer, state, query } = this.session;
    const { kind } = VIEW_FACTS[view];
    /** @type {Float32Array | null | undefined} */
    let values = null;
    if (view === "attention" && results.vit?.attention) {
      values = attentionFrom(results.vit.attention, layer, state.head, query, vit).subarray(patchOffset(vit));
    } else if (view === "rollout" || view === "patch_removal" || view === "relevance") {
      values = results.vit?.[view];
    }
    if (!values) return { kind: kind === "positions" ? kind : "plain", values: null, high: 1 };
    // The scale of patch removal ends at 1 % or more, so that it does not exaggerate smaller losses.
    return { kind, values, high: Math.max(view === "patch_removal" ? 0.01 : 0, ...values.map(Math.abs)) };
  }

  /** @param {ViTModel} vit */
  #paintMap(vit) {
    const { session } = this;
    const { state, query, key } = session;
    const overlay = this.#overlay(vit, state.view);
    const { kind, values, high } = overlay;
    const valueText = (/** @type {number} */ value) => (kind === "signed" ? `${signed(100 * value, 1)} %` : percent(value));
    this.map.paint({
      pixels: session.results.pixels,
      overlay,
      removed: new Set(state.removedPatches),
      skipped: new Set(session.skippedPatches),
      query: query >= 0 && (state.view === "attention" || state.view === "positions") ? query : null,
      key: key === null ? null : key - patchOffset(vit),
      apart: state.step === 1,
      describe: (patch) => (values === null ? "" : `, ${VIEW_FACTS[state.view].title} ${valueText(values[patch])}`),
    });
    byId("map").dataset.view = state.view;
    const ends = {
      plain: ["", ""],
      amount: ["0", percent(high)],
      signed: [`−${percent(high)}`, `+${percent(high)}`],
      positions: ["different", "similar"],
    }[kind];
    showScale(byId("scale"), kind, ends);
    setText("map-caption", mapCaption(session, vit, overlay));
  }

  /** @param {ViTModel} vit */
  #paintViews(vit) {
    const { results, state, slowMaps } = this.session;
    for (const button of byId("views").querySelectorAll("button")) {
      const view = /** @type {View} */ (button.dataset.view);
      setAttributes(button, { "aria-pressed": String(view === state.view) });
      const canvas = button.querySelector("canvas");
      if (canvas && view !== "positions") picture(results.pixels, vit, this.#overlay(vit, view), canvas);
      const isSlow = view === "patch_removal" || view === "relevance";
      button.classList.toggle("stale", slowMaps.stale && isSlow && view !== state.view);
    }
  }

  /** @param {ViTModel} vit */
  #paintChoices(vit) {
    const { state, layer, query } = this.session;
    setText("from-readout", vit.has_class_token ? "from the class token" : "from all tokens");
    setText("from-patch", query >= 0 ? `from ${placeName(query, vit.grid)}` : "from a patch");
    setAttributes(byId("from-readout"), { "aria-pressed": String(query < 0) });
    setAttributes(byId("from-patch"), { "aria-pressed": String(query >= 0) });
    setText("remove-head", this.session.isHeadRemoved(layer, state.head) ? "Restore this head" : "Remove this head");
    setAttributes(byId("remove-head"), { disabled: state.head < 0 });
    setText("open-arithmetic", state.key === null ? "Show the arithmetic" : "Hide the arithmetic");
    setAttributes(byId("open-arithmetic"), { "aria-expanded": String(state.key !== null) });
  }

  /** @param {ViTModel} vit */
  #paintArithmetic(vit) {
    const { state, results, layer, key } = this.session;
    byId("arithmetic").hidden = key === null;
    document.documentElement.classList.toggle("with-arithmetic", key !== null);
    if (key === null) return;
    this.arithmetic.paint({
      model: vit,
      result: results.vit,
      layer,
      head: Math.max(0, state.head),
      query: Math.max(0, state.query + patchOffset(vit)),
      key,
      keyRemoved: state.removedPatches.includes(key - patchOffset(vit)),
    });
  }

  /** @param {ViTModel} vit */
  #paintRemoved(vit) {
    const { session, actions } = this;
    const { removedPatches, removedHeads } = session.state;
    const place = byId("removed");
    const shown = JSON.stringify([vit.id, session.cnn?.id, removedPatches, removedHeads]);
    if (place.dataset.shown === shown) return; // the buttons keep their focus
    place.dataset.shown = shown;
    const chip = (/** @type {string} */ name, /** @type {() => void} */ restore) => {
      const cross = make("span", { "aria-hidden": "true" }, "×");
      return makeButton({ class: "chip", "aria-label": `Restore ${name}` }, restore, name, cross);
    };
    const chips = [
      ...removedPatches.map((patch) => chip(`patch ${placeName(patch, vit.grid)}`, () => actions.togglePatch(patch))),
      ...removedHeads.map(([layer, head]) =>
        chip(`head ${head + 1} of layer ${layer + 1}`, () => actions.toggleHead(layer, head)),
      ),
    ];
    place.replaceChildren(...chips);
    if (chips.length === 0) return;
    const restoreAll = () => actions.update({ removedPatches: [], removedHeads: [] }, true);
    place.prepend(make("span", { class: "label" }, "Removed"));
    place.append(makeButton({ class: "plain" }, restoreAll, "Restore all"));
    if (removedPatches.length === 0 || session.cnn === null) return;
    const note = `${session.cnn.name} has no tokens to remove: it gets the patch painted black instead.`;
    place.append(make("span", { class: "soft small" }, note));
  }

  #paintWhatIf() {
    const { state, vit, cnn } = this.session;
    const changes = rearrangement(state);
    const who = vit !== null && cnn !== null ? "Both models now see" : "The model now sees";
    const status = changes ? `${who} it ${changes}.` : vit === null ? "Shift it." : "Shift it, or shuffle its patches.";
    setText("whatif-status", status);
    byId("reset-whatif").hidden = changes === "";
    setAttributes(byId("shuffle"), { "aria-pressed": String(state.shuffle !== 0) });
  }
}

/** @param {"vit" | "cnn"} kind @param {Model[]} models @param {Model | null} chosen */
function offerModels(kind, models, chosen) {
  const select = byId(kind, HTMLSelectElement);
  const offered = models.map(({ id }) => id).join("\n");
  if (select.dataset.offered !== offered) {
    select.replaceChildren(...models.map((model) => make("option", { value: model.id }, model.name)));
    select.dataset.offered = offered;
  }
  select.value = chosen?.id ?? "";
  byId(`choose-${kind}`).hidden = models.length < 2;
}
