/**
 * Sharing: the page's address, the drawing as a file, and the command that gives the same result.
 *
 * @import { Model } from "./engine.js"
 * @import { Gray } from "./normalise.js"
 * @import { Session } from "./session.js"
 */

import { byId, grayCanvas, make, onClick, setAttributes, setText } from "./dom.js";

const NOTICE_SECONDS = 4;
let noticeTimer = 0;

/** @param {string} sentence */
export function showNotice(sentence) {
  setText("notice", sentence);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => setText("notice", ""), 1000 * NOTICE_SECONDS);
}

/** @param {string} text @param {string} done @param {string} otherwise  if the browser does not allow it */
async function copy(text, done, otherwise) {
  try {
    await navigator.clipboard.writeText(text);
    showNotice(done);
  } catch {
    showNotice(otherwise);
  }
}

/** @param {() => string} address  of this page, with all settings @param {() => Gray} picture  for drawing.png */
export function offerSharing(address, picture) {
  const [button, panel] = [byId("command"), byId("command-panel")];
  const open = (/** @type {boolean} */ opened) => {
    panel.hidden = !opened;
    setAttributes(button, { "aria-expanded": String(opened) });
  };
  const copyCommand = () =>
    copy(
      byId("command-text").textContent,
      "Command copied. Save the drawing as drawing.png before you run it.",
      "This browser does not allow copying: select the command and copy it yourself.",
    );
  onClick("share", () => {
    const contents = "it contains the drawing and all settings.";
    void copy(address(), `Link copied: ${contents}`, `Copy the address of this page: ${contents}`);
  });
  onClick("command", () => {
    const opens = Boolean(panel.hidden);
    open(opens);
    if (opens) void copyCommand();
  });
  onClick("close-command", () => {
    open(false);
    button.focus();
  });
  onClick("copy-command", () => void copyCommand());
  onClick("save-drawing", () => save(picture()));
}

/** @param {Gray} picture */
function save(picture) {
  grayCanvas(picture).toBlob((blob) => {
    if (blob === null) return;
    const link = make("a", { href: URL.createObjectURL(blob), download: "drawing.png" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }, "image/png");
}

/**
 * Return the command that gives the same result. The bundled ViT is the default of `look`; any other model is named by
 * its run's folder, or else by its id among the runs.
 * @param {Session} session
 */
export function lookCommand({ vit, cnn, state }) {
  const parts = ["vitreous look drawing.png"];
  const [run, against] = vit === null ? [cnn, null] : [vit, cnn];
  if (run !== null && runName(run) !== "bundled:vit") parts.push(`--run ${runName(run)}`);
  if (against !== null) parts.push(`--against ${runName(against)}`);
  if (vit !== null) {
    if (state.query >= 0) parts.push(`--patch ${state.query}`);
    parts.push(...state.removedHeads.map(([layer, head]) => `--without-head ${layer + 1}-${head + 1}`));
    parts.push(...state.removedPatches.map((patch) => `--without-patch ${patch}`));
  }
  return [...parts, "-o look-drawing"].join(" ");
}

/** @param {Model} model */
function runName({ run, id, kind }) {
  if (run === undefined && id === kind) return `bundled:${id}`;
  const folder = run ?? `runs/${id}`;
  return /^[\w./-]+$/.test(folder) ? folder : `'${folder.replaceAll("'", "'\\''")}'`;
}
