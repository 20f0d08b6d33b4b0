/**
 * What to say where the two models predict different classes.
 *
 * @import { Prediction } from "./bars.js"
 */

import { argmax } from "./vit-maths.js";
import { percent } from "./words.js";

const SURE = 0.9; // calibrated: of such predictions, nine in ten are correct

/**
 * Return a sentence or two about two models that disagree; nothing where they agree, or where there is one.
 * @param {Pick<Prediction, "name" | "probabilities">[]} predictions @param {string[]} classNames
 */
export function disagreementSentence(predictions, classNames) {
  const found = predictions.flatMap(({ name, probabilities }) => {
    if (probabilities === null) return [];
    const best = argmax(probabilities);
    return [{ name, best, probability: probabilities[best] }];
  });
  if (found.length !== 2 || found[0].best === found[1].best) return "";
  const [one, other] = found.map(({ name, best, probability }) => `${name} predicts ${classNames[best]} (${percent(probability)})`);
  const sure = found.filter(({ probability }) => probability >= SURE);
  const judgement =
    sure.length === 2
      ? "Both are sure, and at least one of them is wrong."
      : sure.length === 1
        ? `Only ${sure[0].name} is sure.`
        : "Neither is sure.";
  return `The models disagree: ${one}, ${other}. ${judgement}`;
}
