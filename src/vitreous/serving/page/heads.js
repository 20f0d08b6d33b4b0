/**
 * Heads as small maps: a button with the attention over the image, and the head's behaviour in words below.
 *
 * @import { Behaviour } from "./behaviours.js"
 * @import { Session } from "./session.js"
 *
 * @typedef {object} HeadActions
 * @property {(layer: number, head: number) => void} chooseHead
 * @property {(layer: number, head: number) => void} toggleHead  remove or restore
 */

import { contextOf, make, makeButton, setAttributes, setText } from "./dom.js";
import { picture } from "./maps.js";
import { text } from "./texts.js";
import { attentionFrom, patchOffset } from "./vit-maths.js";
import { percent, wholePercent } from "./words.js";

export class HeadThumb {
  #canvas = make("canvas", { "aria-hidden": "true" });
  #name = make("span", { class: "behaviour", "aria-hidden": "true" });

  /** @param {number} layer @param {number} head  -1: the mean of all @param {HeadActions} actions */
  constructor(layer, head, { chooseHead, toggleHead }) {
    this.layer = layer;
    this.head = head;
    const choose = () => chooseHead(layer, head);
    this.button = makeButton({ class: "thumb", tabindex: -1 }, choose, this.#canvas);
    this.button.addEventListener("arrived", choose); // with the arrow keys
    this.button.addEventListener("keydown", (event) => {
      if (event.key === "Delete" || event.key === "Backspace") toggleHead(layer, head);
    });
    this.element = make("div", { class: `head-cell${head < 0 ? " mean" : ""}` }, this.button, this.#name);
  }

  /** @param {Session} session @param {Behaviour | null} behaviour */
  paint(session, behaviour) {
    const { vit, results, query, state, layer } = session;
    if (vit === null) return;
    const removed = this.head >= 0 && session.isHeadRemoved(this.layer, this.head);
    const chosen = this.layer === layer && this.head === state.head;
    const name = text(this.head < 0 ? "heads.meanOf" : "heads.one", this.layer + 1, this.head + 1);
    const does = behaviour ? text("heads.does", behaviourWords(behaviour), percent(behaviour.even)) : "";
    setAttributes(this.button, {
      "aria-label": [name, removed ? text("removed") : "", does].filter(Boolean).join(", "),
      "aria-pressed": String(chosen),
      tabindex: chosen ? 0 : -1,
    });
    this.button.classList.toggle("is-removed", removed);
    setText(this.#name, this.head < 0 ? text("heads.mean") : behaviour ? text("heads.short", text(`behaviour.${behaviour.name}`), measured(behaviour)) : "");
    const attention = results.vit?.attention;
    if (!attention) {
      contextOf(this.#canvas).clearRect(0, 0, this.#canvas.width, this.#canvas.height); // nothing is drawn
      return;
    }
    const values = attentionFrom(attention, this.layer, this.head, query, vit).subarray(patchOffset(vit));
    picture(results.pixels, vit, { kind: "amount", values, high: Math.max(...values) }, this.#canvas);
  }
}

/** @param {Behaviour} behaviour */
function measured({ name, share, tokens }) {
  return name === "spread" ? text("heads.tokens", Math.round(tokens)) : wholePercent(share);
}

/** Return what a head does, in words with a number. @param {Behaviour} behaviour */
export function behaviourWords(behaviour) {
  return text(`looks.${behaviour.name}`, measured(behaviour));
}
