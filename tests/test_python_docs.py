"""Run docs/python.md: its blocks in order, in one namespace, with shorter trainings."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")


def test_every_block(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) >= 9, "the page lost its examples"
    names: dict = {}
    for block in blocks:
        exec(compile(block.replace("epochs=20", "epochs=5"), "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "fit() has no setting 'ephocs'; did you mean epochs?" in printed
    assert "huggingface-cli upload USER/digits-vit" in printed
    assert (Path(names["out"]) / "digits-vit" / "README.md").is_file()
    assert list((Path(names["out"]) / "4" / "tensorboard").glob("events.*"))
