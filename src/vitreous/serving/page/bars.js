/**
 * What the models answer: the answer large, then a bar a class for each model, side by side. Where something was
 * removed, a mark on each bar says where it stood before.
 *
 * @typedef {{ name: string, kind: "vit" | "cnn", probabilities: Float32Array | null, before: Float32Array | null }} Answering
 */

import { make, say } from "./dom.js";
import { largest } from "./vit-maths.js";
import { percent } from "./words.js";

const MARKERS = { vit: "M6 1.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6z", cnn: "M1.8 1.8h8.4v8.4h-8.4z" };

export class Bars {
  /** @type {{ big: HTMLElement, share: HTMLElement, moved: HTMLElement, bars: HTMLElement[], marks: HTMLElement[], values: HTMLElement[] }[]} */
  #columns = [];
  #shaped = "";

  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /**
   * @param {Answering[]} models
   * @param {string[]} classNames
   */
  #shape(models, classNames) {
    const shaped = JSON.stringify([models.map(({ name, kind }) => [name, kind]), classNames]);
    if (shaped === this.#shaped) return;
    this.#shaped = shaped;
    this.#columns = models.map(() => ({
      big: make("span", { class: "big" }),
      share: make("span", { class: "share number" }),
      moved: make("span", { class: "moved number" }),
      bars: [],
      marks: [],
      values: [],
    }));
    const heads = models.map(({ name, kind }, m) => {
      const { big, share, moved } = this.#columns[m];
      return make("div", { class: `answer ${kind}` }, make("span", { class: "model" }, marker(kind), name), big, share, moved);
    });
    // the models' names stand above for the eye; a table that is read aloud needs its own
    const names = ["Class", ...models.map(({ name }) => name)].map((name) => make("span", { role: "columnheader" }, name));
    const table = make("div", { class: "bars", role: "table", "aria-label": "Probability of each class" }, make("div", { class: "hidden", role: "row" }, ...names));
    classNames.forEach((className) => {
      const row = make("div", { class: "bar-row", role: "row" }, make("span", { class: "class", role: "rowheader", title: className }, className));
      models.forEach(({ kind }, m) => {
        const bar = make("span", { class: "fill" });
        const mark = make("span", { class: "mark" });
        const value = make("span", { class: "value number" });
        const column = this.#columns[m];
        column.bars.push(bar);
        column.marks.push(mark);
        column.values.push(value);
        row.append(make("span", { class: `bar ${kind}`, role: "cell" }, make("span", { class: "track" }, bar, mark), value));
      });
      table.append(row);
    });
    this.place.style.setProperty("--models", String(models.length));
    const longest = Math.max(...classNames.map((name) => name.length));
    this.place.style.setProperty("--label", longest > 2 ? `${Math.min(longest, 10)}ch` : "18px");
    this.place.replaceChildren(make("div", { class: "answer-heads" }, ...heads), table);
  }

  /**
   * @param {Answering[]} models
   * @param {string[]} classNames
   */
  paint(models, classNames) {
    this.#shape(models, classNames);
    models.forEach(({ probabilities, before }, m) => {
      const column = this.#columns[m];
      const best = probabilities === null ? -1 : largest(probabilities);
      say(column.big, best < 0 ? "–" : classNames[best]);
      column.big.classList.toggle("word", best >= 0 && classNames[best].length > 2);
      say(column.share, best < 0 || probabilities === null ? "" : percent(probabilities[best]));
      const was = before === null ? -1 : largest(before);
      say(column.moved, before === null || was < 0 ? "" : `before: ${classNames[was]}, ${percent(before[was])}`);
      column.bars.forEach((bar, c) => {
        bar.style.transform = `scaleX(${probabilities?.[c] ?? 0})`;
        const mark = column.marks[c];
        mark.classList.toggle("away", before === null);
        mark.style.left = `${100 * (before?.[c] ?? 0)}%`;
        say(column.values[c], probabilities === null ? "" : percent(probabilities[c]));
        bar.parentElement?.parentElement?.classList.toggle("best", c === best);
      });
    });
  }
}

/** @param {"vit" | "cnn"} kind */
function marker(kind) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("marker");
  path.setAttribute("d", MARKERS[kind]);
  svg.append(path);
  return svg;
}
