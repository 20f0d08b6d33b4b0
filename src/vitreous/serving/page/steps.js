/**
 * How the input comes about, drawn: of a digit, the ink's bounds, the ink scaled into 20×20 and its centre of mass in
 * the middle; of any other image, how it is fitted, and what the model gets.
 *
 * @import { Model } from "./engine.js"
 * @import { Gray, Steps } from "./normalise.js"
 * @import { Fitted } from "./photo.js"
 */

import { byId, canvasOf, contextOf, setText } from "./dom.js";
import { placement } from "./fitting.js";
import { DIGIT_SIDE, SIDE } from "./normalise.js";
import { text } from "./texts.js";
import { times } from "./words.js";

const CANVAS = 224;
const UNIT = CANVAS / SIDE; // the last two at the scale of 28×28, so that 20×20 is visibly smaller
const SAME_ASPECT = 0.02; // as data/fitting.py

/** @param {string[]} names */
function clear(...names) {
  names.forEach((name, i) => setText(`step-name-${i + 1}`, name));
  return [1, 2, 3].map((i) => {
    const context = contextOf(byId(`step-${i}`, HTMLCanvasElement));
    context.clearRect(0, 0, CANVAS, CANVAS);
    context.strokeStyle = "#f3db42";
    context.lineWidth = 3;
    return context;
  });
}

/** @param {Steps | null} steps @param {readonly [number, number]} size  of the model's input */
export function showSteps(steps, size) {
  const [yours, scaled, centred] = clear(text("steps.yours"), text("steps.fit20"), text("steps.centred"));
  if (steps === null) {
    setText("steps-caption", text("map.noDrawing"));
    return;
  }
  const sheet = steps.lightOnDark;
  const scale = CANVAS / Math.max(sheet.height, sheet.width);
  const [left, top] = draw(yours, sheet, scale, true);
  draw(centred, steps.centred, UNIT);
  draw(scaled, steps.scaled ?? steps.centred, UNIT);
  const { bounds } = steps;
  const resized = size.every((side) => side === SIDE) ? "" : ` ${text("steps.resizedAtLast", times(size))}`;
  if (bounds === null || steps.scaled === null) {
    setText("steps-caption", text("steps.unchanged") + resized);
    return;
  }
  yours.strokeRect(left + scale * bounds.left, top + scale * bounds.top, scale * bounds.width, scale * bounds.height);
  const margin = ((SIDE - DIGIT_SIDE) / 2) * UNIT;
  scaled.strokeRect(margin, margin, DIGIT_SIDE * UNIT, DIGIT_SIDE * UNIT);
  centred.stroke(new Path2D(`M${CANVAS / 2 - 16} ${CANVAS / 2}h32m-16 -16v32`));
  const [ink, scaledInk] = [bounds, steps.scaled].map(({ height, width }) => times([height, width]));
  setText("steps-caption", (steps.inverted ? `${text("steps.inverted")} ` : "") + text("steps.scaled", ink, scaledInk) + resized);
}

/**
 * Draw a picture in the middle of the canvas and return its left and top.
 * @param {CanvasRenderingContext2D} context @param {Gray} picture @param {number} scale @param {boolean} [smooth]
 */
function draw(context, picture, scale, smooth = false) {
  const [width, height] = [scale * picture.width, scale * picture.height];
  const [left, top] = [(CANVAS - width) / 2, (CANVAS - height) / 2];
  context.imageSmoothingEnabled = smooth;
  context.drawImage(canvasOf({ channels: 1, ...picture }), left, top, width, height);
  return [left, top];
}

/** @param {Fitted | null} fitted  null: there is no image @param {Model} model */
export function showFit(fitted, { image_size: size, preprocessing: { fit = "stretch" } }) {
  const [, placed, seen] = clear("", text(`steps.${fit}`), times(size));
  if (fitted === null) {
    setText("steps-caption", text("map.noImage"));
    return;
  }
  const { whole, extent, image } = fitted;
  const { from, to } = placement(fit, extent, size);
  placed.imageSmoothingEnabled = CANVAS < 4 * Math.max(...extent); // small images are shown pixel by pixel
  const unit = CANVAS / Math.max(...size);
  const [x, y] = [(CANVAS - unit * size[1]) / 2, (CANVAS - unit * size[0]) / 2];
  placed.fillRect(x, y, unit * size[1], unit * size[0]); // black
  const shrunk = Number(/** @type {ImageBitmap | HTMLCanvasElement} */ (whole).width) / extent[1]; // the preview is smaller
  placed.drawImage(
    whole, shrunk * from.left, shrunk * from.top, shrunk * from.width, shrunk * from.height,
    x + unit * to.left, y + unit * to.top, unit * to.width, unit * to.height,
  );
  seen.imageSmoothingEnabled = false;
  seen.drawImage(canvasOf(image), x, y, unit * size[1], unit * size[0]);
  setText("steps-caption", fitCaption(fit, extent, size, fitted));
}

/** @param {"crop" | "letterbox" | "stretch"} fit @param {readonly [number, number]} extent @param {readonly [number, number]} size @param {Fitted} fitted */
function fitCaption(fit, extent, size, { image, isOpened }) {
  const gray = isOpened && image.channels === 1;
  if (extent.every((side, i) => side === size[i])) return text("fit.same", times(size), gray);
  const isSquare = extent[0] === extent[1];
  if (Math.abs((extent[1] * size[0]) / (extent[0] * size[1]) - 1) <= SAME_ASPECT) return text("fit.resized", times(extent), isSquare, times(size), gray);
  const { from, to } = placement(fit, extent, size);
  if (fit === "crop") return text("fit.crop", times([from.height, from.width]), times(extent), isSquare, times(size), gray);
  if (fit === "stretch") return text("fit.stretch", times(extent), isSquare, times(size), gray);
  return text("fit.letterbox", times(extent), isSquare, times(size), gray, to.width < size[1]);
}
