/**
 * The worker in which onnxruntime-web runs the graphs. Two kinds of message: what to start with, then one run at a time.
 *
 * @typedef {{ data: Float32Array, dims: readonly number[] }} GraphTensor  as it travels between worker and page
 */

/** @type {any} onnxruntime-web, which has no types here */
let ort = null;
/** @type {Map<string, any>} */
const sessions = new Map();
let queue = Promise.resolve(); // a session runs one input at a time

/** @param {Uint8Array} wasm @param {{ id: string, bytes: Uint8Array }[]} graphs */
async function start(wasm, graphs) {
  const folder = new URL("./ort/", import.meta.url).href;
  ort = await import(`${folder}ort.wasm.min.mjs`);
  ort.env.wasm.wasmPaths = folder;
  ort.env.wasm.wasmBinary = wasm; // fetched by the page, which shows how much is loaded
  ort.env.wasm.numThreads = 1; // more would need a cross-origin isolated page
  ort.env.logLevel = "error";
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
  for (const { id, bytes } of graphs) sessions.set(id, await ort.InferenceSession.create(bytes, options));
}

/**
 * @param {string} id
 * @param {Record<string, GraphTensor>} feeds
 * @param {string[]} outputs
 * @returns {Promise<Record<string, GraphTensor>>}
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
