/**
 * The share card: a PNG with the input, both predictions and the attention of the class token, drawn on a canvas.
 *
 * @import { Tensor, ViTModel } from "../engine.js"
 * @import { Host } from "./play.js"
 */

import { amountColor, COLOR_OPACITY, css } from "../colors.js";
import { canvasOf, contextOf, make, makeButton } from "../dom.js";
import { argmax, attentionFrom, patchOffset, pixelEdges, rowAndColumn } from "../vit-maths.js";
import { percent } from "../words.js";
import { CARD } from "./texts.js";

const [WIDTH, HEIGHT, MARGIN, PICTURE] = [1200, 630, 64, 336];
const COLORS = { paper: "#ffffff", ink: "#1b2126", soft: "#5b6670", vit: "#0b7f7c", cnn: "#b8750c", line: "#dde2e5" };
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

export class ShareCard {
  #save = makeButton({}, () => void this.#download(), CARD.make);
  #share = makeButton({ class: "plain", hidden: true }, () => void this.#send(), CARD.share);

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    const about = make("p", { class: "small soft" }, CARD.about);
    const buttons = make("p", { class: "row" }, this.#save, this.#share);
    this.element = make("div", { class: "play-part", id: "card" }, make("h3", {}, CARD.title), about, buttons);
    const probe = new File([], CARD.file, { type: "image/png" });
    this.#share.hidden = !(navigator.canShare?.({ files: [probe] }) ?? false);
  }

  refresh() {
    this.#save.disabled = this.#share.disabled = this.host.session.results.isBlank;
  }

  async #file() {
    const canvas = this.draw();
    const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ resolve) => canvas.toBlob(resolve, "image/png"));
    return new File(blob === null ? [] : [blob], CARD.file, { type: "image/png" });
  }

  async #download() {
    const address = URL.createObjectURL(await this.#file());
    make("a", { href: address, download: CARD.file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  async #send() {
    try {
      await navigator.share({ files: [await this.#file()], title: CARD.heading });
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // the visitor changed their mind
    }
  }

  /** Return the card. */
  draw() {
    const { session } = this.host;
    const canvas = make("canvas", { width: WIDTH, height: HEIGHT });
    const context = contextOf(canvas);
    const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ style, /** @type {string} */ color) => {
      context.font = `${style} ${FONT}`;
      context.fillStyle = color;
      context.fillText(text, x, y);
    };
    context.fillStyle = COLORS.paper;
    context.fillRect(0, 0, WIDTH, HEIGHT);
    write(CARD.heading, MARGIN, 92, "600 40px", COLORS.ink);
    const top = 132;
    this.#paintInput(context, MARGIN, top, false);
    const isWhole = session.vit === null || session.state.removedPatches.length === 0;
    write(isWhole ? CARD.input : CARD.removed, MARGIN, top + PICTURE + 32, "20px", COLORS.soft);
    const hasMap = session.vit !== null && session.results.vit?.attention !== undefined;
    if (hasMap) {
      this.#paintInput(context, MARGIN + PICTURE + 24, top, true);
      write(CARD.attention, MARGIN + PICTURE + 24, top + PICTURE + 32, "20px", COLORS.soft);
    }
    const left = MARGIN + (hasMap ? 2 : 1) * (PICTURE + 24) + 24;
    session.predictions().forEach(({ name, kind, probabilities, unlike }, i) => {
      if (probabilities === null) return;
      const y = top + i * 176;
      const best = argmax(probabilities);
      const label = session.classNames[best];
      write(name, left, y + 22, "22px", COLORS[kind]);
      write(label, left, y + 104, `600 ${label.length > 2 ? 44 : 88}px`, COLORS[kind]);
      write(percent(probabilities[best]), left + (label.length > 2 ? 0 : 76), y + (label.length > 2 ? 140 : 104), "28px", COLORS.ink);
      if (unlike) write(CARD.unlike, left, y + 140, "18px", COLORS.soft);
    });
    context.fillStyle = COLORS.line;
    context.fillRect(MARGIN, HEIGHT - 76, WIDTH - 2 * MARGIN, 1);
    write(CARD.footer, MARGIN, HEIGHT - 38, "20px", COLORS.soft);
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {boolean} withAttention */
  #paintInput(context, x, y, withAttention) {
    const { results, vit, lead, state } = this.host.session;
    if (lead === null) return;
    const [height, width] = lead.image_size;
    const scale = PICTURE / Math.max(height, width);
    context.imageSmoothingEnabled = false;
    const picture = canvasOf({ values: results.pixels, channels: lead.channels, height, width });
    context.drawImage(picture, x, y, width * scale, height * scale);
    if (vit === null) return;
    const attention = results.vit?.attention;
    if (withAttention && attention !== undefined) this.#paintAttention(context, vit, attention, x, y, scale);
    for (const patch of state.removedPatches) hatch(context, placeOf(vit, patch, x, y, scale));
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {ViTModel} vit @param {Tensor} attention
   * @param {number} x @param {number} y @param {number} scale
   */
  #paintAttention(context, vit, attention, x, y, scale) {
    const { layer } = this.host.session;
    const weights = attentionFrom(attention, layer, -1, -1, vit).subarray(patchOffset(vit)); // the mean of all heads
    const highest = weights.reduce((high, weight) => Math.max(high, weight), 0) || 1;
    context.globalAlpha = COLOR_OPACITY;
    weights.forEach((weight, patch) => {
      context.fillStyle = css(amountColor(weight / highest));
      context.fillRect(...placeOf(vit, patch, x, y, scale));
    });
    context.globalAlpha = 1;
  }
}

/**
 * Return left, top, width and height of a patch on the card.
 * @param {ViTModel} vit @param {number} patch @param {number} x @param {number} y @param {number} scale
 * @returns {[number, number, number, number]}
 */
function placeOf(vit, patch, x, y, scale) {
  const [row, column] = rowAndColumn(patch, vit.grid);
  const [down, across] = pixelEdges(vit);
  const [left, top] = [across[column], down[row]];
  const [wide, tall] = [across[column + 1] - left, down[row + 1] - top];
  return [x + left * scale, y + top * scale, wide * scale - 2, tall * scale - 2];
}

/** @param {CanvasRenderingContext2D} context @param {[number, number, number, number]} place */
function hatch(context, place) {
  const [x, y, width, height] = place;
  context.save();
  context.beginPath();
  context.rect(...place);
  context.clip();
  context.fillStyle = COLORS.paper;
  context.fillRect(...place);
  context.strokeStyle = COLORS.soft;
  context.beginPath();
  for (let along = -height; along < width; along += 9) {
    context.moveTo(x + along, y + height);
    context.lineTo(x + along + height, y);
  }
  context.stroke();
  context.restore();
}
