/**
 * The worker in which onnxruntime-web runs the graphs. Three kinds of message: the runtime, a graph to open, a run.
 *
 * @typedef {{ data: Float32Array, dims: readonly number[] }} GraphTensor  as it travels between worker and page
 */

const FOLDER = new URL("./ort/", import.meta.url).href;
/** onnxruntime-web, which has no types here; imported while the page fetches the rest @type {Promise<any>} */
const imported = import(`${FOLDER}ort.wasm.min.mjs`);
/** @type {any} */
let ort = null;
/** @type {Map<string, any>} */
const sessions = new Map();
let queue = Promise.resolve(); // a session runs one input at a time

/** @param {Uint8Array} wasm  fetched by the page, which shows how much is loaded */
async function start(wasm) {
  ort = await imported;
  ort.env.wasm.wasmPaths = FOLDER;
  ort.env.wasm.wasmBinary = wasm;
  ort.env.wasm.numThreads = 1; // more would need a cross-origin isolated page
  ort.env.logLevel = "error";
}

/** @param {string} id @param {Uint8Array} graph */
async function open(id, graph) {
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
  sessions.set(id, await ort.InferenceSession.create(graph, options));
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

/** @param {{ wasm?: Uint8Array, open?: string, graph: Uint8Array, run: string, feeds: any, outputs: string[] }} message */
function handle({ wasm, open: opened, graph, run: model, feeds, outputs }) {
  if (wasm) return start(wasm);
  return opened === undefined ? run(model, feeds, outputs) : open(opened, graph);
}

imported.catch(() => {}); // reported by `start`
self.addEventListener("message", ({ data: { id, ...message } }) => {
  queue = queue.then(async () => {
    try {
      self.postMessage({ id, outputs: await handle(message) });
    } catch (error) {
      self.postMessage({ id, error: String(/** @type {any} */ (error)?.message ?? error).slice(0, 200) });
    }
  });
});
