"""Two models that predict different classes are pointed out, in a sentence and to screen readers."""

from __future__ import annotations

from typing import Any

SENTENCES = """async ([cases, site]) => {
  const { disagreementSentence } = await import(site + "disagreement.js");
  const prediction = (row, i) => ({ name: ["ViT", "CNN"][i], probabilities: row && Float32Array.from(row) });
  return cases.map((rows) => disagreementSentence(rows.map(prediction), ["0", "1", "7"]));
}"""
SHOWN = """async (site) => {
  const { Bars } = await import(site + "bars.js");
  const place = document.createElement("div");
  const bars = new Bars(place);
  const texts = [];
  for (const cnn of [[0.2, 0.7, 0.1], [0.1, 0.1, 0.8]]) {
    bars.paint([["ViT", "vit", [0, 0, 1]], ["CNN", "cnn", cnn]].map(([name, kind, row]) => (
      { name, kind, probabilities: Float32Array.from(row), unlike: false, before: null })), ["0", "1", "7"]);
    texts.push(place.querySelector("#disagreement").textContent);
  }
  return texts;
}"""


def test_disagreement_is_pointed_out(open_page: Any, static_site: str) -> None:
    page = open_page(static_site).page
    sure_7, sure_1, unsure_1 = [0.0, 0.05, 0.95], [0.01, 0.98, 0.01], [0.2, 0.5, 0.3]
    cases = [
        [sure_7, sure_1],
        [sure_7, unsure_1],
        [[0.3, 0.3, 0.4], unsure_1],
        [sure_7, sure_7],
        [sure_7, None],
        [sure_7],
    ]
    both, one, neither, *nothing = page.evaluate(SENTENCES, [cases, static_site])
    assert both == (
        "The models disagree: ViT predicts 7 (95.0 %), CNN predicts 1 (98.0 %)."
        " Both are sure, and at least one of them is wrong."
    )
    assert one.endswith("CNN predicts 1 (50.0 %). Only ViT is sure.")
    assert neither.endswith("Neither is sure.")
    assert nothing == ["", "", ""]
    differs, agrees = page.evaluate(SHOWN, static_site)
    assert differs == "The models disagree: ViT predicts 7 (100.0 %), CNN predicts 1 (70.0 %). Only ViT is sure."
    assert agrees == ""
