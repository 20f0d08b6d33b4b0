/**
 * The predictions: the predicted class in large type, then one bar per class and model, side by side. While something is
 * removed, a mark on each bar shows its length before.
 *
 * @typedef {object} Prediction
 * @property {string} name
 * @property {"vit" | "cnn"} kind
 * @property {Float32Array | null} probabilities
 * @property {boolean} unlike  whether the image is unlike those the model was trained on
 * @property {Float32Array | null} before  the probabilities with nothing removed; null if nothing is removed
 */

import { disagreementSentence } from "./disagreement.js";
import { make, setAttributes, setText } from "./dom.js";
import { text } from "./texts.js";
import { argmax } from "./vit-maths.js";
import { percent, unlikeSentence } from "./words.js";

const MARKERS = { vit: "M6 1.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6z", cnn: "M1.8 1.8h8.4v8.4h-8.4z" };

/** The elements of one model. */
class Column {
  predicted = make("span", { class: "big" });
  probability = make("span", { class: "probability number" });
  before = make("span", { class: "before number" });

  /** @param {Prediction} prediction @param {string[]} classNames */
  constructor({ name, kind }, classNames) {
    const model = make("span", { class: "model" }, marker(kind), name);
    this.head = make("div", { class: `prediction ${kind}` }, model, this.predicted, this.probability, this.before);
    this.bars = classNames.map(() => {
      const fill = make("span", { class: "fill" });
      const mark = make("span", { class: "mark" });
      const value = make("span", { class: "value number" });
      const track = make("span", { class: "track" }, fill, mark);
      return { fill, mark, value, cell: make("span", { class: `bar ${kind}`, role: "cell" }, track, value) };
    });
  }

  /** @param {Prediction} prediction @param {string[]} classNames */
  paint({ probabilities, before, unlike }, classNames) {
    const best = probabilities === null ? -1 : argmax(probabilities);
    const name = best < 0 ? "–" : classNames[best];
    setText(this.predicted, name);
    this.predicted.classList.toggle("word", name.length > 2);
    this.head.classList.toggle("untrusted", unlike);
    setText(this.probability, probabilities === null ? "" : percent(probabilities[best]));
    const old = before === null ? -1 : argmax(before);
    setText(this.before, before === null ? "" : text("bars.before", classNames[old], percent(before[old])));
    this.bars.forEach(({ fill, mark, value, cell }, c) => {
      fill.style.transform = `scaleX(${probabilities?.[c] ?? 0})`;
      mark.classList.toggle("away", before === null);
      mark.style.left = `${100 * (before?.[c] ?? 0)}%`;
      setText(value, probabilities === null ? "" : percent(probabilities[c]));
      cell.classList.toggle("best", c === best);
    });
  }
}

export class Bars {
  /** @type {Column[]} */
  #columns = [];
  #fitted = "";
  #unlike = make("p", { id: "unlike", class: "unlike" });
  #disagreement = make("p", { id: "disagreement", class: "unlike" });

  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /** @param {Prediction[]} predictions @param {string[]} classNames */
  paint(predictions, classNames) {
    this.#fit(predictions, classNames);
    predictions.forEach((prediction, m) => this.#columns[m].paint(prediction, classNames));
    setText(this.#unlike, unlikeSentence(predictions));
    setText(this.#disagreement, disagreementSentence(predictions, classNames));
  }

  /** @param {Prediction[]} predictions @param {string[]} classNames */
  #fit(predictions, classNames) {
    const fitted = JSON.stringify([predictions.map(({ name, kind }) => [name, kind]), classNames]);
    if (fitted === this.#fitted) return;
    this.#fitted = fitted;
    this.#columns = predictions.map((prediction) => new Column(prediction, classNames));
    // the models' names are shown above the table; for screen readers it needs its own
    const names = [text("bars.class"), ...predictions.map(({ name }) => name)];
    const titles = names.map((name) => make("span", { role: "columnheader" }, name));
    const rows = classNames.map((name, c) => {
      const header = make("span", { class: "class", role: "rowheader", title: name }, name);
      return make("div", { class: "bar-row", role: "row" }, header, ...this.#columns.map(({ bars }) => bars[c].cell));
    });
    const table = make("div", { class: "bars", role: "table", "aria-label": text("bars.label") });
    table.append(make("div", { class: "hidden", role: "row" }, ...titles), ...rows);
    this.place.style.setProperty("--models", String(predictions.length));
    const longest = Math.max(...classNames.map((name) => name.length));
    this.place.style.setProperty("--label", longest > 2 ? `${Math.min(longest, 10)}ch` : "18px");
    const heads = make("div", { class: "prediction-heads" }, ...this.#columns.map(({ head }) => head));
    this.place.replaceChildren(heads, table, make("div", { class: "notes" }, this.#unlike, this.#disagreement));
  }
}

/** @param {"vit" | "cnn"} kind */
function marker(kind) {
  const [svg, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  setAttributes(svg, { viewBox: "0 0 12 12", "aria-hidden": "true", class: "marker" });
  setAttributes(path, { d: MARKERS[kind] });
  svg.append(path);
  return svg;
}
