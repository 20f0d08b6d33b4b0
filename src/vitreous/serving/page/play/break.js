/**
 * "Break it": the article's ViT, whose attention runs over the batch, predicts the same input, and the doctor's findings
 * say why it cannot. Its weights are loaded when the switch is turned on.
 *
 * @import { Host } from "./play.js"
 *
 * @typedef {object} About  of play/broken.json (export/broken.py)
 * @property {number} mean
 * @property {number} std
 * @property {number} heads
 * @property {{ id: string, measured: string, why: string, fix: string }[]} findings
 * @property {{ batch: number, share: number }[]} accuracy
 */

import { make, makeButton, setAttributes, setText } from "../dom.js";
import { takesDrawings } from "../engine.js";
import { readWeights } from "../weights.js";
import { text } from "../texts.js";
import { argmax, softmax } from "../vit-maths.js";
import { percent } from "../words.js";
import { ArticleViT } from "./article-vit.js";

const OTHERS = 31; // test images in the batch: with the visitor's, the article's 32

export class BreakIt {
  #switch = makeButton({ role: "switch", "aria-checked": "false" }, () => void this.#toggle(), text("break.title"));
  #alone = make("dd", { class: "number" });
  #together = make("dd", { class: "number" });
  #togetherName = make("dt");
  #note = make("p", { class: "small", role: "status" });
  #findings = make("div", { class: "findings" });
  #panel = make("div", { class: "broken-panel", hidden: true });
  /** @type {ArticleViT | null} */
  #model = null;
  /** @type {Uint8Array[]} */
  #others = [];
  #on = false;

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    const predictions = make(
      "dl", { class: "broken-predictions" },
      make("div", {}, make("dt", {}, text("break.alone")), this.#alone),
      make("div", {}, this.#togetherName, this.#together),
    );
    this.#panel.append(predictions, this.#note, this.#findings);
    const about = make("p", { class: "small soft" }, text("break.about"));
    const parts = [make("p", { class: "row" }, this.#switch), this.#panel];
    this.element = make("div", { class: "play-part", id: "break" }, make("h3", {}, text("break.title")), about, ...parts);
  }

  refresh() {
    const { lead } = this.host.session;
    const usable = lead !== null && takesDrawings(lead) && lead.channels === 1 && lead.image_size.every((side) => side === 28);
    this.element.hidden = !usable;
    if (usable && this.#on) this.#paint();
  }

  async #toggle() {
    this.#on = !this.#on;
    setAttributes(this.#switch, { "aria-checked": String(this.#on) });
    this.#panel.hidden = !this.#on;
    if (!this.#on) return;
    if (this.#model === null) await this.#load();
    this.#paint();
  }

  async #load() {
    setText(this.#note, text("break.loading"));
    try {
      const about = /** @type {About} */ (await (await fetchFile("play/broken.json")).json());
      const weights = await (await fetchFile("play/broken.safetensors")).arrayBuffer();
      const { engine, lead } = this.host.session;
      const offered = engine && lead ? await engine.samples(lead) : { samples: [] };
      this.#others = offered.samples.slice(0, OTHERS).map(({ image }) => image.values);
      this.#model = new ArticleViT(readWeights(weights), about);
      setText(this.#togetherName, text("break.together", this.#others.length));
      this.#showFindings(about);
    } catch {
      setText(this.#note, text("break.missing"));
    }
  }

  /** @param {About} about */
  #showFindings({ findings, accuracy: [batched, single] }) {
    const list = findings.map(({ id, measured, why }) =>
      make("li", {}, make("code", {}, id), make("p", { class: "small" }, capitalised(measured)), make("p", { class: "small soft" }, why)),
    );
    const accuracy = make("p", { class: "small" }, text("break.accuracy", percent(batched.share), batched.batch, percent(single.share)));
    const train = make("p", { class: "small" }, make("a", { href: `train.html${location.search}` }, text("break.train")));
    this.#findings.replaceChildren(make("h4", {}, text("break.doctor")), make("ul", { lang: "en" }, ...list), accuracy, train);
  }

  #paint() {
    const { results, classNames } = this.host.session;
    if (this.#model === null) return;
    if (results.isBlank) {
      for (const place of [this.#alone, this.#together]) setText(place, text("break.nothing"));
      return;
    }
    const classes = classNames.length;
    const predictions = [[results.pixels], [results.pixels, ...this.#others]].map((images) => {
      const probabilities = softmax(/** @type {ArticleViT} */ (this.#model).predict(images).subarray(0, classes));
      return { best: argmax(probabilities), probability: percent(probabilities[argmax(probabilities)]) };
    });
    [this.#alone, this.#together].forEach((place, i) => {
      const { best, probability } = predictions[i];
      setText(place, text("break.prediction", classNames[best], probability));
    });
    setText(this.#note, predictions[0].best === predictions[1].best ? text("break.agree") : text("break.changed"));
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
