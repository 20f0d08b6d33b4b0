/**
 * train.html: a small ViT that learns in this tab. The training runs in a worker; this module connects it with the page.
 *
 * @import { Command, Report } from "./worker.js"
 * @import { Glance, OwnDigit } from "./trainer.js"
 * @import { Description } from "./data.js"
 */

import { byId, canvasOf, make, makeButton, onClick, setAttributes, setText } from "../dom.js";
import { DrawingPad } from "../draw.js";
import { normalise, SIDE } from "../normalise.js";
import { toggleTheme } from "../theme.js";
import { argmax, range } from "../vit-maths.js";
import { percent, thousands } from "../words.js";
import { loadDigits } from "./data.js";
import { Curves, paintPositions, Watched } from "./figures.js";
import { fill, TEXTS } from "./texts.js";
import { CLASSES, COPIES } from "./trainer.js";

const HEADS = 2;
const WATCHED = 6;

class TrainPage {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #curves = new Curves(byId("curves"));
  #bars = new PredictionBars(byId("bars"));
  #pad = new DrawingPad(() => this.#drawn());
  /** @type {Watched[]} */
  #watched = [];
  /** @type {OwnDigit[]} */
  #own = [];
  /** @type {Description | null} */
  #about = null;
  #running = false;
  #broken = false;
  #patch = 7;
  /** the last report, and the accuracy of the last that has one @type {Report | null} */
  #report = null;
  /** @type {number | null} */
  #accuracy = null;
  /** images and seconds at earlier reports, to measure the speed of the last seconds @type {[number, number][]} */
  #pace = [];

