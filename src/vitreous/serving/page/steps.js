/**
 * The normalisation, drawn: the ink's bounds on the sheet, the ink scaled into 20×20, its centre of mass in the middle.
 *
 * @import { Gray, Steps } from "./normalise.js"
 */

import { byId, contextOf, grayCanvas, setText } from "./dom.js";
import { DIGIT_SIDE, SIDE } from "./normalise.js";

const CANVAS = 112;
const UNIT = CANVAS / SIDE; // the last two at the scale of 28×28, so that 20×20 is visibly smaller

/** @param {Steps | null} steps */
export function showSteps(steps) {
  const [yours, scaled, centred] = ["step-yours", "step-scaled", "step-centred"].map((id) => {
    const context = contextOf(byId(id, HTMLCanvasElement));
    context.clearRect(0, 0, CANVAS, CANVAS);
    context.strokeStyle = "#f3db42";
    context.lineWidth = 1.5;
    return context;
  });
  if (steps === null) {
    setText("steps-caption", "Nothing is drawn yet.");
    return;
  }
  const sheet = steps.lightOnDark;
  const scale = CANVAS / Math.max(sheet.height, sheet.width);
  const [left, top] = draw(yours, sheet, scale, true);
  draw(centred, steps.centred, UNIT);
  draw(scaled, steps.scaled ?? steps.centred, UNIT);
  const { bounds } = steps;
  if (bounds === null || steps.scaled === null) {
    setText("steps-caption", "Already 28 × 28 and light on dark, like MNIST's own digits: used unchanged.");
    return;
  }
  yours.strokeRect(left + scale * bounds.left, top + scale * bounds.top, scale * bounds.width, scale * bounds.height);
  const margin = ((SIDE - DIGIT_SIDE) / 2) * UNIT;
  scaled.strokeRect(margin, margin, DIGIT_SIDE * UNIT, DIGIT_SIDE * UNIT);
  centred.stroke(new Path2D(`M${CANVAS / 2 - 8} ${CANVAS / 2}h16m-8 -8v16`));
  setText(
    "steps-caption",
    `${steps.inverted ? "Dark on light was inverted. " : ""}The ink, ${bounds.height} × ${bounds.width}, is scaled to ` +
      `${steps.scaled.height} × ${steps.scaled.width}; then its centre of mass is moved to the middle, as in MNIST.`,
  );
}

/**
 * Draw a picture in the middle of the canvas and return its left and top.
 * @param {CanvasRenderingContext2D} context @param {Gray} picture @param {number} scale @param {boolean} [smooth]
 */
function draw(context, picture, scale, smooth = false) {
  const [width, height] = [scale * picture.width, scale * picture.height];
  const [left, top] = [(CANVAS - width) / 2, (CANVAS - height) / 2];
  context.imageSmoothingEnabled = smooth;
  context.drawImage(grayCanvas(picture), left, top, width, height);
  return [left, top];
}
