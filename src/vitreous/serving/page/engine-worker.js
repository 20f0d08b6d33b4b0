/**
 * The worker in which onnxruntime-web runs the graphs. Two messages: what to start with, then questions, one at a time.
 *
 * @typedef {{ data: Float32Array, dims: readonly number[] }} Plain  a tensor as it travels between worker and page
 */

/** @type {any} onnxruntime-web, which comes without types here */
let ort = null;
/** @type {Map<string, any>} */
const sessions = new Map();
let queue = Promise.resolve(); // a session answers one question at a time

/**
 * @param {Uint8Array} wasm
 * @param {{ id: string, bytes: Uint8Array }[]} graphs
 */
async function start(wasm, graphs) {
  const folder = new URL("./ort/", import.meta.url).href;
  ort = await import(`${folder}ort.wasm.min.mjs`);
  ort.env.wasm.wasmPaths = folder;
  ort.env.wasm.wasmBinary = wasm; // fetched by the page, which tells how much is left
  ort.env.wasm.numThreads = 1; // more would need a page isolated from all others
  ort.env.logLevel = "error";
  for (const { id, bytes } of graphs) {
    sessions.set(id, await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], graphOptimizationLevel: "all" }));
  }
}

/**
 * @param {string} id
 * @param {Record<string, Plain>} feeds
 * @param {string[]} outputs
 * @returns {Promise<Record<string, Plain>>}
 */
async function run(id, feeds, outputs) {
  const tensors = Object.fromEntries(
    Object.entries(feeds).map(([name, { data, dims }]) => [name, new ort.Tensor("float32", data, dims)]),
  );
  const found = await sessions.get(id).run(tensors, outputs);
  return Object.fromEntries(outputs.map((name) => [name, { data: found[name].data, dims: found[name].dims }]));
}

self.addEventListener("message", ({ data: { id, wasm, graphs, run: model, feeds, outputs } }) => {
  queue = queue.then(async () => {
    try {
      const found = wasm ? await start(wasm, graphs) : await run(model, feeds, outputs);
      self.postMessage({ id, outputs: found });
    } catch (error) {
      self.postMessage({ id, error: String(/** @type {any} */ (error)?.message ?? error).slice(0, 200) });
    }
  });
});
