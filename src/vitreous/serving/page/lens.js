/**
 * The logit lens: one row per layer, one column per class; the prediction if the model stopped there.
 *
 * @import { Tensor } from "./engine.js"
 */

import { make, makeButton, setText } from "./dom.js";
import { text } from "./texts.js";
import { argmax, range } from "./vit-maths.js";
import { percent } from "./words.js";

const LEVELS = 8; // of the stylesheet's amount colours
const LEAST_SHOWN = 0.02; // smaller probabilities get no colour, or the whole table would be faintly coloured

export class Lens {
  /** @type {{ row: HTMLElement, cells: HTMLElement[] }[]} */
  #rows = [];
  #fitted = "";

  /** @param {HTMLElement} place @param {HTMLElement} caption @param {(layer: number) => void} onChoose */
  constructor(place, caption, onChoose) {
    this.place = place;
    this.caption = caption;
    this.onChoose = onChoose;
  }

  /** @param {number} layers @param {string[]} classNames */
  #fit(layers, classNames) {
    const fitted = JSON.stringify([layers, classNames]);
    if (fitted === this.#fitted) return;
    this.#fitted = fitted;
    this.#rows = range(layers + 1).map((layer) => {
      const cells = classNames.map(() => make("td"));
      const choose = () => this.onChoose(layer - 1);
      const button = makeButton({ class: "plain", "aria-label": text("lens.show", layer) }, choose, text("lens.layer", layer));
      const header = make("th", { scope: "row" }, layer === 0 ? text("view.patches") : button);
      return { row: make("tr", {}, header, ...cells), cells };
    });
    const names = classNames.map((name) => make("th", { scope: "col", title: name }, make("span", {}, name)));
    const head = make("thead", {}, make("tr", {}, make("td"), ...names));
    const body = make("tbody", {}, ...this.#rows.map(({ row }) => row));
    const inWords = classNames.length > 5 && classNames.some((name) => name.length > 3); // too long for its column
    this.place.replaceChildren(make("table", { class: `lens-table${inWords ? " words" : ""}` }, head, body));
  }

  /**
   * @param {Tensor | null} lens  (layers + 1, classes)
   * @param {number} layers
   * @param {string[]} classNames
   * @param {number} chosen  the layer shown in the map
   */
  paint(lens, layers, classNames, chosen) {
    this.#fit(layers, classNames);
    const classes = classNames.length;
    const predicted = this.#rows.map(({ row, cells }, r) => {
      const probabilities = lens?.data.subarray(r * classes, (r + 1) * classes);
      const best = probabilities ? argmax(probabilities) : -1;
      row.classList.toggle("chosen", r === chosen + 1);
      cells.forEach((cell, c) => {
        const probability = probabilities?.[c] ?? 0;
        const level = probability < LEAST_SHOWN ? 0 : Math.min(LEVELS, 1 + Math.floor(probability * LEVELS));
        cell.dataset.level = String(level);
        cell.classList.toggle("best", c === best);
        setText(cell, c === best ? String(Math.round(100 * probability)) : "");
        cell.title = probabilities ? `${classNames[c]}: ${percent(probability)}` : "";
      });
      return best;
    });
    setText(this.caption, lens === null ? "" : captionOf(predicted, classNames));
  }
}

/** @param {number[]} predicted  by layer @param {string[]} classNames */
function captionOf(predicted, classNames) {
  const last = predicted[predicted.length - 1];
  const before = predicted.findLastIndex((best) => best !== last);
  const name = classNames[last];
  return before < 0 ? text("lens.always", name) : text("lens.from", name, before + 1, classNames[predicted[before]]);
}
