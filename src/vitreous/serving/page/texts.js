/**
 * Every sentence of the page, in the user's language: `texts/LANG.js` has one table per language, and ?lang= chooses it.
 *
 * @typedef {typeof en} Texts
 * @typedef {keyof Texts} TextKey
 */

import en from "./texts/en.js";

const LANGUAGES = ["de", "en", "es", "ko", "zh"]; // the tables in texts/

/** @type {Record<string, any>} */
let table = en;

/** Return a text; the values are what its function in the table takes. @param {TextKey} key @param {any[]} values */
export function text(key, ...values) {
  const found = table[key] ?? en[key];
  return String(typeof found === "function" ? found(...values) : found);
}

/** Load the table of ?lang=, if there is one; English otherwise. */
export async function loadTexts() {
  const wanted = new URLSearchParams(location.search).get("lang") ?? "en";
  if (LANGUAGES.includes(wanted)) {
    table = (await import(`./texts/${wanted}.js`)).default;
    document.documentElement.lang = wanted;
  }
  document.title = text("page.title");
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-text]"))) {
    element.textContent = text(/** @type {TextKey} */ (element.dataset.text));
  }
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-label]"))) {
    element.setAttribute("aria-label", text(/** @type {TextKey} */ (element.dataset.label)));
  }
}
