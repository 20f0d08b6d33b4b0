/**
 * DOM helpers, instead of a framework. Text stays text, and styles are set through CSSOM, as the content security policy
 * requires.
 *
 * @typedef {Record<string, string | number | boolean | null | undefined>} Attributes  true: present; false, null: absent
 */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

/** @param {Attributes} attributes @param {() => void} action @param {(Node | string)[]} children */
export function makeButton(attributes, action, ...children) {
  const button = make("button", { type: "button", ...attributes }, ...children);
  button.addEventListener("click", action);
  return button;
}

/** @param {Element} element @param {Attributes} attributes */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = value === true ? "" : String(value);
    if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/**
 * Return an element of index.html.
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {string} id
 * @param {new () => Kind} [kind]
 * @returns {Kind}
 */
export function byId(id, kind) {
  const element = document.getElementById(id);
  if (element === null || (kind && !(element instanceof kind))) throw new Error(`index.html has no #${id} as expected`);
  return /** @type {Kind} */ (element);
}

/** @param {string} id @param {() => void} handler */
export function onClick(id, handler) {
  byId(id).addEventListener("click", handler);
}

/**
 * Write a text only where it differs: screen readers announce every write to a live region.
 * @param {HTMLElement | string} place  an element or its id @param {string} text
 */
export function setText(place, text) {
  const element = typeof place === "string" ? byId(place) : place;
  if (element.textContent !== text) element.textContent = text;
}

/** Return a canvas's 2-D context. @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("this browser has no 2-D canvas");
  return context;
}

/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function resize(canvas, width, height) {
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height]; // this clears it
}

/** Return a canvas that shows the image at its own size. @param {import("./fitting.js").Image} image */
export function canvasOf({ values, channels, height, width }) {
  const canvas = make("canvas", { width, height, "aria-hidden": "true" });
  const area = height * width;
  const [green, blue] = channels === 3 ? [area, 2 * area] : [0, 0];
  const pixels = new ImageData(width, height);
  for (let i = 0; i < area; i++) {
    pixels.data[4 * i] = values[i];
    pixels.data[4 * i + 1] = values[green + i];
    pixels.data[4 * i + 2] = values[blue + i];
    pixels.data[4 * i + 3] = 255;
  }
  contextOf(canvas).putImageData(pixels, 0, 0);
  return canvas;
}
