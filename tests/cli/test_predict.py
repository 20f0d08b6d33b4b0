"""`vitreous predict` for many files: tables, exit codes, notes once, and Ctrl-C."""

from __future__ import annotations

import csv
import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous.cli

RUN = ("--run", "bundled:cnn")


@pytest.fixture
def drawings(tmp_path: Path, monkeypatch) -> Path:
    """A current folder with 30 drawings, dark on light."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for index in range(30):
        drawing = np.full((28, 28), 250, np.uint8)
        drawing[4:24, 12 + index % 5 : 15 + index % 5] = 10
        Image.fromarray(drawing).save(tmp_path / "in" / f"{index:02}.png")
    return tmp_path


def predict(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["vitreous", "predict", *arguments, *RUN])
    with pytest.raises(SystemExit) as stop:
        vitreous.cli.main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_folder_becomes_a_table(drawings: Path, capsys, monkeypatch) -> None:
    code, out, errors = predict(capsys, monkeypatch, "in", "-o", "out/p.csv")
    assert (code, errors) == (0, "")
    assert [row["image"] for row in rows("out/p.csv")] == [f"in/{index:02}.png" for index in range(30)]
    assert out.startswith("30 images predicted, 0 failed\n")
    assert out.endswith("out/p.csv\n")
    assert out.count("dark on light: inverted to light on dark") == 1, "a note is printed once, with its count"
    assert "30 ×: dark on light" in out


def test_one_bad_file_is_a_row_and_exit_code_1(drawings: Path, capsys, monkeypatch) -> None:
    (drawings / "in" / "05.png").write_text("no image")
    code, out, errors = predict(capsys, monkeypatch, "in", "missing.png", "-o", "p.csv", "--json")
    assert code == 1
    value = json.loads(out)
    assert (value["output"], value["predicted"], value["failed"]) == ("p.csv", 29, 2)
    assert value["errors"] == [row["error"] for row in rows("p.csv") if row["error"]]
    assert errors.splitlines() == [f"vitreous: {error}" for error in value["errors"]]
    assert rows("p.csv")[-1]["error"] == "there is no file missing.png"


def test_where_nothing_can_be_predicted_nothing_is_written(drawings: Path, capsys, monkeypatch) -> None:
    Path("p.csv").write_text("older")
    for name in ("a.png", "b.png"):
        (drawings / name).write_bytes(b"")
    code, out, errors = predict(capsys, monkeypatch, "a.png", "b.png", "-o", "p.csv")
    assert (code, out) == (2, "")
    assert errors == "vitreous: a.png is empty (and 1 more that cannot be read)\n"
    for arguments in (["in", "-o", "p.txt"], ["in", "-o", "in"], ["nothing*.png", "-o", "p.csv"]):
        assert predict(capsys, monkeypatch, *arguments)[0] == 2
    assert Path("p.csv").read_text() == "older"
    assert sorted(path.name for path in drawings.iterdir()) == ["a.png", "b.png", "in", "p.csv"]


def test_without_a_file_many_images_are_summarised(drawings: Path, capsys, monkeypatch) -> None:
    code, out, errors = predict(capsys, monkeypatch, "in")
    assert (code, errors) == (0, "")
    assert "-o predictions.csv" in out
    assert "in/00.png" not in out
    code, out, _ = predict(capsys, monkeypatch, "in/0*.png")
    assert code == 0
    assert out.count("in/0") == 10, "a few are listed"


def test_every_image_as_json(drawings: Path, capsys, monkeypatch) -> None:
    (drawings / "in" / "05.png").write_text("no image")
    code, out, _ = predict(capsys, monkeypatch, "in", "--json", "--top", "2")
    listed = json.loads(out)
    assert code == 1
    assert len(listed) == 30
    assert len(listed[0]["probabilities"]) == 2
    assert listed[0]["notes"]
    assert "is not a PNG" in listed[5]["error"]


def test_a_list_gives_its_columns_to_the_table(drawings: Path, capsys, monkeypatch) -> None:
    Path("list.csv").write_text("path,label,site\nin/00.png,1,north\nin/01.png,1,south\n")
    code, _, _ = predict(capsys, monkeypatch, "list.csv", "-o", "p.jsonl")
    assert code == 0
    first, second = (json.loads(line) for line in Path("p.jsonl").read_text().splitlines())
    assert (first["image"], first["given_label"], second["site"]) == ("in/00.png", "1", "south")
    code, _, errors = predict(capsys, monkeypatch, "list.csv", "-o", "list.csv")
    assert code == 2
    assert "is also the list of images" in errors
    assert Path("list.csv").read_text().startswith("path,label")


def test_ctrl_c_keeps_the_rows_under_another_name(drawings: Path, processes) -> None:
    """An older file stays as it was; the rows that are complete are kept, and the exit code is that of an interrupt."""
    Path("p.csv").write_text("older")
    Path("list.txt").write_text("in/00.png\n" * 200_000)
    child = processes.vitreous("predict", "list.txt", "-o", "p.csv", *RUN, cwd=drawings)
    end = time.monotonic() + 60
    while "predict: " not in child.output()[1] and time.monotonic() < end:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    code = child.wait(60)
    out, errors = child.output()
    assert (code, out) == (130, "")
    kept = rows("p.partial.csv")
    assert f"vitreous: stopped after {len(kept):,} of 200,000 images; their rows are in p.partial.csv" in errors
    assert len(kept) > 0
    assert all(row["label"] and row["p_9"] for row in kept), "no torn row"
    assert Path("p.csv").read_text() == "older"
    assert not list(drawings.glob(".*")), "no temporary file is left"
