/** All that the modules of play/ say; a `{name}` is replaced by `fill` (train/texts.js). */
export const FOOL = {
  title: "Fool it",
  about: "Find the fewest patches without which the ViT predicts something else.",
  start: "Find them",
  stop: "Stop",
  undo: "Put them back",
  searching: "Searching: {tried} sets tried, {removed} patches removed so far …",
  found: "Without {patches} the ViT predicts {after} instead of {before}.",
  onePatch: "the patch in {place}",
  somePatches: "these {count} patches ({places})",
  manyPatches: "the {count} patches that are hatched",
  smallest: "No smaller set does it: all {tried} were tried.",
  minimal: "None of them can be put back: the prediction would return. A smaller set elsewhere is possible; not all were tried.",
  cnnSame: "The CNN, which sees these patches black, keeps its {before}.",
  cnnOther: "The CNN, which sees these patches black, changes from {before} to {after}.",
  stubborn: "It cannot be fooled this way: even with one patch left it predicts {before}.",
  stopped: "Stopped.",
  nothing: "There is nothing to predict yet.",
};

export const MOVE = {
  title: "Move a patch",
  about: "Drag a patch onto another, or choose one and then the other: they change places.",
  board: "Patches of the image, to be moved",
  cell: "Patch {place}",
  cellMoved: "Patch {place}, shows the patch of {from}",
  chosen: ", chosen: choose where it goes",
  reset: "Put all back",
  verdict: "{name}: {after} ({probability})",
  verdictBefore: "{name}: {after} ({probability}), before {before}",
};

export const BREAK = {
  title: "Break it",
  about: "The same drawing in a ViT with one real mistake: its attention runs over the images of a batch.",
  loading: "Loading the broken ViT …",
  missing: "The broken ViT is missing next to this page.",
  alone: "Your image alone",
  together: "Your image with {count} test images in the batch",
  prediction: "{label} ({probability})",
  nothing: "–",
  agree:
    "The same both times, this time. No patch reaches the class token through attention; what it sees of yours leaks through a normalisation.",
  changed: "The same pixels, two predictions: it depends on the other images of the batch.",
  train: "Break one while it trains",
  doctor: "What vitreous doctor reports",
  accuracy: "{share} of the test images are predicted correctly in batches of {batch}, {alone} one at a time.",
};

export const CARD = {
  title: "Share card",
  about: "A picture of this drawing, both predictions and the attention, to keep or to send.",
  make: "Save the card",
  share: "Share the card",
  heading: "What a Vision Transformer sees",
  input: "the image",
  attention: "where the class token looks",
  removed: "without the hatched patches",
  unlike: "unlike its training images",
  footer: "made with vitreous, in the browser",
  file: "vitreous.png",
};
