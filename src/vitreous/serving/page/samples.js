/**
 * A strip of test images to choose from.
 *
 * @import { Samples } from "./engine.js"
 */

import { byId, canvasOf, make, makeButton, onClick, setText } from "./dom.js";
import { text } from "./texts.js";
import { range } from "./vit-maths.js";

const SHOWN = 10;

export class SampleStrip {
  /** @type {Samples} */
  #offered = { samples: [], note: "" };
  #first = 0;

  /** @param {(index: number) => void} onChoose */
  constructor(onChoose) {
    this.onChoose = onChoose;
    onClick("more-samples", () => this.#show(this.#first + SHOWN));
  }

  /** @param {Samples} offered */
  offer(offered) {
    this.#offered = offered;
    setText("samples-label", offered.note || text("samples.label"));
    this.#show(0);
  }

  /** @param {number} from */
  #show(from) {
    const { samples } = this.#offered;
    const count = samples.length;
    this.#first = count > 0 ? from % count : 0;
    const shown = range(Math.min(SHOWN, count)).map((i) => (this.#first + i) % count);
    byId("samples").replaceChildren(
      ...shown.map((index) => {
        const { label, image } = samples[index];
        const name = make("span", { class: "sample-name", "aria-hidden": "true" }, label);
        const attributes = { class: "sample", "aria-label": text("samples.one", label), title: label };
        return makeButton(attributes, () => this.onChoose(index), canvasOf(image), name);
      }),
    );
    byId("more-samples").hidden = count <= SHOWN;
  }
}
