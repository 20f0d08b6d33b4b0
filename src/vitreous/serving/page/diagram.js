/**
 * The living diagram: the whole model, one layer or one head, with a way back up; a pulse runs through it with every new
 * prediction, and the tour's camera moves over it.
 *
 * @import { Behaviour } from "./behaviours.js"
 * @import { Session } from "./session.js"
 * @import { Tracing } from "./tracing.js"
 * @import { DiagramActions } from "./wall.js"
 *
 * @typedef {DiagramActions & { openWeight: (query: number, key: number) => void, goTo: (level: "model" | "layer" | "head" | "number") => void }} Actions
 */

import { measureHeads } from "./behaviours.js";
import { scalesOf } from "./nodes.js";
import { byId, make, makeButton, setAttributes, setText } from "./dom.js";
import { HeadView } from "./head-view.js";
import { LayerView } from "./layer-view.js";
import { text } from "./texts.js";
import { Wall } from "./wall.js";

const PULSE = 400; // ms, the whole way
const NEAR = 1.4; // how close the camera comes
const LEVELS = /** @type {const} */ (["model", "layer", "head"]);

export class Diagram {
  #place = byId("diagram");
  /** @type {Wall | LayerView | HeadView | null} */
  #view = null;
  #shown = "";
  #level = 0;
  #pulseEnds = 0;
  /** @type {{ of: unknown, behaviours: Behaviour[][] | null }} */
  #measured = { of: null, behaviours: null };

  /** @param {Session} session @param {Tracing} tracing @param {Actions} actions */
  constructor(session, tracing, actions) {
    this.session = session;
    this.tracing = tracing;
    this.actions = actions;
  }

  paint() {
    const { session } = this;
    const { vit } = session;
    if (vit === null) return;
    const traces = this.tracing.of(vit);
    this.#show();
    this.#view?.paint(session, traces, this.#behaviours());
    this.#paintCrumbs();
    const { trace, missing } = traces;
    const reason = missing === null ? "" : text(`missing.${missing}`);
    setText("diagram-note", session.results.isBlank ? "" : reason);
    const scales = trace && scalesOf(trace);
    byId("scales").hidden = scales === null;
    if (scales) setText("scales-words", text("scales", scales));
  }

  /** Measure the heads once per result. */
  #behaviours() {
    const { results, vit } = this.session;
    const attention = results.vit?.attention;
    if (!attention || vit === null) return null;
    if (this.#measured.of !== attention) {
      this.#measured = { of: attention, behaviours: measureHeads(attention, results.pixels, vit, results.vit?.kept) };
    }
    return this.#measured.behaviours;
  }

  /** Build the level's view where it is another one than before. */
  #show() {
    const { vit, layer, state, level } = this.session;
    if (vit === null) return;
    const head = Math.max(0, state.head);
    const shown = JSON.stringify([vit.id, level, ...(level === "model" ? [] : [layer]), ...(level === "head" ? [head] : [])]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const hadFocus = this.#place.contains(document.activeElement);
    if (level === "model") this.#view = new Wall(vit, this.actions);
    else if (level === "layer") this.#view = new LayerView(vit, layer, this.actions);
    else this.#view = new HeadView(vit, layer, head, this.actions);
    const depth = LEVELS.indexOf(level);
    this.#view.element.classList.add(depth > this.#level ? "zoom-in" : depth < this.#level ? "zoom-out" : "same");
    this.#level = depth;
    this.#place.dataset.level = level;
    this.#place.replaceChildren(this.#view.element);
    if (hadFocus) byId("crumbs").querySelector("button")?.focus({ preventScroll: true });
  }

  #paintCrumbs() {
    const { level, layer, state, opened } = this.session;
    const depth = LEVELS.indexOf(level);
    const names = [text("crumb.model"), text("layer", layer + 1), text("head", Math.max(0, state.head) + 1)].slice(0, depth + 1);
    if (opened !== null) names.push(text(`node.${opened}`));
    const place = byId("crumbs");
    const shown = JSON.stringify(names);
    if (place.dataset.shown === shown) return;
    place.dataset.shown = shown;
    const items = names.map((name, i) => {
      const isLast = i === names.length - 1;
      const button = makeButton({ class: "crumb", "aria-current": isLast ? "location" : null }, () => this.actions.goTo(LEVELS[i] ?? "number"), name);
      return make("li", {}, button);
    });
    const focused = [...place.querySelectorAll("button")].findIndex((button) => button === document.activeElement);
    place.replaceChildren(...items);
    if (focused >= 0) items[Math.min(focused, items.length - 1)].querySelector("button")?.focus();
  }

  /** Let a pulse run through, unless one still does or motion is unwanted. */
  pulse() {
    const now = performance.now();
    if (now < this.#pulseEnds || this.#view === null || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.#pulseEnds = now + PULSE;
    const { stages } = this.#view;
    const each = PULSE / (stages.length + 1);
    stages.forEach((stage, i) => {
      const color = "color-mix(in srgb, var(--accent) 26%, transparent)";
      stage.animate([{ backgroundColor: color }, { backgroundColor: "transparent" }], { duration: 2 * each, delay: i * each });
    });
  }

  /**
   * Move the camera to a part of the diagram; null: back to the whole.
   * @param {string | null} part  a selector
   */
  focusOn(part) {
    const target = part === null ? null : this.#place.querySelector(part);
    const { element } = this.#view ?? {};
    if (!element) return;
    element.style.transform = "";
    setAttributes(this.#place, { "data-camera": target ? "near" : null });
    if (!(target instanceof HTMLElement) || innerWidth < 760) return;
    const [whole, near] = [element.getBoundingClientRect(), target.getBoundingClientRect()];
    const scale = Math.min(NEAR, (0.96 * whole.width) / near.width);
    const x = whole.width / 2 - scale * (near.left - whole.left + near.width / 2);
    const shift = Math.max(whole.width * (1 - scale), Math.min(0, x)); // nothing beyond the diagram's borders comes into view
    element.style.transform = `translateX(${shift}px) scale(${scale})`;
  }
}
