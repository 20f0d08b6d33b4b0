/**
 * What is removed, as buttons that bring it back.
 *
 * @import { ViTModel } from "./engine.js"
 * @import { PageActions } from "./painting.js"
 * @import { Session } from "./session.js"
 */

import { byId, make, makeButton } from "./dom.js";
import { text } from "./texts.js";
import { placeName } from "./words.js";

/** @param {Session} session @param {Pick<PageActions, "update" | "togglePatch" | "toggleHead">} actions @param {ViTModel} vit */
export function paintRemoved(session, actions, vit) {
  const { removedPatches, removedHeads } = session.state;
  const place = byId("removed");
  const shown = JSON.stringify([vit.id, session.cnn?.id, removedPatches, removedHeads]);
  if (place.dataset.shown === shown) return; // the buttons keep their focus
  place.dataset.shown = shown;
  const chip = (/** @type {string} */ name, /** @type {() => void} */ restore) => {
    const cross = make("span", { "aria-hidden": "true" }, "×");
    return makeButton({ class: "chip", "aria-label": text("removed.restore", name) }, restore, name, cross);
  };
  const chips = [
    ...removedPatches.map((patch) => chip(text("patchAt", placeName(patch, vit.grid)), () => actions.togglePatch(patch))),
    ...removedHeads.map(([layer, head]) =>
      chip(text("removed.head", layer + 1, head + 1), () => actions.toggleHead(layer, head)),
    ),
  ];
  place.replaceChildren(...chips);
  if (chips.length === 0) return;
  const restoreAll = () => actions.update({ removedPatches: [], removedHeads: [] }, true);
  place.prepend(make("span", { class: "label" }, text("removed.title")));
  place.append(makeButton({ class: "plain" }, restoreAll, text("removed.restoreAll")));
  if (removedPatches.length === 0 || session.cnn === null) return;
  const note = text("removed.noTokens", session.cnn.name);
  place.append(make("span", { class: "soft small" }, note));
}
