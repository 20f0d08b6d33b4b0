/** All that train.html and its modules say; a `{name}` is replaced by `fill`. */
export const TEXTS = {
  title: "Train a Vision Transformer in this tab",
  intro:
    "A small ViT of {parameters} parameters learns here, in JavaScript, from {train} digits of {name}. Nothing leaves your computer.",
  back: "The finished model",
  theme: "Switch between dark and light",
  start: "Start training",
  resume: "Go on",
  pause: "Pause",
  reset: "Start again",
  patch: "Patch size",
  rate: "Learning rate",
  broken: "Break it",
  brokenOff: "Attention over the batch in place of the tokens: a real mistake, easily made.",
  brokenOn:
    "Each token now attends to the other images of the batch, not to the other patches of its own image. The class token sees nothing of the digit, so all digits get the same prediction and the loss stays at chance. Switch it off and watch.",
  accuracy: "validation accuracy",
  loss: "training loss",
  seconds: "seconds",
  speed: "images per second",
  none: "–",
  chance: "chance",
  curve: "How it learns",
  curveCaption:
    "The loss on the digits it trains on (left scale) and the share of {validation} other digits that it predicts correctly (right scale), over the seconds of training.",
  curveAlt: "After {seconds} s of training: loss {loss}, validation accuracy {accuracy}.",
  second: "s",
  yours: "Your digits",
  draw: "Draw a digit, then choose what it is: it joins the training and counts {copies} times.",
  pad: "Drawing sheet",
  padHelp:
    "Draw a digit with mouse, pen or finger. With the keyboard, move the pen with the arrow keys, hold Space to draw, and press Delete to clear the sheet.",
  undo: "Undo",
  clear: "Clear",
  keep: "keep it",
  add: "This is a",
  addAs: "Train with it as a {label}",
  remove: "Remove this {label} from the training",
  nothingDrawn: "There is nothing on the sheet yet.",
  added: "Your {label} joined the training.",
  prediction: "Its prediction",
  untrained: "It has not learnt anything yet: all classes are as likely.",
  noDrawing: "Draw a digit to see what it predicts.",
  watched: "What the class token attends to",
  watchedCaption:
    "Validation digits, which it never trains on, and the weights of the last layer's two heads: dark is 0, bright the head's largest. Skipped patches have none.",
  watchedBroken: "There is no attention to patches to show: it runs over the images of the batch.",
  watchedAlt: "A {label}, predicted as {prediction} ({probability})",
  head: "head {number}",
  positions: "How similar the positions are",
  positionsCaption:
    "One small grid per position: its cosine similarity to all others, orange for similar, blue for opposite. They start at random, and nobody gives it rows and columns: what forms is learnt from the digits.",
  loading: "Loading the digits …",
  noDigits: "The digits to train on are missing next to this page.",
  noWorker: "The training could not be started in this browser; try a newer one.",
  running: "Training.",
  paused: "Paused after {seconds} s: {accuracy} of the validation digits are predicted correctly.",
  cleared: "A new model, not trained yet.",
};

/** @param {string} text @param {Record<string, string | number>} values */
export function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}
