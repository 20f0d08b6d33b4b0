/**
 * `?hide=lens,play`: parts of the main page that a teacher does not want to show. They are still there, so that all that
 * fills them goes on working, but page.css does not display them (`data-hide`); without the CNN its model does not run.
 */

import { text } from "./texts.js";

export const PARTS = /** @type {const} */ ([
  "break", "card", "cnn", "fool", "inside", "lens", "move", "play", "predictions", "samples", "share", "steps", "tour", "train", "views",
  "whatif",
]);

/** @returns {string[]} */
function named() {
  const lists = new URLSearchParams(location.search).getAll("hide");
  return lists.flatMap((list) => list.split(",")).map((name) => name.trim()).filter(Boolean);
}

/** @param {typeof PARTS[number]} part */
export function isHidden(part) {
  return named().includes(part);
}

/** Hide the parts that the address names; return a sentence about those that do not exist, or nothing. */
export function hideParts() {
  const known = /** @type {readonly string[]} */ (PARTS);
  const names = named();
  document.documentElement.dataset.hide = names.filter((name) => known.includes(name)).join(" ");
  const unknown = names.filter((name) => !known.includes(name));
  return unknown.length > 0 ? text("hide.unknown", unknown.join(", "), known.join(", ")) : "";
}
