/**
 * What the page shows: the user's choices, the models, their results for the current input, and values derived from
 * these.
 *
 * @import { Engine, LookResult, Model } from "./engine.js"
 * @import { Image } from "./fitting.js"
 * @import { State } from "./state.js"
 *
 * @typedef {object} Results
 * @property {Uint8Array} pixels  the models' input, (channels, height, width); black where there is none
 * @property {boolean} isBlank  there is no input
 * @property {LookResult | null} vit
 * @property {LookResult | null} cnn
 * @property {{ vit: Float32Array | null, cnn: Float32Array | null }} before  the probabilities with nothing removed
 * @property {{ vit: number | null, cnn: number | null }} novelty  with nothing removed
 */

import { isViT } from "./engine.js";
import { initialState, limited, VIEWS } from "./state.js";
import {
  argmax, attentionFrom, numPatches, numTokens, patchOffset, patchOfPixels, range, shifted, shuffled, shuffledOrder,
} from "./vit-maths.js";

export const KINDS = /** @type {const} */ (["vit", "cnn"]);

const SHIFTS = 8; // in each direction

/** @param {Model | null} model @returns {Results} */
export function noResults(model) {
  const none = { vit: null, cnn: null };
  const [height, width] = model?.image_size ?? [0, 0];
  const pixels = new Uint8Array((model?.channels ?? 0) * height * width);
  return { pixels, isBlank: true, ...none, before: none, novelty: none };
}

export class Session {
  state = initialState();
  /** @type {Engine | null} */
  engine = null;
  /** @type {Model[]} */
  models = [];
  results = noResults(null);
  /** the input as the model gets it, before it is shifted or shuffled; null: there is none @type {Image | null} */
  seen = null;
  /** the patch under the pointer or with the keyboard's focus @type {number | null} */
  pointed = null;
  lastPointed = 0;
  /** whether the maps of patch removal and relevance belong to an earlier drawing, and the time they took */
  slowMaps = { stale: true, milliseconds: 0 };
  /** the models that `results` belong to @type {Record<"vit" | "cnn", Model | null>} */
  #resultsOf = { vit: null, cnn: null };

  get vits() {
    return this.models.filter(isViT);
  }

  /** The models to choose from: the ViTs, and the others that cannot be shown next to one. */
  get leading() {
    const { vits } = this;
    return [...vits, ...this.models.filter((model) => !isViT(model) && !vits.some((vit) => areComparable(vit, model)))];
  }

  /** The chosen model, which decides what the input is. */
  get lead() {
    const { leading } = this;
    return leading.find((model) => model.id === this.state.vit) ?? leading[0] ?? null;
  }

  get vit() {
    const { lead } = this;
    return lead !== null && isViT(lead) ? lead : null;
  }

  /** The models that can be shown next to the ViT; without a ViT, the chosen model alone. */
  get comparable() {
    const { vit, lead } = this;
    if (vit === null) return lead === null ? [] : [lead];
    const others = this.models.filter((model) => model !== vit && areComparable(model, vit));
    const cnns = others.filter((model) => !isViT(model));
    return cnns.length > 0 ? cnns : others; // without another kind of model, another ViT
  }

  get cnn() {
    const { comparable } = this;
    return comparable.find((model) => model.id === this.state.cnn) ?? comparable[0] ?? null;
  }

  /** The layer shown, from 0. */
  get layer() {
    return this.state.layer < 0 ? (this.vit?.depth ?? 1) - 1 : this.state.layer;
  }

  /** The patch whose attention is shown, or -1. */
  get query() {
    return this.state.key !== null || this.pointed === null ? this.state.query : this.pointed;
  }

  /** The token whose weight the arithmetic explains; null: the arithmetic is closed. */
  get key() {
    const { vit, pointed } = this;
    return this.state.key === null || pointed === null || vit === null ? this.state.key : pointed + patchOffset(vit);
  }

  /** The token whose way through the model the diagram shows: the chosen patch's, the class token, or a patch's. */
  get token() {
    const { vit, query } = this;
    if (vit === null) return 0;
    return query < 0 && !vit.has_class_token ? this.lastPointed : Math.max(0, query + patchOffset(vit));
  }

  /** The number that the arithmetic explains: an attention weight, or one of a node; null: it is closed. */
  get opened() {
    return this.key !== null ? /** @type {const} */ ("weight") : this.state.node;
  }

  /** How far the diagram is zoomed in. */
  get level() {
    return this.hasAttention || this.state.level === "model" ? this.state.level : "layer";
  }

  /** Whether the engine can send all attention weights of the ViT. */
  get hasAttention() {
    const { vit, engine } = this;
    if (vit === null || engine === null) return false;
    const tokens = numTokens(vit);
    return vit.depth * vit.num_heads * tokens * (tokens + 3 * vit.head_dim) <= engine.mostNumbers;
  }

  get views() {
    const { vit, engine } = this;
    return VIEWS.filter(
      (view) =>
        (view !== "attention" || this.hasAttention) &&
        (view !== "relevance" || engine?.hasGradients) &&
        (view !== "positions" || vit?.position_similarity !== null) &&
        (view !== "rollout" || vit?.pool !== "seq"), // the graph does not output the weights of that pooling
    );
  }

  /** Blank patches that the ViT skips in this image. */
  get skippedPatches() {
    const kept = this.results.vit?.kept;
    return kept ? range(kept.length).filter((patch) => !kept[patch] && !this.state.removedPatches.includes(patch)) : [];
  }

