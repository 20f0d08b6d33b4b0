/**
 * The guided tour: seven steps through the paper's equations on the user's own input. Each step chooses what the map
 * shows and highlights the parts of the page it explains; its text and equation are in index.html.
 *
 * @import { State } from "./state.js"
 */

import { byId, make, makeButton, onClick, setAttributes, setText } from "./dom.js";
import { TOUR_STEPS } from "./state.js";
import { range } from "./vit-maths.js";

/** @type {Record<number, { lit: string[], set: Partial<State> }>} */
const STEPS = {
  1: { lit: ["pad", "steps", "map"], set: { view: "patches", key: null } },
  2: { lit: ["map", "views"], set: { view: "positions", key: null } },
  3: { lit: ["map", "from", "arithmetic"], set: { view: "attention", key: 0, query: -1 } },
  4: { lit: ["heads", "map", "from"], set: { view: "attention", key: null } },
  5: { lit: ["lens", "heads", "pad"], set: { view: "attention", key: null } },
  6: { lit: ["bars", "pad"], set: { view: "attention", key: null } },
  7: { lit: ["whatif", "map", "bars", "removed", "heads", "views"], set: { view: "patch_removal", key: null } },
};

export class Tour {
  #panel = byId("tour");
  /** @type {HTMLButtonElement[]} */
  #dots = [];

  /** @param {(step: number, set: Partial<State>) => void} onStep  step 0: the tour is over */
  constructor(onStep) {
    this.onStep = onStep;
    this.step = 0;
    this.#dots = range(TOUR_STEPS).map((i) => {
      const title = this.#title(i + 1);
      return makeButton({ "aria-label": `Step ${i + 1}: ${title}`, title }, () => this.go(i + 1), String(i + 1));
    });
    byId("tour-dots").replaceChildren(...this.#dots.map((dot) => make("li", {}, dot)));
    onClick("mode-tour", () => this.go(1));
    onClick("mode-free", () => this.go(0));
    onClick("tour-back", () => this.go(this.step - 1));
    onClick("tour-next", () => this.go(this.step + 1));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.step > 0) this.go(0);
    });
  }

  /** @param {number} step */
  go(step) {
    const next = step > TOUR_STEPS ? 0 : Math.max(0, step);
    this.onStep(next, STEPS[next]?.set ?? { key: null });
    if (next > 0) this.#bringIntoView(next);
  }

  /** @param {number} step */
  #title(step) {
    return this.#panel.querySelector(`article[data-step="${step}"] h2`)?.textContent ?? "";
  }

  /** @param {number} step */
  show(step) {
    if (this.step === step && this.#panel.hidden === (step === 0)) return;
    this.step = step;
    this.#panel.hidden = step === 0;
    setAttributes(byId("mode-tour"), { "aria-pressed": String(step > 0) });
    setAttributes(byId("mode-free"), { "aria-pressed": String(step === 0) });
    document.documentElement.classList.toggle("touring", step > 0);
    for (const article of this.#panel.querySelectorAll("article")) {
      const shown = Number(article.dataset.step) === step;
      article.classList.toggle("shown", shown);
      setAttributes(article, { "aria-hidden": shown ? null : "true" });
      const title = article.querySelector("h2");
      if (title) setAttributes(title, { id: shown ? "tour-title" : null });
    }
    // the focus stays on "Next", so that pressing it again goes on: the new step is announced instead
    setText("tour-status", step > 0 ? `Step ${step} of ${TOUR_STEPS}: ${this.#title(step)}` : "");
    this.#dots.forEach((dot, i) => setAttributes(dot, { "aria-current": i + 1 === step ? "step" : null }));
    setAttributes(byId("tour-back"), { disabled: step <= 1 });
    byId("tour-next").textContent = step === TOUR_STEPS ? "Done" : "Next";
    const lit = new Set(STEPS[step]?.lit ?? []);
    for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-part]"))) {
      part.classList.toggle("recede", step > 0 && !lit.has(part.dataset.part ?? ""));
    }
  }

  /**
   * On a phone the part explained may be far below; on a wide screen only the arithmetic needs room.
   * @param {number} step
   */
  #bringIntoView(step) {
    if (innerWidth >= 760) {
      if (step === 3) this.#panel.scrollIntoView({ block: "start" }); // room for the map above the arithmetic
      return;
    }
    const part = document.querySelector(`[data-part="${STEPS[step].lit[step === 1 ? 1 : 0]}"]`);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    requestAnimationFrame(() => part?.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" }));
  }
}
