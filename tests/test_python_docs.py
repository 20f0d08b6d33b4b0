"""Run docs/python.md, its blocks in order, in one namespace, with shorter trainings; and the block of docs/look.md."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "python.md").read_text(encoding="utf-8")


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


def test_look(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "look.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(block, "docs/look.md", "exec"), {})
    assert capsys.readouterr().out.startswith("torch.Size([1, 4, 50, 50])\ntensor(")
