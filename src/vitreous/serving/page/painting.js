/**
 * Paints the session: every part of the page shows the current choices and results.
 *
 * @import { Model, ViTModel } from "./engine.js"
 * @import { MapKind, Overlay } from "./maps.js"
 * @import { Session } from "./session.js"
 * @import { State, View } from "./state.js"
 *
 * @typedef {object} PageActions  what the user can do in the parts
 * @property {(change: Partial<State>, predict?: boolean) => void} update
 * @property {(patch: number | null) => void} point
 * @property {(patch: number, byTouch: boolean) => void} pick
 * @property {(patch: number) => void} togglePatch
 * @property {(layer: number, head: number) => void} toggleHead
 * @property {(step: number, change: Partial<State>) => void} enterStep
 * @typedef {PageActions & import("./diagram.js").Actions} Actions
 */

import { Arithmetic } from "./arithmetic.js";
import { Bars } from "./bars.js";
import { announcement, footer, mapCaption, rearrangement } from "./captions.js";
import { Diagram } from "./diagram.js";
import { byId, make, makeButton, setAttributes, setText } from "./dom.js";
import { takesDrawings } from "./engine.js";
import { stateFacts } from "./facts.js";
import { Lens } from "./lens.js";
import { PatchMap, picture, positionsPicture, showScale } from "./maps.js";
import { paintRemoved } from "./removed.js";
import { fileName, lookCommand, rearrangedNote } from "./sharing.js";
import { rowsOf, some, someColumns, topClasses } from "./top-classes.js";
import { text } from "./texts.js";
import { Tour } from "./tour.js";
import { Tracing } from "./tracing.js";
import { attentionFrom, patchOffset } from "./vit-maths.js";
import { percent, placeName, signed } from "./words.js";

const ANNOUNCE_AFTER = 900; // ms, so that a screen reader reads the last prediction and not every stroke's

