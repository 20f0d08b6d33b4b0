/**
 * The guided tour: seven steps through the paper's equations on the person's own drawing. Each step chooses what the
 * map shows and lights the part of the page it speaks of; its words and mathematics stand in index.html.
 *
 * @typedef {import("./engine.js").ViTModel} ViTModel
 * @typedef {import("./state.js").State} State
 */

import { byId, make, say, setAttributes } from "./dom.js";
import { TOUR_STEPS } from "./state.js";
import { patchesOf } from "./vit-maths.js";
import { signed } from "./words.js";

/** @type {Record<number, { lit: string[], set: Partial<State> }>} */
const STEPS = {
  1: { lit: ["pad", "steps", "map"], set: { view: "patches", key: null } },
  2: { lit: ["map", "views"], set: { view: "positions", key: null } },
  3: { lit: ["map", "from", "arithmetic"], set: { view: "attention", key: 0, query: -1 } },
  4: { lit: ["heads", "map", "from"], set: { view: "attention", key: null } },
  5: { lit: ["lens", "heads", "pad"], set: { view: "attention", key: null } },
  6: { lit: ["bars", "pad"], set: { view: "attention", key: null } },
  7: { lit: ["whatif", "map", "bars", "removed", "heads", "views"], set: { view: "occlusion", key: null } },
};

export class Tour {
  #panel = byId("tour");
  /** @type {HTMLButtonElement[]} */
  #dots = [];

  /** @param {(step: number, set: Partial<State>) => void} onStep  step 0: the tour is over */
  constructor(onStep) {
    this.onStep = onStep;
    this.#dots = Array.from({ length: TOUR_STEPS }, (_, i) => {
      const title = this.#article(i + 1)?.querySelector("h2")?.textContent ?? "";
      const dot = make("button", { type: "button", "aria-label": `Step ${i + 1}: ${title}`, title }, String(i + 1));
      dot.addEventListener("click", () => this.go(i + 1));
      return dot;
    });
    byId("tour-dots").replaceChildren(...this.#dots.map((dot) => make("li", {}, dot)));
    byId("mode-tour").addEventListener("click", () => this.go(1));
    byId("mode-free").addEventListener("click", () => this.go(0));
    byId("tour-back").addEventListener("click", () => this.go(this.step - 1));
    byId("tour-next").addEventListener("click", () => this.go(this.step + 1));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.step > 0) this.go(0);
    });
    this.step = 0;
  }

  /** @param {number} step */
  go(step) {
    const next = step > TOUR_STEPS ? 0 : Math.max(0, step);
    this.onStep(next, STEPS[next]?.set ?? { key: null });
    if (next > 0) this.#bringIntoView(next);
  }

  /** @param {number} step */
  #article(step) {
    return this.#panel.querySelector(`article[data-step="${step}"]`);
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
    // the focus stays on "Next", so that the keys lead on: the new step is announced instead
    const title = this.#article(step)?.querySelector("h2")?.textContent;
    say(byId("tour-said"), title ? `Step ${step} of ${TOUR_STEPS}: ${title}` : "");
    this.#dots.forEach((dot, i) => setAttributes(dot, { "aria-current": i + 1 === step ? "step" : null }));
    setAttributes(byId("tour-back"), { disabled: step <= 1 });
    byId("tour-next").textContent = step === TOUR_STEPS ? "Done" : "Next";
    const lit = new Set(STEPS[step]?.lit ?? []);
    for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-part]"))) {
      part.classList.toggle("recede", step > 0 && !lit.has(part.dataset.part ?? ""));
    }
  }

  /**
   * On a phone the part spoken of may be far below; on a wide screen only the arithmetic needs room.
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

  /**
   * The numbers of the model at hand, put into the words.
   * @param {ViTModel} model
   */
  tell(model) {
    const [tall, wide] = model.patch_size;
    /** @type {Record<string, string>} */
    const facts = {
      patches: String(patchesOf(model)),
      "patch-size": `${tall} × ${wide}`,
      "patch-numbers": String(tall * wide * model.channels),
      dim: String(model.dim),
      heads: String(model.num_heads),
      depth: String(model.depth),
      "cells-note": model.cells.note && `${model.cells.note} `,
      ...likeness(model),
    };
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (this.#panel.querySelectorAll("[data-fact]"))) {
      element.textContent = facts[element.dataset.fact ?? ""] ?? "";
    }
    /** @type {Record<string, boolean>} */
    const when = {
      "class-token": model.has_class_token,
      "no-class-token": !model.has_class_token,
      "exact-cells": model.cells.exact,
      "other-cells": !model.cells.exact,
      positions: model.position_similarity !== null,
    };
    for (const element of this.#panel.querySelectorAll("[data-when]")) {
      element.classList.toggle("not-so", !when[element.getAttribute("data-when") ?? ""]);
    }
  }
}

/**
 * How alike the positions of neighbours are, and of all other pairs, on average.
 * @param {ViTModel} model
 * @returns {Record<string, string>}
 */
function likeness({ position_similarity: similarity, grid }) {
  if (similarity === null) return {};
  const sums = { near: { total: 0, count: 0 }, far: { total: 0, count: 0 } };
  similarity.forEach((row, one) =>
    row.forEach((value, other) => {
      const down = Math.abs(Math.floor(one / grid[1]) - Math.floor(other / grid[1]));
      const across = Math.abs((one % grid[1]) - (other % grid[1]));
      if (one === other) return;
      const sum = down + across === 1 ? sums.near : sums.far;
      sum.total += value;
      sum.count += 1;
    }),
  );
  const mean = (/** @type {{ total: number, count: number }} */ { total, count }) => signed(count > 0 ? total / count : 0);
  return { near: mean(sums.near), far: mean(sums.far) };
}
