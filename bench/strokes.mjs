// Draws strokes (JSON on stdin) with the page's own code, and writes the models' input (JSON on stdout) with and without
// normalisation. Used by bench/strokes.py.
import { readFileSync } from "node:fs";

const page = new URL("../src/vitreous/serving/page/", import.meta.url);
const { rasterise } = await import(new URL("raster.js", page));
const { areaAverage, normalise } = await import(new URL("normalise.js", page));

const base64 = (values) => Buffer.from(values).toString("base64");
const drawings = JSON.parse(readFileSync(0, "utf8"));
const pictures = drawings.map((strokes) => {
  const sheet = rasterise(strokes);
  return {
    normalised: base64(normalise(sheet)?.centred.values ?? new Uint8Array(28 * 28)),
    plain: base64(areaAverage(sheet, 28, 28).values), // only reduced to 28×28
  };
});
process.stdout.write(JSON.stringify(pictures));