/** @type {Record<View, MapKind>} */
const MAP_KINDS = {
  patches: "plain",
  attention: "amount",
  rollout: "amount",
  patch_removal: "signed",
  relevance: "amount",
  positions: "positions",
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
    this.tracing = new Tracing(() => this.#paintDiagram());
    this.diagram = new Diagram(session, this.tracing, {
      chooseHead: (...head) => actions.chooseHead(...head),
      toggleHead: (...head) => actions.toggleHead(...head),
      openLayer: (layer) => actions.openLayer(layer),
      openNode: (...place) => actions.openNode(...place),
      openWeight: (...pair) => actions.openWeight(...pair),
      goTo: (level) => actions.goTo(level),
    });
    this.bars = new Bars(byId("bars"));
    this.lens = new Lens(byId("lens"), byId("lens-caption"), (layer) => actions.update({ layer, view: "attention" }));
    this.arithmetic = new Arithmetic(session, {
      onQuery: (token) => actions.update({ query: token - Number(session.vit?.has_class_token ?? false) }),
      onKey: (token) => actions.update({ key: token }),
      onComponent: (at) => actions.update({ at }),
    });
    this.tour = new Tour(
      (step, change) => actions.enterStep(step, change),
      (part) => this.diagram.focusOn(part),
    );
  }

  /** Fit the parts to the chosen models, then paint. */
  fit() {
    const { vit, lead, leading, cnn, comparable, hasAttention, shiftStep } = this.session;
    this.tour.fill(stateFacts(this.session));
    const [height, width] = lead?.image_size ?? [1, 1];
    document.documentElement.style.setProperty("--aspect", `${width} / ${height}`);
    document.documentElement.style.setProperty("--share", String(Math.min(1, width / height))); // a tall image is narrower
    document.documentElement.classList.toggle("no-vit", vit === null);
    document.documentElement.classList.toggle("no-attention", !hasAttention);
    for (const button of document.querySelectorAll("[data-shift]")) {
      const way = /** @type {const} */ ({ "-1 0": "left", "0 -1": "up", "0 1": "down", "1 0": "right" })[button.getAttribute("data-shift") ?? ""];
      setAttributes(button, { "aria-label": way ? text(`whatif.${way}`, shiftStep) : null });
    }
    if (vit === null) {
      byId("arithmetic").hidden = true;
      byId("removed").replaceChildren();
      delete byId("removed").dataset.shown;
      setText("map-caption", text("map.notViT", lead?.name));
    } else {
      this.map.fit(vit);
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
    return makeButton({ class: "view", "data-view": view }, choose, canvas, make("span", {}, text(`view.${view}`)));
  }

  /** Paint new results, with the time they took. @param {number} since  the time of the user's action */
  paintPrediction(since) {
    const { engine, vit, results } = this.session;
    if (engine !== null && vit !== null && results.vit !== null) {
      const masks = { headMask: this.session.masks().headMask?.flat() ?? null, kept: results.vit.kept ?? null };
      this.tracing.request({ engine, model: vit, pixels: results.pixels, masks });
    }
    this.paint();
    this.diagram.pulse();
    requestAnimationFrame(() => {
      const milliseconds = performance.now() - since;
      if (!this.session.results.isBlank) setText("speed", `${Math.round(milliseconds)} ms`);
      document.dispatchEvent(new CustomEvent("vitreous:predicted", { detail: { milliseconds } }));
    });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => setText("announcement", announcement(this.session)), ANNOUNCE_AFTER);
  }

  paint() {
    const { session } = this;
    const { vit, state, results } = session;
    if (results.isBlank) this.#clear();
    this.tour.show(state.step);
    this.#paintBars();
    this.#paintWhatIf();
    setText("command-intro", text("command.intro", session.lead === null || takesDrawings(session.lead)));
    setText("command-text", lookCommand(session));
    setText("file-name", fileName(session));
    setText("command-note", rearrangedNote(session));
    if (vit === null) return;
    this.#paintLens(vit);
    paintRemoved(session, this.actions, vit);
    this.#paintMap(vit);
    this.#paintViews(vit);
    this.#paintChoices(vit);
    this.#paintDiagram();
  }

  /** Show nothing of the input before. */
  #clear() {
    this.tracing.forget();
    clearTimeout(this.#timer);
    setText("speed", "");
    setText("announcement", "");
  }

  #paintDiagram() {
    this.diagram.paint();
    this.arithmetic.paint(this.tracing);
    if (this.session.state.step > 0) this.tour.light();
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
    setText("other-classes", shown.length < all ? text("predictions.most", all) : "");
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
    const kind = MAP_KINDS[view];
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
      describe: (patch) => (values === null ? "" : `${text(`view.${state.view}`)} ${valueText(values[patch])}`),
    });
    byId("map").dataset.view = state.view;
    const ends = {
      plain: ["", ""],
      amount: ["0", percent(high)],
      signed: [`−${percent(high)}`, `+${percent(high)}`],
      positions: [text("scale.different"), text("scale.similar")],
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
    const { state, layer, query, opened } = this.session;
    setText("from-readout", text(vit.has_class_token ? "from.class" : "from.all"));
    setText("from-patch", query >= 0 ? text("from.place", placeName(query, vit.grid)) : text("from.patch"));
    setAttributes(byId("from-readout"), { "aria-pressed": String(query < 0) });
    setAttributes(byId("from-patch"), { "aria-pressed": String(query >= 0) });
    setText("remove-head", text(this.session.isHeadRemoved(layer, state.head) ? "heads.restore" : "heads.remove"));
    setAttributes(byId("remove-head"), { disabled: state.head < 0 });
    setText("open-arithmetic", text(opened === null ? "arithmetic.show" : "arithmetic.hide"));
    setAttributes(byId("open-arithmetic"), { "aria-expanded": String(opened !== null) });
  }

  #paintWhatIf() {
    const { state, vit, cnn } = this.session;
    const changes = rearrangement(state);
    const who = text(vit !== null && cnn !== null ? "whatif.both" : "whatif.one", changes);
    setText("whatif-status", changes ? who : text(vit === null ? "whatif.shift" : "whatif.either"));
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