  get classNames() {
    return (this.vit ?? this.cnn)?.class_names ?? [];
  }

  /** The pixels that one press shifts the image by: one of 28. */
  get shiftStep() {
    return Math.max(1, Math.round(Math.min(...(this.lead?.image_size ?? [28])) / 28));
  }

  get isRearranged() {
    return this.state.shift.some((by) => by !== 0) || this.state.shuffle !== 0;
  }

  /** @param {number} layer @param {number} head */
  isHeadRemoved(layer, head) {
    return this.state.removedHeads.some(([l, h]) => l === layer && h === head);
  }

  /** What the bars show. */
  predictions() {
    const { results } = this;
    return KINDS.flatMap((kind) => {
      const model = this[kind];
      const probabilities = results[kind]?.probabilities ?? null;
      const unlike = (results.novelty[kind] ?? 0) > 1;
      return model === null ? [] : [{ name: model.name, kind, probabilities, unlike, before: results.before[kind] }];
    });
  }

  /** @param {Partial<State>} change */
  update(change) {
    this.state = { ...this.state, ...change };
    const { vit, views } = this;
    if (this.lead === null) return; // the models are still loading
    const most = SHIFTS * this.shiftStep;
    const [right, down] = this.state.shift.map((by) => Math.min(most, Math.max(-most, by)));
    this.state = { ...this.state, shift: [right, down] };
    if (vit === null) {
      this.state = { ...this.state, key: null, node: null, level: "model", step: 0, shuffle: 0 }; // there are no tokens
    } else {
      const { depth, num_heads, grid } = vit;
      this.state = limited(this.state, { depth, num_heads, grid, tokens: numTokens(vit), views });
      if (!this.hasAttention) this.state.key = null;
    }
  }

  /** Drop the results of models that are no longer chosen, and limit the state to the chosen ones. */
  useChosenModels() {
    const { vit, cnn, lead } = this;
    const old = this.#resultsOf;
    const oldLead = old.vit ?? old.cnn;
    this.#resultsOf = { vit, cnn };
    if (lead !== null && (oldLead === null || !takeSameImages(lead, oldLead))) this.results = noResults(lead);
    for (const kind of KINDS) {
      if (this[kind] === old[kind]) continue;
      const { before, novelty } = this.results;
      const dropped = { before: { ...before, [kind]: null }, novelty: { ...novelty, [kind]: null } };
      this.results = { ...this.results, [kind]: null, ...dropped };
    }
    if (vit !== old.vit) {
      this.slowMaps = { stale: true, milliseconds: 0 };
      this.pointed = null;
      this.lastPointed = 0;
    }
    this.update({});
  }

  /** Return the models' input, shifted and shuffled. @param {Image} image */
  arrange({ values, height, width }) {
    const { vit, state } = this;
    const moved = shifted(values, [height, width], state.shift);
    if (vit === null || state.shuffle === 0) return moved;
    return shuffled(moved, vit, shuffledOrder(numPatches(vit), state.shuffle));
  }

  /** Return the masks of what is removed; null where nothing is. */
  masks() {
    const { vit } = this;
    const { removedHeads, removedPatches } = this.state;
    if (vit === null) return { headMask: null, tokenMask: null };
    const heads = range(vit.depth).map(() => Array(vit.num_heads).fill(1));
    const patches = Array(numPatches(vit)).fill(1);
    for (const [layer, head] of removedHeads) heads[layer][head] = 0;
    for (const patch of removedPatches) patches[patch] = 0;
    return { headMask: removedHeads.length > 0 ? heads : null, tokenMask: removedPatches.length > 0 ? patches : null };
  }

  /** Return the patch with the largest sum of pixels: where there is most to see. */
  fullestPatch() {
    const { vit, results } = this;
    if (vit === null) return -1;
    const sums = new Float64Array(numPatches(vit));
    const patches = patchOfPixels(vit);
    results.pixels.forEach((value, i) => (sums[patches[i % patches.length]] += value));
    return argmax(sums);
  }

  /**
   * Choose one weight to explain: one head, one query token and the key it attends to most. The mean of all tokens has
   * no query, so a patch replaces it.
   * @param {number} from  a patch, or -1
   */
  strongestWeight(from) {
    const { vit, results, layer } = this;
    const head = Math.max(0, this.state.head);
    const query = from < 0 && !vit?.has_class_token ? this.lastPointed : from;
    const attention = results.vit?.attention;
    return { head, query, key: vit && attention ? argmax(attentionFrom(attention, layer, head, query, vit)) : 0 };
  }
}

/**
 * Whether two models can be shown side by side: the bars share their labels, so the classes must be the same.
 * @param {Model} one @param {Model} other
 */
function areComparable(one, other) {
  return sameClasses(one, other) && takeSameImages(one, other);
}

/** @param {Model} one @param {Model} other */
export function sameClasses(one, other) {
  return JSON.stringify(one.class_names) === JSON.stringify(other.class_names);
}

/** @param {Model} one @param {Model} other */
export function takeSameImages(one, other) {
  const [first, second] = [one, other].map(({ image_size, channels, preprocessing: { resize, fit = "stretch" } }) =>
    JSON.stringify([image_size, channels, resize, resize === "mnist" || fit]),
  );
  return first === second;
}
