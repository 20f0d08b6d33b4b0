/**
 * The logit lens: a row a layer, a column a class; what the model would answer if it stopped there.
 *
 * @typedef {import("./engine.js").Tensor} Tensor
 */

import { make, say } from "./dom.js";
import { largest } from "./vit-maths.js";
import { percent } from "./words.js";

const LEVELS = 8; // the steps of the stylesheet's amounts
const LEAST_SHOWN = 0.02; // less than this stays paper: a field of faint colour says nothing

export class Lens {
  /** @type {HTMLElement[][]} */
  #cells = [];
  /** @type {HTMLElement[]} */
  #rows = [];
  #shaped = "";

  /**
   * @param {HTMLElement} place
   * @param {HTMLElement} caption
   * @param {(layer: number) => void} onChoose
   */
  constructor(place, caption, onChoose) {
    this.place = place;
    this.caption = caption;
    this.onChoose = onChoose;
  }

  /**
   * @param {number} layers
   * @param {string[]} classNames
   */
  #shape(layers, classNames) {
    const shaped = JSON.stringify([layers, classNames]);
    if (shaped === this.#shaped) return;
    this.#shaped = shaped;
    const names = classNames.map((name) => make("th", { scope: "col", title: name }, make("span", {}, name)));
    this.#cells = [];
    this.#rows = Array.from({ length: layers + 1 }, (_, layer) => {
      const cells = classNames.map(() => make("td"));
      this.#cells.push(cells);
      /** @type {Node} */
      let name = document.createTextNode("patches");
      if (layer > 0) {
        const button = make("button", { type: "button", class: "plain", "aria-label": `Show layer ${layer}` }, `layer ${layer}`);
        button.addEventListener("click", () => this.onChoose(layer - 1));
        name = button;
      }
      return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
    });
    const head = make("thead", {}, make("tr", {}, make("td"), ...names));
    this.place.replaceChildren(make("table", { class: "lens-table" }, head, make("tbody", {}, ...this.#rows)));
  }

  /**
   * @param {Tensor | null} lens  (layers + 1, classes)
   * @param {number} layers
   * @param {string[]} classNames
   * @param {number} chosen  the layer shown in the map
   */
  paint(lens, layers, classNames, chosen) {
    this.#shape(layers, classNames);
    const classes = classNames.length;
    /** @type {number[]} */
    const answers = [];
    this.#cells.forEach((cells, row) => {
      const shares = lens?.data.subarray(row * classes, (row + 1) * classes);
      const best = shares ? largest(shares) : -1;
      answers.push(best);
      this.#rows[row].classList.toggle("chosen", row === chosen + 1);
      cells.forEach((cell, c) => {
        const share = shares?.[c] ?? 0;
        cell.dataset.level = String(share < LEAST_SHOWN ? 0 : Math.min(LEVELS, 1 + Math.floor(share * LEVELS)));
        cell.classList.toggle("best", c === best);
        say(cell, c === best ? String(Math.round(100 * share)) : "");
        cell.title = shares ? `${classNames[c]}: ${percent(share)}` : "";
      });
    });
    say(this.caption, lens === null ? "" : sentence(answers, classNames));
  }
}

/**
 * @param {number[]} answers  by layer
 * @param {string[]} classNames
 */
function sentence(answers, classNames) {
  const last = answers[answers.length - 1];
  let from = answers.length - 1;
  while (from > 0 && answers[from - 1] === last) from -= 1;
  const reading = "Each row reads the stream after a layer, as percent.";
  if (from === 0) return `${reading} The answer ${classNames[last]} stands from the start.`;
  return `${reading} From layer ${from} on it is ${classNames[last]}; before, it was ${classNames[answers[from - 1]]}.`;
}
