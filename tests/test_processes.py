"""The forked processes of the tests behave like started ones."""

import os
import signal

import pytest


@pytest.mark.parametrize(
    ("script", "code", "out", "errors"),
    [
        ("print(1)", 0, "1\n", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("import sys; sys.exit('a reason')", 1, "", "a reason\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, "", ""),
        ("import os; print(os.environ['NAME'], os.path.basename(os.getcwd()))", 0, "value folder\n", ""),
    ],
)
def test_code_and_output(processes, tmp_path, script, code, out, errors):
    (tmp_path / "folder").mkdir()
    result = processes.run("-c", script, cwd=tmp_path / "folder", env={"NAME": "value"})
    assert (result.returncode, result.stdout, result.stderr) == (code, out, errors)


def test_an_error_is_a_traceback(processes):
    result = processes.run("-c", "raise ValueError('seen')")
    assert result.returncode == 1
    assert result.stderr.endswith("ValueError: seen\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it(processes, number):
    child = processes.start("-c", "import sys, time; print('ready', flush=True); time.sleep(60)")
    while not child.output()[0]:
        assert child.poll(0.01) is None
    child.send_signal(number)
    assert child.wait(20) == -number


def test_it_is_a_process_of_its_own(processes):
    result = processes.run("-c", "import os; print(os.getpid(), os.listdir('/proc/self/fd'))")
    assert str(os.getpid()) not in result.stdout.split()
    assert int(result.stdout.count("'")) // 2 <= 4, "only the standard streams, and the folder being listed"
