/** What the page is waiting for. */

const pending = {
  prediction: true, models: false, maps: false, address: false, samples: false, file: false, trace: false,
};

/**
 * Set <html data-status>: "idle" once all results are shown and the address is written. Scripts and tests wait for it.
 * @param {Partial<typeof pending>} change
 */
export function markPending(change) {
  Object.assign(pending, change);
  document.documentElement.dataset.status = Object.values(pending).some(Boolean) ? "busy" : "idle";
}
