/**
 * The normalisation, drawn: the bounding box on the sheet, the box fitted into 20×20, its mass centred in 28×28.
 *
 * @typedef {import("./normalise.js").Gray} Gray
 * @typedef {import("./normalise.js").Steps} Steps
 */

import { byId, make, pen, say } from "./dom.js";
import { paintGray } from "./draw.js";
import { BOX, SIDE } from "./normalise.js";

const CANVAS = 112;
const MARK = "#f3db42";

/** @param {Steps | null} steps */
export function showSteps(steps) {
  const [yours, box, centre] = ["step-yours", "step-box", "step-centre"].map((id) => byId(id, HTMLCanvasElement));
  for (const canvas of [yours, box, centre]) pen(canvas).clearRect(0, 0, CANVAS, CANVAS);
  if (steps === null) {
    say(byId("steps-said"), "Nothing is drawn yet.");
    return;
  }
  const whole = steps.lightOnDark;
  const scale = CANVAS / Math.max(whole.height, whole.width);
  enlarged(yours, whole, (CANVAS - scale * whole.width) / 2, (CANVAS - scale * whole.height) / 2, scale, true);
  enlarged(centre, steps.centred, 0, 0, CANVAS / SIDE, false);
  if (steps.ready || steps.box === null || steps.scaled === null || steps.placed === null) {
    enlarged(box, steps.centred, 0, 0, CANVAS / SIDE, false);
    say(byId("steps-said"), "Already 28 × 28 and light on dark: taken as it is, as all of MNIST's digits are.");
    return;
  }
  frame(
    yours,
    (CANVAS - scale * whole.width) / 2 + scale * steps.box.left,
    (CANVAS - scale * whole.height) / 2 + scale * steps.box.top,
    scale * steps.box.width,
    scale * steps.box.height,
  );
  const unit = CANVAS / SIDE; // both at the scale of 28×28, so that 20×20 is seen to be smaller
  const [left, top] = [((SIDE - steps.scaled.width) / 2) * unit, ((SIDE - steps.scaled.height) / 2) * unit];
  enlarged(box, steps.scaled, left, top, unit, false);
  frame(box, ((SIDE - BOX) / 2) * unit, ((SIDE - BOX) / 2) * unit, BOX * unit, BOX * unit);
  cross(centre);
  const turned = steps.inverted ? "Dark on light was turned round. " : "";
  say(
    byId("steps-said"),
    `${turned}The ink's box of ${steps.box.height} × ${steps.box.width} is scaled to ${steps.scaled.height} × ${steps.scaled.width}; ` +
      "then its centre of mass goes to the middle, as in all of MNIST.",
  );
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Gray} picture
 * @param {number} left
 * @param {number} top
 * @param {number} scale
 * @param {boolean} smoothly
 */
function enlarged(canvas, picture, left, top, scale, smoothly) {
  const small = make("canvas", { width: picture.width, height: picture.height });
  paintGray(small, picture);
  const context = pen(canvas);
  context.imageSmoothingEnabled = smoothly;
  context.drawImage(small, left, top, scale * picture.width, scale * picture.height);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} left
 * @param {number} top
 * @param {number} width
 * @param {number} height
 */
function frame(canvas, left, top, width, height) {
  const context = pen(canvas);
  context.strokeStyle = MARK;
  context.lineWidth = 1.5;
  context.strokeRect(left, top, width, height);
}

/** @param {HTMLCanvasElement} canvas */
function cross(canvas) {
  const context = pen(canvas);
  context.strokeStyle = MARK;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const [x, y] of [[1, 0], [0, 1]]) {
    context.moveTo(CANVAS / 2 - 8 * x, CANVAS / 2 - 8 * y);
    context.lineTo(CANVAS / 2 + 8 * x, CANVAS / 2 + 8 * y);
  }
  context.stroke();
}