  async start() {
    for (const element of document.querySelectorAll("[data-text]")) {
      element.textContent = TEXTS[/** @type {keyof typeof TEXTS} */ (element.getAttribute("data-text"))];
    }
    this.#listen();
    try {
      const { digits, about } = await loadDigits();
      this.#about = about;
      setText("intro", TEXTS.loading);
      setText("credit", about.credit);
      this.#watched = range(WATCHED).map((i) => new Watched(digits.validation[i], digits.validationLabels[i], HEADS));
      byId("watched").replaceChildren(...this.#watched.map(({ element }) => element));
      this.#send({ digits, watched: this.#watched.map(({ pixels }) => pixels), rate: this.#rate });
      this.#reset();
    } catch (error) {
      setText("error", error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {Command} command */
  #send(command) {
    this.#worker.postMessage(command);
  }

  get #rate() {
    return 10 ** Number(byId("rate", HTMLInputElement).value);
  }

  #listen() {
    onClick("theme", toggleTheme);
    onClick("run", () => this.#run(!this.#running));
    onClick("reset", () => this.#reset());
    onClick("undo", () => this.#pad.undo());
    onClick("broken", () => this.#break(!this.#broken));
    for (const button of document.querySelectorAll("#patch button")) {
      button.addEventListener("click", () => {
        this.#patch = Number(button.getAttribute("data-patch"));
        this.#reset();
      });
    }
    const rate = byId("rate", HTMLInputElement);
    const showRate = () => setText("rate-value", String(Number(this.#rate.toPrecision(1))));
    rate.addEventListener("input", () => {
      showRate();
      this.#send({ rate: this.#rate });
    });
    showRate();
    byId("labels").replaceChildren(
      ...range(CLASSES).map((label) =>
        makeButton({ "aria-label": fill(TEXTS.addAs, { label }) }, () => this.#add(label), String(label)),
      ),
    );
    this.#worker.addEventListener("message", ({ data }) => this.#paint(data));
    this.#worker.addEventListener("error", () => setText("error", TEXTS.noWorker));
  }

  /** @param {boolean} running */
  #run(running) {
    if (this.#report === null) return; // the digits are still loading
    this.#running = running;
    this.#pace = [];
    this.#send({ run: running });
    this.#showState();
    setText("status", running ? TEXTS.running : fill(TEXTS.paused, { seconds: this.#report.seconds.toFixed(0), accuracy: this.#accuracyText }));
  }

  #reset() {
    this.#curves.clear();
    this.#accuracy = null;
    this.#pace = [];
    const seed = 1 + (Date.now() % 9973);
    this.#send({ reset: { patch: this.#patch, broken: this.#broken, seed }, own: this.#own });
    this.#showState();
    if (this.#report !== null) setText("status", TEXTS.cleared);
  }

  /** @param {boolean} broken */
  #break(broken) {
    this.#broken = broken;
    this.#send({ broken });
    this.#showState();
  }

  get #accuracyText() {
    return this.#accuracy === null ? TEXTS.none : percent(this.#accuracy);
  }

  #showState() {
    setText("run", this.#running ? TEXTS.pause : (this.#report?.steps ?? 0) > 0 ? TEXTS.resume : TEXTS.start);
    setAttributes(byId("broken"), { "aria-checked": String(this.#broken) });
    setText("broken-note", this.#broken ? TEXTS.brokenOn : TEXTS.brokenOff);
    document.documentElement.classList.toggle("is-broken", this.#broken);
    setText("watched-caption", this.#broken ? TEXTS.watchedBroken : TEXTS.watchedCaption);
    for (const button of document.querySelectorAll("#patch button")) {
      const chosen = Number(button.getAttribute("data-patch")) === this.#patch;
      setAttributes(button, { "aria-pressed": String(chosen) });
    }
  }

  /** @param {Report} report */
  #paint(report) {
    this.#report = report;
    if (report.accuracy !== null) this.#accuracy = report.accuracy;
    if (report.steps === 0) this.#accuracy = null; // a guess
    const { about } = this;
    if (about !== null) {
      const { name, train, validation } = about;
      setText("intro", fill(TEXTS.intro, { parameters: thousands(report.parameters), train: thousands(train * CLASSES), name }));
      setText("curve-caption", fill(TEXTS.curveCaption, { validation: validation * CLASSES }));
    }
    this.#curves.paint({ ...report, accuracy: report.steps === 0 ? null : report.accuracy });
    setText("figure-accuracy", this.#accuracyText);
    setText("figure-loss", report.loss?.toFixed(2) ?? TEXTS.none);
    setText("figure-seconds", report.seconds.toFixed(0));
    setText("figure-speed", this.#speed(report));
    this.#watched.forEach((watched, i) => watched.paint(report.watched[i], report.patch));
    paintPositions(byId("positions", HTMLCanvasElement), report.positions);
    this.#bars.paint(report.drawing);
    const note = report.drawing === null ? TEXTS.noDrawing : report.steps === 0 ? TEXTS.untrained : "";
    setText("prediction-note", note);
    this.#showState();
    const status = this.#running ? "running" : "paused";
    setAttributes(document.documentElement, { "data-training": status, "data-steps": report.steps });
  }

  get about() {
    return this.#about;
  }

  /** Return the images per second in the last five seconds. @param {Report} report */
  #speed({ images, seconds }) {
    this.#pace = [...this.#pace.filter(([, at]) => seconds - at < 5), [images, seconds]];
    const [firstImages, firstSeconds] = this.#pace[0];
    if (!this.#running || seconds === firstSeconds) return TEXTS.none;
    return thousands(Math.round((images - firstImages) / (seconds - firstSeconds)));
  }

  // --- the visitor's digits ------------------------------------------------------------------------------------------

  /** The sheet as MNIST has its digits; null if it is blank. */
  #pixels() {
    const { values, height, width } = this.#pad.picture();
    return normalise({ values, height, width })?.centred.values ?? null;
  }

  #drawn() {
    setText("own-note", "");
    this.#send({ drawing: this.#pixels() });
  }

  /** @param {number} label */
  #add(label) {
    const pixels = this.#pixels();
    setText("own-note", pixels === null ? TEXTS.nothingDrawn : fill(TEXTS.added, { label }));
    if (pixels === null) return;
    this.#own = [...this.#own, { pixels, label }];
    this.#showOwn();
  }

  #showOwn() {
    this.#send({ own: this.#own });
    byId("own").replaceChildren(
      ...this.#own.map((own) => {
        const remove = () => {
          this.#own = this.#own.filter((each) => each !== own);
          this.#showOwn();
        };
        const picture = canvasOf({ values: own.pixels, channels: 1, height: SIDE, width: SIDE });
        const label = fill(TEXTS.remove, { label: own.label });
        return makeButton({ class: "own", "aria-label": label, title: label }, remove, picture, String(own.label));
      }),
    );
  }
}

/** One bar per class for the drawing. */
class PredictionBars {
  #rows = range(CLASSES).map((label) => {
    const bar = make("span", { class: "fill" });
    const value = make("span", { class: "value number" });
    const row = make("li", { class: "class-row" }, make("span", {}, String(label)), make("span", { class: "track" }, bar), value);
    return { bar, value, row };
  });
  #best = make("p", { class: "best-class number" });

  /** @param {HTMLElement} place */
  constructor(place) {
    place.replaceChildren(this.#best, make("ul", { class: "class-rows" }, ...this.#rows.map(({ row }) => row)));
  }

  /** @param {Glance | null} glance */
  paint(glance) {
    const best = glance === null ? -1 : argmax(glance.probabilities);
    setText(this.#best, glance === null ? TEXTS.none : String(best));
    this.#rows.forEach(({ bar, value, row }, label) => {
      const share = glance?.probabilities[label] ?? 0;
      bar.style.transform = `scaleX(${share})`;
      setText(value, glance === null ? "" : percent(share));
      row.classList.toggle("best", label === best);
    });
  }
}

setText("draw-help", fill(TEXTS.draw, { copies: COPIES }));
void new TrainPage().start();
