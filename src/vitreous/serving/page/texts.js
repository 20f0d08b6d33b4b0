/**
 * Every sentence of the pages, in the user's language, which ?lang= chooses. `texts/LANG.js` has what both pages need,
 * `texts/play-LANG.js` what only the main page needs, and `texts/train-LANG.js` what only train.html needs.
 *
 * @typedef {typeof en} MainTexts
 * @typedef {typeof import("./texts/play-en.js").default} PlayTexts
 * @typedef {typeof import("./texts/train-en.js").default} TrainTexts
 * @typedef {keyof MainTexts | keyof PlayTexts | keyof TrainTexts} TextKey
 */

import en from "./texts/en.js";

const LANGUAGES = ["de", "en", "es", "ko", "zh"]; // the tables in texts/

/** @type {Record<string, any>} */
let table = en;
let decimalMark = ".";

/** Return a text; the values are what its function in the table takes. @param {TextKey} key @param {any[]} values */
export function text(key, ...values) {
  const found = table[key];
  return String(typeof found === "function" ? found(...values) : found);
}

/** Return a number with the language's decimal mark. @param {string} written  with a decimal point */
export function localised(written) {
  return written.replace(".", decimalMark);
}

/** Load the tables of ?lang=, or else the English ones, and write the texts of the document. @param {"play" | "train"} part */
export async function loadTexts(part) {
  const wanted = new URLSearchParams(location.search).get("lang") ?? "en";
  const language = LANGUAGES.includes(wanted) ? wanted : "en";
  const tables = await Promise.all([import(`./texts/${language}.js`), import(`./texts/${part}-${language}.js`)]);
  table = Object.assign({}, ...tables.map((module) => module.default));
  decimalMark = new Intl.NumberFormat(language).formatToParts(0.5).find(({ type }) => type === "decimal")?.value ?? ".";
  document.documentElement.lang = language;
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-text]"))) {
    element.textContent = text(/** @type {TextKey} */ (element.dataset.text));
  }
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-label]"))) {
    element.setAttribute("aria-label", text(/** @type {TextKey} */ (element.dataset.label)));
  }
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll('a[href$=".html"]'))) {
    link.setAttribute("href", link.getAttribute("href") + location.search); // the other page has the same language
  }
}
