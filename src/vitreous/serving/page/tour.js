/**
 * The guided tour: seven steps through the paper's equations on the user's own input. Each step moves the camera over
 * the diagram, chooses what the map shows and highlights the parts it explains. The equations are in index.html.
 *
 * @import { Facts } from "./facts.js"
 * @import { State } from "./state.js"
 *
 * @typedef {object} Step
 * @property {string[]} lit  the parts it explains; on a phone the first one is brought into view
 * @property {Partial<State>} set
 * @property {string | null} camera  the part of the diagram to move to; null: all of it
 */

import { byId, make, makeButton, onClick, setAttributes, setText } from "./dom.js";
import { TOUR_STEPS } from "./state.js";
import { text } from "./texts.js";
import { range } from "./vit-maths.js";

const CLOSED = /** @type {const} */ ({ key: null, node: null, level: "model" });

/** @type {Record<number, Step>} */
const STEPS = {
  1: { lit: ["map", "steps", "pad", "start"], set: { ...CLOSED, view: "patches" }, camera: ".start" },
  2: { lit: ["map", "views", "start"], set: { ...CLOSED, view: "positions" }, camera: ".start" },
  3: { lit: ["diagram", "map", "from", "arithmetic"], set: { ...CLOSED, level: "head", view: "attention", key: 0, query: -1 }, camera: null },
  4: { lit: ["diagram", "map", "from", "wall"], set: { ...CLOSED, view: "attention" }, camera: null },
  5: { lit: ["diagram", "lens", "pad"], set: { ...CLOSED, level: "layer", view: "attention" }, camera: null },
  6: { lit: ["out", "bars", "pad"], set: { ...CLOSED, view: "attention" }, camera: ".out" },
  7: { lit: ["whatif", "map", "bars", "removed", "views", "diagram", "wall", "play"], set: { ...CLOSED, view: "patch_removal" }, camera: null },
};

/** Return a step's view of the diagram for a link that names the step alone. @param {number} step @returns {Partial<State>} */
export function viewOf(step) {
  return STEPS[step]?.set ?? {};
}

export class Tour {
  #panel = byId("tour");
  /** @type {HTMLButtonElement[]} */
  #dots = [];

  /** @param {(step: number, set: Partial<State>) => void} onStep  step 0: the tour is over @param {(part: string | null) => void} onCamera */
  constructor(onStep, onCamera) {
    this.onStep = onStep;
    this.onCamera = onCamera;
    this.step = 0;
    this.#dots = range(TOUR_STEPS).map((i) => {
      const title = this.#title(i + 1);
      return makeButton({ "aria-label": text("tour.step", i + 1, title), title }, () => this.go(i + 1), String(i + 1));
    });
    byId("tour-dots").replaceChildren(...this.#dots.map((dot) => make("li", {}, dot)));
    onClick("start-tour", () => this.go(1));
    onClick("tour-end", () => this.go(0));
    onClick("tour-back", () => this.go(this.step - 1));
    onClick("tour-next", () => this.go(this.step + 1));
  }

  /** Write the steps' sentences for the chosen models. @param {Facts} facts */
  fill(facts) {
    for (const article of this.#panel.querySelectorAll("article")) {
      const words = text(/** @type {"tour.1.words"} */ (`tour.${article.dataset.step}.words`), facts);
      article.querySelector(".words p")?.replaceChildren(...emphasised(words));
    }
  }

  /** @param {number} step */
  go(step) {
    const next = step > TOUR_STEPS ? 0 : Math.max(0, step);
    this.onStep(next, STEPS[next]?.set ?? CLOSED);
    if (next > 0) this.#bringIntoView(next);
  }

  /** @param {number} step */
  #title(step) {
    return text(/** @type {"tour.1.title"} */ (`tour.${step}.title`));
  }

  /** @param {number} step */
  show(step) {
    if (this.step === step && this.#panel.hidden === (step === 0)) return;
    this.step = step;
    this.#panel.hidden = step === 0;
    document.documentElement.classList.toggle("touring", step > 0);
    document.documentElement.dataset.step = String(step);
    for (const article of this.#panel.querySelectorAll("article")) {
      const shown = Number(article.dataset.step) === step;
      article.classList.toggle("shown", shown);
      setAttributes(article, { "aria-hidden": shown ? null : "true" });
      const title = article.querySelector("h2");
      if (title) setAttributes(title, { id: shown ? "tour-title" : null });
    }
    // the focus stays on "Next", so that pressing it again goes on: the new step is announced instead
    setText("tour-status", step > 0 ? text("tour.stepOf", step, TOUR_STEPS, this.#title(step)) : "");
    this.#dots.forEach((dot, i) => setAttributes(dot, { "aria-current": i + 1 === step ? "step" : null }));
    setAttributes(byId("tour-back"), { disabled: step <= 1 });
    setText("tour-next", text(step === TOUR_STEPS ? "tour.done" : "tour.next"));
    this.light();
  }

  /** Light the parts of the step, also those that were made since. */
  light() {
    const { step } = this;
    const lit = new Set(STEPS[step]?.lit ?? []);
    for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-part]"))) {
      const holdsLit = [...lit].some((name) => part.querySelector(`[data-part="${name}"]`));
      part.classList.toggle("recede", step > 0 && !lit.has(part.dataset.part ?? "") && !holdsLit);
      part.classList.toggle("lit", step > 0 && lit.has(part.dataset.part ?? ""));
    }
    this.onCamera(STEPS[step]?.camera ?? null);
  }

  /** On a phone the part explained may be far below. @param {number} step */
  #bringIntoView(step) {
    const part = document.querySelector(`[data-part="${STEPS[step].lit[0]}"]`);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const options = /** @type {const} */ ({ behavior: still ? "auto" : "smooth", block: "start" });
    if (innerWidth >= 760) this.#panel.scrollIntoView({ block: "nearest" });
    else requestAnimationFrame(() => part?.scrollIntoView(options));
  }
}

/** Return a text as nodes, *so* marked words emphasised. @param {string} words */
function emphasised(words) {
  return words.split("*").map((part, i) => (i % 2 === 1 ? make("em", {}, part) : part));
}
