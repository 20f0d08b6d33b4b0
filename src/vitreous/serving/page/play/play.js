/**
 * Things to try on the current input: fool the model, move a patch, break it, keep a card.
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

import { BreakIt } from "./break.js";
import { FoolIt } from "./fool.js";
import { MovePatch } from "./move.js";
import { ShareCard } from "./share-card.js";

/** @param {HTMLElement} place  <section id="play"> @param {Host} host */
export function mountPlay(place, host) {
  /** @type {Part[]} */
  const parts = [new FoolIt(host), new MovePatch(host), new BreakIt(host), new ShareCard(host)];
  place.classList.add("play");
  place.replaceChildren(...parts.map(({ element }) => element));
  const refresh = () => {
    if (document.documentElement.dataset.status === "idle") for (const part of parts) part.refresh();
  };
  // The page marks itself idle once all results are shown, whoever asked for them.
  new MutationObserver(refresh).observe(document.documentElement, { attributeFilter: ["data-status"] });
  refresh();
}

/** Whether two images are the same. @param {Uint8Array | null} one @param {Uint8Array | null} other */
export function sameImage(one, other) {
  return one === other || (one !== null && other !== null && one.length === other.length && one.every((value, i) => value === other[i]));
}
