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
    this.busy = true;
    while (this.next !== null) {
      const { input } = this.next;
      this.next = null;
      await this.work(input, () => this.next === null);
    }
    this.busy = false;
  }
}
