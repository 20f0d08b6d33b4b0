/**
 * Sharing: the page's address, the input as a file, and the command that gives the same result.
 *
 * @import { Model } from "./engine.js"
 * @import { Image } from "./fitting.js"
 * @import { Session } from "./session.js"
 */

import { byId, canvasOf, make, onClick, setAttributes, setText } from "./dom.js";
import { takesDrawings } from "./engine.js";
import { SIDE } from "./normalise.js";
import { text } from "./texts.js";
import { times } from "./words.js";

const NOTICE_SECONDS = 4;
let noticeTimer = 0;

/** @param {string} sentence */
export function showNotice(sentence) {
  setText("notice", sentence);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => setText("notice", ""), 1000 * NOTICE_SECONDS);
}

/** @param {string} content @param {string} done @param {string} otherwise  if the browser does not allow it */
async function copy(content, done, otherwise) {
  try {
    await navigator.clipboard.writeText(content);
    showNotice(done);
  } catch {
    showNotice(otherwise);
  }
}

/**
 * @param {() => string} address  of this page, with all settings
 * @param {() => string} contents  of the address, in words
 * @param {() => Image} image  to save
 */
export function offerSharing(address, contents, image) {
  const [button, panel] = [byId("command"), byId("command-panel")];
  const open = (/** @type {boolean} */ opened) => {
    panel.hidden = !opened;
    setAttributes(button, { "aria-expanded": String(opened) });
  };
  const copyCommand = () =>
    copy(
      byId("command-text").textContent,
      text("command.copied", byId("file-name").textContent),
      text("command.notCopied"),
    );
  onClick("share", () => {
    const link = address();
    void copy(link, text("link.copied", contents()), text("link.notCopied", contents()));
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
  onClick("save-drawing", () => save(image()));
}

/** @param {Image} image */
function save(image) {
  canvasOf(image).toBlob((blob) => {
    if (blob === null) return;
    const link = make("a", { href: URL.createObjectURL(blob), download: byId("file-name").textContent });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }, "image/png");
}

/** Return the name of the file that the command reads. @param {Session} session */
export function fileName({ lead }) {
  return lead === null || takesDrawings(lead) ? "drawing.png" : "image.png";
}

/**
 * Return the command that gives the same result. The bundled ViT is the default of `look`; any other model is named by
 * its run's folder, or else by its id among the runs.
 * @param {Session} session
 */
export function lookCommand(session) {
  const { vit, cnn, state } = session;
  const name = fileName(session);
  const parts = [`vitreous look ${name}`];
  const [run, against] = vit === null ? [cnn, null] : [vit, cnn];
  if (run !== null && runName(run) !== "bundled:vit") parts.push(`--run ${runName(run)}`);
  if (against !== null) parts.push(`--against ${runName(against)}`);
  if (vit !== null) {
    if (state.query >= 0) parts.push(`--patch ${state.query}`);
    parts.push(...state.removedHeads.map(([layer, head]) => `--without-head ${layer + 1}-${head + 1}`));
    parts.push(...state.removedPatches.map((patch) => `--without-patch ${patch}`));
  }
  return [...parts, `-o look-${name.replace(".png", "")}`].join(" ");
}

/**
 * Say where the command cannot give the same result: it would normalise a digit again that was shifted or shuffled.
 * @param {Session} session
 */
export function rearrangedNote({ lead, isRearranged }) {
  const isSame = !isRearranged || lead === null || !takesDrawings(lead) || lead.image_size.every((side) => side === SIDE);
  return isSame ? "" : text("command.centres", times(lead.image_size));
}

/** @param {Model} model */
function runName({ run, id, kind }) {
  if (run === undefined && id === kind) return `bundled:${id}`;
  const folder = run ?? `runs/${id}`;
  return /^[\w./-]+$/.test(folder) ? folder : `'${folder.replaceAll("'", "'\\''")}'`;
}
