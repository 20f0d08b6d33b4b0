/**
 * Only the newest piece of work matters: while one runs, a newer one waits, and whatever waited before it is dropped.
 * That is what keeps the page live under a fast pen.
 *
 * @template Input
 */
export class Latest {
  /** @param {(input: Input, isNewest: () => boolean) => Promise<void>} work */
  constructor(work) {
    this.work = work;
    /** @type {{ input: Input } | null} */
    this.next = null;
    this.busy = false;
  }

  /** @param {Input} input */
  ask(input) {
    this.next = { input };
    if (!this.busy) void this.#go();
  }

  async #go() {
    if (this.next === null) return;
    const { input } = this.next;
    this.next = null;
    this.busy = true;
    try {
      await this.work(input, () => this.next === null);
    } finally {
      this.busy = false; // also after a fault, or no later stroke would ever be answered
      void this.#go();
    }
  }
}
