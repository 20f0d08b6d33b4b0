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
import { argmax, sum } from "./vit-maths.js";
import { describePatches, percent, placeName, thousands, times, unlikeSentence } from "./words.js";

/** @param {Session} session @param {ViTModel} vit @param {Overlay} overlay  the map's */
export function mapCaption(session, vit, overlay) {
  const { state, results, query } = session;
  if (!results.vit) return !results.isBlank ? "" : takesDrawings(vit) ? "Nothing is drawn yet." : "There is no image yet.";
  const predicted = results.vit.probabilities ? vit.class_names[argmax(results.vit.probabilities)] : "the prediction";
  const pointing = matchMedia("(hover: none)").matches
    ? "Tap a patch to look from there, and again to remove it."
    : "Point at a patch to look from there; click to remove it.";
  const hint = session.hasAttention ? pointing : "Click a patch to remove it.";
  switch (state.view) {
    case "patches":
      return joined(`The ViT's input: ${describePatches(vit)}, read row by row.`, skippedNote(session), vit.cells.note, hint);
    case "attention":
      return attentionCaption(session, vit, overlay.values ?? [], hint);
    case "rollout":
      return joined(
        "Attention followed through all layers: how much of each patch can reach the prediction.",
        `It is the same for every class, so it does not show whether a patch supports ${predicted}.`,
        hint,
      );
    case "patch_removal":
      return joined(
        `The probability that ${predicted} loses (orange) or gains (blue) when a patch is removed.`,
        "It is measured by running the model, so it can be trusted. Click a patch to try it.",
      );
    case "relevance":
      return joined(
        `How much the attention to each patch raises the score of ${predicted}, by gradients through all layers.`,
        "Check it against patch removal.",
        hint,
      );
    case "positions":
      return joined(
        query >= 0
          ? `The position of ${placeName(query, vit.grid)} is outlined; its small grid shows how similar it is to all others.`
          : "Each small grid belongs to one patch's position and shows how similar it is to all others.",
        "The positions were learned, not given.",
      );
  }
}

/** @param {Session} session */
function skippedNote({ skippedPatches }) {
  return skippedPatches.length > 0 ? "It skips those with a stroke through them, which are blank or nearly so." : "";
}

/** @param {Session} session @param {ViTModel} vit @param {ArrayLike<number>} values  per patch @param {string} hint */
function attentionCaption(session, vit, values, hint) {
  const { state, layer, query } = session;
  const heads = state.head < 0 ? "the mean of all heads" : `head ${state.head + 1}`;
  const who = `${heads} of layer ${layer + 1}`;
  if (session.isHeadRemoved(layer, state.head)) return `H${who.slice(1)} is removed: its output is not passed on.`;
  const meanFrom = vit.has_class_token ? "the class token" : "all tokens, on average";
  const from = query >= 0 ? placeName(query, vit.grid) : meanFrom;
  const most = argmax(values);
  const rest = 1 - sum(Array.from(values));
  return joined(
    `From ${from}, ${who} attends most to ${placeName(most, vit.grid)}: ${percent(values[most])}.`,
    vit.has_class_token ? `${percent(rest)} goes to the class token.` : "",
    state.key === null ? hint : "Click a patch to see its weight.",
  );
}

/** Describe what is done to the input before the models get it; empty: nothing. @param {State} state */
export function rearrangement({ shift: [right, down], shuffle }) {
  const changes = [];
  if (right !== 0) changes.push(`${Math.abs(right)} px to the ${right < 0 ? "left" : "right"}`);
  if (down !== 0) changes.push(`${Math.abs(down)} px ${down < 0 ? "up" : "down"}`);
  if (shuffle !== 0) changes.push("with its patches shuffled");
  return changes.join(", ");
}

/** Return where the models run, their sizes and accuracies, and which ones are not shown. @param {Session} session */
export function footer({ engine, models, vit, cnn, comparable }) {
  const facts = [vit, cnn].map((model) => {
    if (model === null) return "";
    const accuracy = model.accuracy === null ? "" : `, ${percent(model.accuracy)} accuracy on its test set`;
    return `${model.name}: ${thousands(model.parameters)} parameters${accuracy}.`;
  });
  const others = models.filter((model) => model !== vit && model.kind === "cnn" && !comparable.includes(model));
  const [taking, classed] = [false, true].map((same) => others.filter((model) => vit && sameClasses(model, vit) === same));
  const names = taking.map(({ name }) => name).join(", ");
  const otherClasses = names && `Not shown, because the classes differ from those of ${vit?.name}: ${names}.`;
  const otherImages = classed.map((model) => `${model.name} is not shown: it takes ${describeImages(model)}.`);
  return joined(engine?.place ?? "", ...facts, otherClasses, ...otherImages);
}

/** @param {Model} model */
function describeImages(model) {
  const kind = takesDrawings(model) ? "digits" : model.channels === 1 ? "gray images" : "colour images";
  const { fit = "stretch" } = model.preprocessing;
  return `${kind} of ${times(model.image_size)} pixels${takesDrawings(model) || fit === "stretch" ? "" : ` (${fit})`}`;
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
