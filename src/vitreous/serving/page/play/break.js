/**
 * "Break it": a ViT whose attention runs over the batch predicts the same input as the one on the page. Its prediction
 * stands still whatever is drawn, which two rows of predictions show, and the doctor's findings say why. Its weights are
 * loaded when the switch is turned on.
 *
 * @import { Host } from "./play.js"
 *
 * @typedef {object} About  of play/broken.json (export/broken.py)
 * @property {number} mean
 * @property {number} std
 * @property {number} heads
 * @property {{ id: string, measured: string }[]} findings
 * @property {{ batch: number, share: number }[]} accuracy
 */

import { make, makeButton, setAttributes, setText } from "../dom.js";
import { takesDrawings } from "../engine.js";
import { text } from "../texts.js";
import { argmax, softmax } from "../vit-maths.js";
import { readWeights } from "../weights.js";
import { percent } from "../words.js";
import { BrokenViT } from "./broken-vit.js";
import { sameImage } from "./play.js";

const SHOWN = 8; // predictions in a row

export class BreakIt {
  #switch = makeButton({ role: "switch", "aria-checked": "false" }, () => void this.#toggle(), text("break.switch"));
  #rows = ["vit", "broken"].map((kind) => {
    const [name, cells, probability] = [make("th", { scope: "row" }), [...Array(SHOWN)].map(() => make("td")), make("td", { class: "number" })];
    return { name, cells, probability, row: make("tr", { class: kind }, name, ...cells, probability) };
  });
  #note = make("p", { class: "small", role: "status" });
  #findings = make("div", { class: "findings" });
  #panel = make("div", { class: "broken-panel", hidden: true });
  /** @type {BrokenViT | null} */
  #model = null;
  /** what both models predicted for the last inputs, the newest first @type {[string, string][]} */
  #history = [];
  #inputs = 0;
  /** every different output so far @type {Set<string>} */
  #outputs = new Set();
  /** @type {Uint8Array | null} */
  #pixels = null;
  #on = false;

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    const label = { class: "history", "aria-label": text("break.history") };
    this.#panel.append(make("table", label, make("tbody", {}, ...this.#rows.map(({ row }) => row))), this.#note, this.#findings);
    const about = make("p", { class: "small soft" }, text("break.about"));
    const parts = [make("p", { class: "row" }, this.#switch), this.#panel];
    this.element = make("div", { class: "play-part", id: "break" }, make("h3", {}, text("break.title")), about, ...parts);
    document.addEventListener("vitreous:predicted", () => this.refresh());
  }

  refresh() {
    const { lead, classNames } = this.host.session;
    const isDigits = classNames.join("") === "0123456789" && lead?.channels === 1 && lead.image_size.every((side) => side === 28);
    const usable = lead !== null && takesDrawings(lead) && isDigits;
    this.element.hidden = !usable;
    if (usable && this.#on) this.#paint();
  }

  async #toggle() {
    this.#on = !this.#on;
    setAttributes(this.#switch, { "aria-checked": String(this.#on) });
    this.#panel.hidden = !this.#on;
    if (!this.#on) return;
    [this.#history, this.#inputs, this.#pixels] = [[], 0, null];
    this.#outputs.clear();
    if (this.#model === null) await this.#load();
    this.#paint();
  }

  async #load() {
    setText(this.#note, text("break.loading"));
    try {
      const about = /** @type {About} */ (await (await fetchFile("play/broken.json")).json());
      const weights = await (await fetchFile("play/broken.safetensors")).arrayBuffer();
      this.#model = new BrokenViT(readWeights(weights), about);
      this.#showFindings(about);
    } catch {
      setText(this.#note, text("break.missing"));
    }
  }

  /** @param {About} about */
  #showFindings({ findings, accuracy: [{ share }] }) {
    const small = (/** @type {string} */ sentence, soft = false) => make("p", { class: soft ? "small soft" : "small" }, sentence);
    const list = findings.map(({ id, measured }) => make("li", {}, make("code", {}, id), small(capitalised(measured))));
    const train = make("p", { class: "small" }, make("a", { href: `train.html${location.search}` }, text("break.train")));
    this.#findings.replaceChildren(
      small(text("break.why", percent(share))),
      make("h4", {}, text("break.doctor")),
      make("ul", { lang: "en" }, ...list),
      small(text("break.article"), true),
      train,
    );
  }

  #paint() {
    const { results, classNames } = this.host.session;
    const shown = this.host.session.predictions().find(({ probabilities }) => probabilities !== null);
    if (this.#model === null || results.isBlank || !shown?.probabilities) return;
    const logits = this.#model.predict([results.pixels]);
    const probabilities = softmax(logits);
    if (!sameImage(this.#pixels, results.pixels)) {
      this.#pixels = results.pixels;
      this.#inputs++;
      this.#outputs.add(logits.join(" "));
      this.#history.unshift([classNames[argmax(shown.probabilities)], classNames[argmax(probabilities)]]);
      this.#history.length = Math.min(this.#history.length, SHOWN);
    }
    const named = [[shown.name, shown.probabilities], [text("break.name"), probabilities]];
    this.#rows.forEach(({ name, cells, probability }, i) => {
      const [its, found] = /** @type {[string, Float32Array]} */ (named[i]);
      setText(name, its);
      cells.forEach((cell, n) => setText(cell, this.#history[SHOWN - 1 - n]?.[i] ?? "")); // the newest is on the right
      setText(probability, percent(found[argmax(found)]));
    });
    setText(this.#note, this.#inputs === 1 ? text("break.draw") : text("break.frozen", this.#inputs, this.#outputs.size));
  }
}

/** @param {string} sentence */
function capitalised(sentence) {
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

/** @param {string} address */
async function fetchFile(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  return response;
}
