/**
 * What the page shows: the user's choices, the models, their results for the current drawing, and values derived from
 * these.
 *
 * @import { Engine, LookResult, Model } from "./engine.js"
 * @import { State } from "./state.js"
 *
 * @typedef {object} Results
 * @property {Uint8Array} pixels  the models' input, 28×28
 * @property {LookResult | null} vit
 * @property {LookResult | null} cnn
 * @property {{ vit: Float32Array | null, cnn: Float32Array | null }} before  the probabilities with nothing removed
 * @property {{ vit: number | null, cnn: number | null }} novelty  with nothing removed
 */

import { EngineError, isViT } from "./engine.js";
import { SIDE } from "./normalise.js";
import { initialState, limited, VIEWS } from "./state.js";
import {
  argmax, attentionFrom, numPatches, numTokens, patchOffset, range, shifted, shuffled, shuffledOrder,
} from "./vit-maths.js";

export const KINDS = /** @type {const} */ (["vit", "cnn"]);

/** @returns {Results} */
export function noResults() {
  const none = { vit: null, cnn: null };
  return { pixels: new Uint8Array(SIDE * SIDE), ...none, before: none, novelty: none };
}

export class Session {
  state = initialState();
  /** @type {Engine | null} */
  engine = null;
  /** those that accept the drawing's size @type {Model[]} */
  models = [];
  results = noResults();
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

  get vit() {
    const { vits } = this;
    return vits.find((model) => model.id === this.state.vit) ?? vits[0] ?? null;
  }

  /** The models that can be shown next to the ViT: the bars share their labels, so the classes must be the same. */
  get comparable() {
    const { vit } = this;
    const others = this.models.filter((model) => model !== vit && (vit === null || sameClasses(model, vit)));
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

  get views() {
    const { vit, engine } = this;
    return VIEWS.filter(
      (view) =>
        (view !== "relevance" || engine?.hasGradients) &&
        (view !== "positions" || vit?.position_similarity !== null) &&
        (view !== "rollout" || vit?.pool !== "seq"), // the graph does not output the weights of that pooling
    );
  }

  get classNames() {
    return (this.vit ?? this.cnn)?.class_names ?? [];
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
    if (vit === null) return;
    const { depth, num_heads, grid } = vit;
    this.state = limited(this.state, { depth, num_heads, grid, tokens: numTokens(vit), views });
  }

  /** Keep the models that accept what is drawn here. @param {Model[]} models */
  useModels(models) {
    this.models = models.filter(({ channels, image_size }) => channels === 1 && image_size.every((side) => side === SIDE));
    if (this.models.length > 0) return;
    const [{ name, image_size, channels }] = models;
    throw new EngineError(
      `This page draws 28 × 28 gray pixels, but ${name} expects ${image_size.join(" × ")} pixels in ${channels} ` +
        `channel${channels === 1 ? "" : "s"}. Use \`vitreous look\` instead.`,
    );
  }

  /** Drop the results of models that are no longer chosen, and limit the state to the chosen ones. */
  useChosenModels() {
    const { vit, cnn } = this;
    const old = this.#resultsOf;
    this.#resultsOf = { vit, cnn };
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

  /** Return the models' input: the normalised drawing, shifted and shuffled. @param {Uint8Array} drawn */
  arrange(drawn) {
    const { vit, state } = this;
    const moved = shifted(drawn, [SIDE, SIDE], state.shift);
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

/** @param {Model} one @param {Model} other */
export function sameClasses(one, other) {
  return JSON.stringify(one.class_names) === JSON.stringify(other.class_names);
}
