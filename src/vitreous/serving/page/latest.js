/**
 * Runs only the newest piece of work: while one runs, a newer one waits, and whatever waited before it is dropped. This
 * keeps the page responsive while the user draws quickly.
 *
 * @template Input
 */
export class Latest {
  /** @type {{ input: Input } | null} */
  #next = null;
  #busy = false;

  /** @param {(input: Input, isNewest: () => boolean) => Promise<void>} work */
  constructor(work) {
    this.work = work;
  }

  /** @param {Input} input */
  request(input) {
    this.#next = { input };
    if (!this.#busy) void this.#run();
  }

  async #run() {
    if (this.#next === null) return;
    const { input } = this.#next;
    this.#next = null;
    this.#busy = true;
    try {
      await this.work(input, () => this.#next === null);
    } finally {
      this.#busy = false; // also after an exception, or no later request would ever run
      void this.#run();
    }
  }
}
