/**
 * What leaves the page: its address, the drawing as a file, and the command that makes the same picture.
 *
 * @typedef {import("./engine.js").Model} Model
 * @typedef {import("./normalise.js").Gray} Gray
 */

import { byId, make, say, setAttributes } from "./dom.js";
import { paintGray } from "./draw.js";

const NOTICE_SECONDS = 4;
let noticed = 0;

/** @param {string} sentence */
export function notice(sentence) {
  say(byId("notice"), sentence);
  clearTimeout(noticed);
  noticed = setTimeout(() => say(byId("notice"), ""), 1000 * NOTICE_SECONDS);
}

/**
 * @param {string} text
 * @param {string} done
 * @param {string} otherwise  where the browser does not allow it
 */
async function copy(text, done, otherwise) {
  try {
    await navigator.clipboard.writeText(text);
    notice(done);
  } catch {
    notice(otherwise);
  }
}

/**
 * @param {object} page
 * @param {() => Promise<string>} page.address  with everything that is seen
 * @param {() => string} page.command
 * @param {() => Gray} page.picture  what drawing.png holds
 */
export function offerSharing({ address, command, picture }) {
  const [button, panel] = [byId("command"), byId("command-panel")];
  const open = (/** @type {boolean} */ opened) => {
    panel.hidden = !opened;
    setAttributes(button, { "aria-expanded": String(opened) });
    if (opened) say(byId("command-text"), command());
  };
  const copyCommand = () =>
    copy(command(), "Copied. Save the drawing beside it as drawing.png.", "This browser does not let a page copy: select the command.");
  byId("share").addEventListener("click", async () => {
    await copy(await address(), "The link is copied: it holds the drawing and all you chose.", "Copy the address of this page: it holds the drawing and all you chose.");
  });
  button.addEventListener("click", () => {
    open(panel.hidden !== false);
    if (!panel.hidden) void copyCommand();
  });
  byId("close-command").addEventListener("click", () => {
    open(false);
    button.focus();
  });
  byId("copy-command").addEventListener("click", () => void copyCommand());
  byId("save-drawing").addEventListener("click", () => save(picture()));
  return { refresh: () => panel.hidden || say(byId("command-text"), command()) };
}

/** @param {Gray} picture */
function save(picture) {
  const canvas = make("canvas", { width: picture.width, height: picture.height });
  paintGray(canvas, picture);
  canvas.toBlob((blob) => {
    if (blob === null) return;
    const link = make("a", { href: URL.createObjectURL(blob), download: "drawing.png" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }, "image/png");
}

/**
 * The call that makes the same picture. The ViT in the box is the one `look` takes by itself; any other model is named
 * by its run's folder, which is its id, in the place where runs are kept.
 * @param {Model | null} model
 * @param {Model | null} beside
 * @param {import("./state.js").State} state
 */
export function lookCommand(model, beside, { query, removedHeads, removedPatches }) {
  const boxed = (/** @type {Model} */ each) => each.run === undefined && each.id === each.kind;
  const run = (/** @type {Model} */ each) => (boxed(each) ? `box:${each.id}` : quoted(each.run ?? `runs/${each.id}`));
  const parts = ["vitreous look drawing.png"];
  if (model !== null && run(model) !== "box:vit") parts.push(`--run ${run(model)}`);
  if (model !== null && beside !== null) parts.push(`--against ${run(beside)}`);
  if (model?.kind === "vit") {
    if (query >= 0) parts.push(`--patch ${query}`);
    parts.push(...removedHeads.map(([layer, head]) => `--without-head ${layer + 1}-${head + 1}`));
    parts.push(...removedPatches.map((patch) => `--without-patch ${patch}`));
  }
  parts.push("-o look-drawing");
  return parts.join(" ");
}

/** @param {string} text */
function quoted(text) {
  return /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
