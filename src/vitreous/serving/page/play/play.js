/**
 * Things to try on the current input: fool the model, move a patch, keep a card, train one; next to the predictions, break
 * it.
 *
 * @import { Session } from "../session.js"
 * @import { State } from "../state.js"
 *
 * @typedef {object} Host  what the page gives to the parts
 * @property {Session} session
 * @property {(change: Partial<State>) => void} update  change the state and predict again
 *
 * @typedef {object} Part
 * @property {HTMLElement} element
 * @property {() => void} refresh  the results changed
 */

import { byId, make } from "../dom.js";
import { takesDrawings } from "../engine.js";
import { text } from "../texts.js";
import { BreakIt } from "./break.js";
import { FoolIt } from "./fool.js";
import { MovePatch } from "./move.js";
import { ShareCard } from "./share-card.js";

/** @param {HTMLElement} place  <section id="play"> @param {Host} host */
export function mountPlay(place, host) {
  /** @type {Part[]} */
  const parts = [new FoolIt(host), new MovePatch(host), new ShareCard(host), trainOne(host)];
  const broken = new BreakIt(host);
  place.replaceChildren(...parts.map(({ element }) => element));
  byId("break-place").replaceChildren(broken.element);
  parts.push(broken);
  const refresh = () => {
    if (document.documentElement.dataset.status === "idle") for (const part of parts) part.refresh();
  };
  // The page marks itself idle once all results are shown, whoever asked for them.
  new MutationObserver(refresh).observe(document.documentElement, { attributeFilter: ["data-status"] });
  refresh();
}

/** A link to train.html, which is about digits. @param {Host} host @returns {Part} */
function trainOne({ session }) {
  const link = make("a", { href: `train.html${location.search}`, class: "button" }, text("learn.start"));
  const about = make("p", { class: "small soft" }, text("learn.about"));
  const element = make("div", { class: "play-part", id: "learn" }, make("h3", {}, text("learn.title")), about, make("p", { class: "row" }, link));
  const refresh = () => (element.hidden = session.lead === null || !takesDrawings(session.lead));
  return { element, refresh };
}

/** Whether two images are the same. @param {Uint8Array | null} one @param {Uint8Array | null} other */
export function sameImage(one, other) {
  return one === other || (one !== null && other !== null && one.length === other.length && one.every((value, i) => value === other[i]));
}
