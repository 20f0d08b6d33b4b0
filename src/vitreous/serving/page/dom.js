/** Elements without a framework. Text stays text, and styles go through CSSOM, as the content security policy wants. */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null | undefined>} [attributes]  true: present, false or null: absent
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

/**
 * @param {Element} element
 * @param {Record<string, string | number | boolean | null | undefined>} attributes
 */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * An element of index.html, by its id.
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

/**
 * Write a text only where it differs: screen readers announce every write to a live region.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const MATH = "http://www.w3.org/1998/Math/MathML";

/**
 * A MathML element.
 * @param {string} tag
 * @param {(Node | string)[]} children
 */
export function math(tag, ...children) {
  const element = document.createElementNS(MATH, tag);
  element.append(...children);
  return element;
}

/**
 * A canvas's 2-D context.
 * @param {HTMLCanvasElement} canvas
 */
export function pen(canvas) {
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("this browser gives no 2-D canvas");
  return context;
}
