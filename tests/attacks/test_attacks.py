"""`make attacks` itself: planted faults are noticed, kept and replayed, and a few real cases run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import planted
import pytest

from attacks import __main__ as program
from attacks import families, http, image_files, images, table, tiny_runs, weight_files, weights
from attacks.cases import Case, Finding, Result, Verdict, flip_bits, judge_message, numbered, take_turns
from attacks.http_requests import bodies, heads
from attacks.runner import replay, run_family, working

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the attacks fork")


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def results(failures: Path) -> dict[str, Result]:
    found = run_family(planted, "planted", planted.cases(7), 300, failures)
    return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", planted.EXPECTED)
def test_planted_faults_are_noticed(results: dict[str, Result], name: str) -> None:
    assert results[name].verdict is planted.EXPECTED[name], results[name].detail


def test_details_say_what_happened(results: dict[str, Result]) -> None:
    assert results["sentence"].detail == "the file is damaged: restore it"
    assert "KeyError: 'planted' (planted.py:" in results["traceback"].detail
    assert results["above its bound"].megabytes > 90
    assert results["correct"].megabytes < 50
    assert "the bound is 50 MB" in results["above its bound, then refused"].detail
    assert "the attack itself failed" in results["input cannot be made"].detail


def test_a_hang_is_noticed_and_the_next_case_runs(tmp_path: Path) -> None:
    with working("planted") as worker:
        for name, verdict, seconds in (("hang", Verdict.HANG, 0.5), ("correct", Verdict.HANDLED, 60.0)):
            folder = tmp_path / name
            folder.mkdir()
            assert worker.run(Case("planted", "a kind", name), folder, seconds).verdict is verdict


def test_failures_are_kept_and_replayed(results: dict[str, Result], failures: Path) -> None:
    kept = {json.loads(file.read_text())["case"]["name"]: file for file in failures.glob("*.json")}
    failed = {name for name, verdict in planted.EXPECTED.items() if not verdict.passed}
    assert set(kept) == failed
    again = replay(kept["wrong"], planted, "planted")  # its attack reads the files, the pipe and the link
    assert again.verdict is Verdict.WRONG
    assert again.case == results["wrong"].case


def test_a_child_that_cannot_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot start"), working("no_such_module") as worker:
        worker.run(Case("planted", "a kind", "correct"), tmp_path, 5.0)


# --- the program -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    def run(*arguments: str) -> int:
        file = tmp_path / "table.md"
        file.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
        options = ["--table", str(file), "--failures", str(tmp_path / "kept"), *arguments]
        monkeypatch.setattr(sys, "argv", ["attacks", *options])
        with pytest.raises(SystemExit) as end:
            program.main()
        return int(end.value.code or 0)

    return run


def test_a_fault_fails_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, run_program: Callable[..., int]
) -> None:
    monkeypatch.setattr(families, "LANES", ({"planted": 1.0},))
    monkeypatch.setattr(families, "NAMES", ("planted",))
    monkeypatch.setattr(families, "load", lambda name: planted)
    monkeypatch.setattr(families, "module_of", lambda name: name)
    assert run_program("--seed", "3") == 1
    errors = capsys.readouterr().err
    assert "silently wrong: planted: a kind: wrong (seed 3)" in errors
    assert "--replay" in errors
    written = (tmp_path / "table.md").read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert "| a kind | 14 | 2 | 1 | – | 7 | 1 | 0 | 3 |" in written
    assert (tmp_path / "kept").is_dir()
    monkeypatch.setattr(planted, "EXPECTED", {"sentence": Verdict.REFUSED})
    assert run_program() == 0


def test_a_few_real_cases_survive(run_program: Callable[..., int], tmp_path: Path) -> None:
    assert run_program("--only", "images", "--only", "weights", "--cases", "6", "--minutes", "2") == 0
    written = (tmp_path / "table.md").read_text()
    assert "**image files** | 6 |" in written
    assert "**weights and arrays** | 6 |" in written
    assert "python -m attacks --table" in written


def test_a_spent_budget_still_runs_one_case_of_each_family(failures: Path) -> None:
    assert len(run_family(planted, "planted", planted.cases(0), 0.0, failures)) == 1


# --- the judges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("statuses", "status", "verdict"), [
    ({403}, 200, Verdict.WRONG), ({200}, 500, Verdict.CRASH), ({200}, 200, Verdict.HANDLED),
    ({0, 400}, 0, Verdict.REFUSED), ({422}, 422, Verdict.REFUSED), ({413}, 422, Verdict.WRONG),
])  # fmt: skip
def test_statuses_are_judged(statuses: set[int], status: int, verdict: Verdict) -> None:
    body = json.dumps({"status": status, "detail": "a sentence"}).encode()
    response = b"HTTP/1.1 %d X\r\ncontent-type: application/problem+json\r\n\r\n" % status + body if status else b""
    assert http.judge_response(response, frozenset(statuses)).verdict is verdict


@pytest.mark.parametrize("body", [b"<html>", b'{"status": 400, "detail": "a"}', b'{"status": 422, "detail": ""}'])
def test_a_refusal_without_a_problem_document_is_noticed(body: bytes) -> None:
    kind = b"text/html" if body.startswith(b"<") else b"application/problem+json"
    response = b"HTTP/1.1 422 X\r\ncontent-type: " + kind + b"\r\n\r\n" + body
    assert http.judge_response(response, frozenset({422})).verdict is Verdict.CRASH


def test_a_finished_training_is_compared_with_the_reference(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"weights")
    (run / "metrics.jsonl").write_text('{"loss": 1, "elapsed_seconds": 5}\n')
    files = tiny_runs.listing(run)
    reference = tiny_runs.Reference(b"weights", [{"loss": 1}], files, 0, 0.0, run, run)
    assert tiny_runs.judge_finished(run, reference).verdict is Verdict.IDENTICAL
    (run / ".model.safetensors.abc.part").touch()
    assert tiny_runs.judge_finished(run, reference) == Finding(
        Verdict.WRONG, "left behind: .model.safetensors.abc.part"
    )
    (run / "metrics.jsonl").write_text('{"loss": 2}\n')
    assert "metrics" in tiny_runs.judge_finished(run, reference).detail
    (run / "model.safetensors").write_bytes(b"other")
    assert "weights" in tiny_runs.judge_finished(run, reference).detail


@pytest.mark.parametrize(("code", "output", "verdict"), [
    (2, "vit on digits: epoch 1\nvitreous: the run is damaged: train again\n", Verdict.REFUSED),
    (1, "vitreous: the run is damaged: train again\n", Verdict.CRASH),
    (2, "Traceback (most recent call last)\nvitreous: x\n", Verdict.CRASH),
    (-9, "", Verdict.CRASH),
])  # fmt: skip
def test_commands_are_judged(code: int, output: str, verdict: Verdict) -> None:
    assert tiny_runs.judge_refusal(code, output).verdict is verdict


# --- the cases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [images, weights, http])
def test_cases_are_distinct_and_the_same_for_a_seed(family: object) -> None:
    cases, again, other = (list(family.cases(seed)) for seed in (1, 1, 2))  # type: ignore[attr-defined]
    assert cases == again
    assert len(set(cases)) == len(cases) > 300
    assert cases[-1].random().random() == again[-1].random().random() != other[-1].random().random()


def test_an_input_depends_on_its_case_only(tmp_path: Path) -> None:
    case = next(numbered("images", "flipped bits", 1, seed=5))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        images.prepare(case, tmp_path / name)
    assert (tmp_path / "one" / images.INPUT).read_bytes() == (tmp_path / "two" / images.INPUT).read_bytes()


def test_kinds_take_turns_and_few_cases_are_spread() -> None:
    cases = [
        case.title for case in take_turns(*(numbered("f", kind, count, 0) for kind, count in (("a", 1), ("b", 3))))
    ]
    assert cases == ["f: a: 0", "f: b: 0", "f: b: 1", "f: b: 2"]
    chosen = program.spread([Case("f", "k", str(number)) for number in range(10)], 3)
    assert [case.name for case in chosen] == ["0", "3", "6"]


def test_messages() -> None:
    assert judge_message("one sentence").verdict is Verdict.REFUSED
    assert judge_message("Traceback (most recent call last): x").verdict is Verdict.CRASH
    assert flip_bits(b"\0" * 50, Case("f", "k", "0").random(), most=1).count(0) == 49


def test_the_generators_make_what_they_name() -> None:
    assert image_files.striped_png(5, 1, "L").startswith(b"\x89PNG")
    assert image_files.jpeg_of_scans(16, 30).count(b"\xff\xda") >= 30
    assert weight_files.safetensors({}, b"x", 9)[:8] == (9).to_bytes(8, "little")
    assert bodies()["65 files"].raw().count(b"filename") == 65
    assert heads()["two hosts"].raw().count(b"Host: ") == 2
