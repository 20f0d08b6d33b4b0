"""Run the cases of a family one after the other in a child process, within a time, and judge them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attacks.cases import MEBIBYTE, Case, Family, Result, Verdict

ROOT = Path(__file__).parents[1]
WARM_UP_SECONDS = 300.0
_LARGEST_SAVED = 64 * MEBIBYTE


class Worker:
    """A child process for one family, started again when it dies."""

    def __init__(self, module: str, home: Path):
        self.module, self.home = module, home
        self.process: subprocess.Popen[str] | None = None

    def run(self, case: Case, folder: Path, seconds: float, prepared: bool = False) -> Result:
        if self.process is None:
            self._start()
        job = {"case": case.as_json(), "folder": str(folder), "prepared": prepared, "seconds": seconds}
        reply = self._ask(json.dumps(job), seconds + 30)
        if reply is None:
            self.stop()
            reply = {"verdict": Verdict.CRASH, "detail": "the child process died", "megabytes": 0.0, "seconds": 0.0}
        verdict, megabytes = Verdict(reply["verdict"]), float(reply["megabytes"])
        detail = reply["detail"]
        if megabytes > case.megabytes and verdict is not Verdict.HANG:
            detail = f"{megabytes:.0f} MB, the bound is {case.megabytes:.0f} MB ({verdict}: {detail})"
            verdict = Verdict.MEMORY
        return Result(case, verdict, detail, megabytes, float(reply["seconds"]))

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None

    def _start(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "VITREOUS_CACHE": str(self.home / "cache"),
            "TMPDIR": str(self.home),
            "http_proxy": "http://127.0.0.1:9",  # nothing listens there: no attack reaches a network
            "https_proxy": "http://127.0.0.1:9",
            "PATH": str(self.home),  # nor does a package manager
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attacks.child", self.module], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        reply = self._ask(None, WARM_UP_SECONDS)
        if reply is None or not reply["ready"]:
            self.stop()
            raise SystemExit(f"the attacks of {self.module} cannot start: {(reply or {}).get('error', 'no response')}")

    def _ask(self, line: str | None, seconds: float) -> dict[str, Any] | None:
        """Send a request, if any, and return the reply; None if the child died or is silent."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            if line is not None:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], seconds)[0]:
                return None
            reply = self.process.stdout.readline()
        except OSError:
            return None
        return json.loads(reply) if reply else None


@contextlib.contextmanager
def working(module: str) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="attacks-", ignore_cleanup_errors=True) as home:
        worker = Worker(module, Path(home))
        try:
            yield worker
        finally:
            worker.stop()


def run_family(
    family: Family,
    module: str,
    cases: Iterable[Case],
    seconds: float,
    failures: Path,
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run cases until they or the seconds are spent; save the input of each that fails."""
    end = time.monotonic() + seconds
    results: list[Result] = []
    with working(module) as worker:
        for number, case in enumerate(cases):
            if time.monotonic() > end and results:
                break
            folder = worker.home / f"case-{number}"
            folder.mkdir()
            result = worker.run(case, folder, family.SECONDS)
            results.append(result)
            report(result)
            if not result.verdict.passed:
                save(result, folder, failures)
            remove(folder)
    return results


# --- inputs kept for replay ----------------------------------------------------------------------------------------


def save(result: Result, folder: Path, failures: Path) -> Path:
    """Keep a failed case: its fields, and its files in an archive (links and pipes, too)."""
    case = result.case
    stem = "-".join("".join(c if c.isalnum() else " " for c in f"{case.title} seed {case.seed}").split())[:120]
    failures.mkdir(parents=True, exist_ok=True)
    (folder / "case.json").unlink(missing_ok=True)
    target = failures / f"{stem}.tar.gz"
    skipped: list[str] = []

    def keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.size > _LARGEST_SAVED:
            skipped.append(entry.name)
            return None
        return entry

    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, arcname="input", filter=keep)
    described = {
        "case": case.as_json(),
        "verdict": result.verdict,
        "detail": result.detail,
        "complete": not skipped,  # otherwise the input is made again from the seed
    }
    target.with_name(f"{stem}.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return target


def replay(description: Path, family: Family, module: str) -> Result:
    """Run a saved case again, on the saved files."""
    described = json.loads(description.read_text(encoding="utf-8"))
    case = Case(**described["case"])
    with working(module) as worker:
        folder = worker.home / "input"
        if described["complete"]:
            archive = description.with_suffix(".tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(worker.home, filter="tar")  # our own archive: links to /dev are part of the case
        else:
            folder.mkdir()
        return worker.run(case, folder, family.SECONDS, prepared=described["complete"])


def remove(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
