/**
 * The training's worker: steps for a moment, reports, listens, and steps on, so that the page stays responsive.
 *
 * @import { Digits, Glance, OwnDigit, Settings } from "./trainer.js"
 *
 * @typedef {object} Command  any of these
 * @property {Digits} [digits]  first of all
 * @property {Uint8Array[]} [watched]  digits to glance at in every report
 * @property {Settings} [reset]  start again
 * @property {boolean} [run]
 * @property {number} [rate]  the learning rate
 * @property {boolean} [broken]
 * @property {OwnDigit[]} [own]
 * @property {Uint8Array | null} [drawing]  predicted in every report
 *
 * @typedef {object} Report
 * @property {number} steps
 * @property {number} images  seen so far, own and repeated ones included
 * @property {number} seconds  of training so far, with validation and reports
 * @property {number | null} loss
 * @property {number | null} accuracy  on the validation digits; null: not measured anew
 * @property {number} parameters
 * @property {number} patch
 * @property {Glance[]} watched
 * @property {Glance | null} drawing
 * @property {Float32Array} positions
 */

import { Trainer } from "./trainer.js";

const SLICE = 60; // ms of steps between two looks at the messages
const REPORT = 180; // ms between two reports
const VALIDATION = 1500; // ms between two validations, each about 50 ms

/** @type {Trainer | null} */
let trainer = null;
/** @type {Digits | null} */
let digits = null;
/** @type {Uint8Array[]} */
let watched = [];
/** @type {Uint8Array | null} */
let drawing = null;
let [running, rate, seconds, began, lastReport, lastValidation] = [false, 0, 0, 0, 0, 0];
const turns = new MessageChannel();

/** @param {boolean} validate */
function report(validate) {
  if (trainer === null) return;
  const { model, steps, images, loss } = trainer;
  /** @type {Report} */
  const message = {
    steps,
    images,
    loss,
    seconds,
    accuracy: validate ? trainer.validate() : null,
    parameters: model.parameters.all.length,
    patch: model.config.patch,
    watched: trainer.glance(watched),
    drawing: drawing === null ? null : trainer.glance([drawing])[0],
    positions: trainer.positions(),
  };
  postMessage(message);
}

/** Step for a while; count the time between two slices too: it is the visitor's. */
function work() {
  if (!running || trainer === null) return;
  const start = performance.now();
  while (performance.now() - start < SLICE) trainer.step(rate);
  const validate = start - lastValidation > VALIDATION;
  if (validate) lastValidation = start;
  if (validate || start - lastReport > REPORT) {
    lastReport = start;
    report(validate);
  }
  began = start;
  turns.port2.postMessage(null); // unlike a timer's, this turn comes without a delay of 4 ms
}

turns.port1.addEventListener("message", () => {
  seconds += (performance.now() - began) / 1000;
  work();
});
turns.port1.start();

addEventListener("message", ({ data }) => {
  const command = /** @type {Command} */ (data);
  if (command.digits !== undefined) digits = command.digits;
  if (command.watched !== undefined) watched = command.watched;
  if (command.rate !== undefined) rate = command.rate;
  if (command.drawing !== undefined) drawing = command.drawing;
  if (command.reset !== undefined && digits !== null) {
    trainer = new Trainer(digits, command.reset);
    seconds = 0;
    lastValidation = performance.now();
  }
  if (trainer === null) return;
  if (command.own !== undefined) trainer.own = command.own;
  if (command.broken !== undefined) trainer.broken = command.broken;
  const starts = command.run === true && !running;
  if (command.run !== undefined) running = command.run;
  if (starts) work();
  else if (!running) report(command.run === false || command.broken !== undefined || command.reset !== undefined);
});
