/**
 * The sentences under the figures and in the footer.
 *
 * @import { Model, ViTModel } from "./engine.js"
 * @import { Overlay } from "./maps.js"
 * @import { Session } from "./session.js"
 * @import { State } from "./state.js"
 */

import { disagreementSentence } from "./disagreement.js";
import { takesDrawings } from "./engine.js";
import { sameClasses } from "./session.js";
import { text } from "./texts.js";
import { argmax, attentionFrom } from "./vit-maths.js";
import { describePatches, percent, placeName, thousands, times, unlikeSentence } from "./words.js";

/** @param {Session} session @param {ViTModel} vit @param {Overlay} overlay  the map's */
export function mapCaption(session, vit, overlay) {
  const { state, results, query } = session;
  if (!results.vit) return results.isBlank ? text(takesDrawings(vit) ? "map.noDrawing" : "map.noImage") : "";
  const predicted = results.vit.probabilities ? vit.class_names[argmax(results.vit.probabilities)] : "";
  const pointing = text(matchMedia("(hover: none)").matches ? "map.tap" : "map.point");
  const hint = session.hasAttention ? pointing : text("map.click");
  switch (state.view) {
    case "patches":
      return joined(text("map.input", describePatches(vit)), skippedNote(session), vit.cells.note, hint);
    case "attention":
      return attentionCaption(session, vit, overlay.values ?? [], hint);
    case "rollout":
      return joined(text("map.rollout", predicted), hint);
    case "patch_removal":
      return text("map.removal", predicted);
    case "relevance":
      return joined(text("map.relevance", predicted), hint);
    case "positions":
      return joined(query >= 0 ? text("map.position", placeName(query, vit.grid)) : text("map.positions"), text("map.learned"));
  }
}

/** @param {Session} session */
function skippedNote({ skippedPatches }) {
  return skippedPatches.length > 0 ? text("map.skips") : "";
}

/** @param {Session} session @param {ViTModel} vit @param {ArrayLike<number>} values  per patch @param {string} hint */
function attentionCaption(session, vit, values, hint) {
  const { state, layer, query } = session;
  const attention = session.results.vit?.attention;
  const who = state.head < 0 ? text("heads.meanOf", layer + 1) : text("removed.head", layer + 1, state.head + 1);
  if (session.isHeadRemoved(layer, state.head)) return text("map.headRemoved", who);
  const from = query >= 0 ? placeName(query, vit.grid) : text(vit.has_class_token ? "classToken" : "allTokens");
  const most = argmax(values);
  return joined(
    text("map.attention", from, who, placeName(most, vit.grid), percent(values[most])),
    vit.has_class_token && attention ? text("map.toClass", percent(attentionFrom(attention, layer, state.head, query, vit)[0])) : "",
    state.key === null ? hint : text("map.seeWeight"),
  );
}

/** Describe what is done to the input before the models get it; empty: nothing. @param {State} state */
export function rearrangement({ shift: [right, down], shuffle }) {
  const changes = [];
  if (right !== 0) changes.push(text(right < 0 ? "shift.left" : "shift.right", Math.abs(right)));
  if (down !== 0) changes.push(text(down < 0 ? "shift.up" : "shift.down", Math.abs(down)));
  if (shuffle !== 0) changes.push(text("shift.shuffled"));
  return changes.join(", ");
}

/** Return where the models run, their sizes and accuracies, and which ones are not shown. @param {Session} session */
export function footer({ engine, models, vit, cnn, comparable }) {
  const facts = [vit, cnn].map((model) => {
    if (model === null) return "";
    return text("footer.model", model.name, thousands(model.parameters), model.accuracy === null ? "" : percent(model.accuracy));
  });
  const others = models.filter((model) => model !== vit && model.kind === "cnn" && !comparable.includes(model));
  const [taking, classed] = [false, true].map((same) => others.filter((model) => vit && sameClasses(model, vit) === same));
  const names = taking.map(({ name }) => name).join(", ");
  const otherClasses = names && text("footer.otherClasses", vit?.name, names);
  const otherImages = classed.map((model) => text("footer.otherImages", model.name, describeImages(model)));
  return joined(engine?.place ?? "", ...facts, otherClasses, ...otherImages);
}

/** @param {Model} model */
function describeImages(model) {
  const kind = takesDrawings(model) ? "digits" : model.channels === 1 ? "gray" : "colour";
  const { fit = "stretch" } = model.preprocessing;
  return text(`images.${/** @type {"digits"} */ (kind)}`, times(model.image_size), takesDrawings(model) || fit === "stretch" ? "" : fit);
}

/** Return the predictions in words, for screen readers. @param {Session} session */
export function announcement(session) {
  const sentences = session.predictions().map(({ name, probabilities }) => {
    if (probabilities === null) return "";
    const best = argmax(probabilities);
    return `${name}: ${session.classNames[best]}, ${percent(probabilities[best])}.`;
  });
  const disagreement = disagreementSentence(session.predictions(), session.classNames);
  return joined(...sentences, unlikeSentence(session.predictions()), disagreement);
}

/** @param {string[]} sentences */
function joined(...sentences) {
  return sentences.filter(Boolean).join(" ");
}
