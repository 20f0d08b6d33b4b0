"""Python processes for the tests, forked from one that has imported torch already.

Importing torch, its compiler and vitreous takes four seconds of CPU time, and the tests start dozens of processes. One
server for each pytest process imports them once; every process of a test is a fork of it. Such a process has its own
environment, folder, output and signals, and can be killed like any other.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

_SERVER = r"""
import atexit, json, os, runpy, signal, socket, subprocess, sys, threading, traceback, types
import torch._dynamo, vitreous.cli, vitreous.training.loop  # what takes the time


def serve(listener):
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            report_child(connection)
            os._exit(0)
        connection.close()
        reap()


def reap():
    "Forget the requests that have ended."
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there are none
        pass


def report_child(connection):
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    request = json.loads(message)
    child = os.fork()
    if child == 0:
        connection.close()
        run(request["arguments"], request["folder"], request["environment"], {1: files[0], 2: files[1]})
    for file in files:
        os.close(file)
    connection.sendall(b"%d\n" % child)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def run(arguments, folder, environment, files, kept=()):
    "Be a new process, as far as a fork can."
    for number, file in files.items():
        os.dup2(file, number)
    for file in map(int, os.listdir("/proc/self/fd")):
        if file > 2 and file not in kept:
            try:
                os.close(file)
            except OSError:  # the folder that was listed
                pass
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    subprocess.Popen = ForkingPopen
    code = 0
    try:
        interpret(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def interpret(arguments):
    option, target, *rest = arguments
    sys.argv = [option, *rest]
    sys.path[0] = os.getcwd()
    if option == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(target, "<string>", "exec"), vars(sys.modules["__main__"]))


class ForkingPopen(subprocess.Popen):
    "Fork the ranks of `--processes`, too; start any other program as usual."

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                       shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more):
        module = args.index("-m") if args[0] == sys.executable and "-m" in args else 0
        if not module or args[module + 1] != "vitreous":
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more)
        self.pid = os.fork()
        if self.pid == 0:
            files = {0: p2cread, 1: c2pwrite, 2: errwrite}
            files = {number: file for number, file in files.items() if file != -1}
            run(args[module:], cwd or os.getcwd(), dict(env or os.environ), files, pass_fds)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


serve(socket.socket(fileno=int(sys.argv[1])))
"""


class Child:
    """A process as subprocess.Popen presents it; its output goes to files, so it never waits for a reader."""

    def __init__(self, connection: socket.socket, out: IO[bytes], errors: IO[bytes]):
        self._connection, self._out, self._errors = connection, out, errors
        self._lines = connection.makefile("rb")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self, seconds: float = 0.0) -> int | None:
        """Return the exit code if it has ended, or ends within this time."""
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._lines.readline())
        return self.returncode

    def wait(self, timeout: float = 240.0) -> int:
        code = self.poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return code

    def communicate(self, timeout: float = 240.0) -> tuple[str, str]:
        self.wait(timeout)
        return self.output()

    def output(self) -> tuple[str, str]:
        """Return what it has written so far."""
        # at an offset of its own: the child shares the file's
        out, errors = (os.pread(file.fileno(), 1 << 24, 0).decode() for file in (self._out, self._errors))
        return out, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        for file in (self._lines, self._connection, self._out, self._errors):
            file.close()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Processes:
    """Starts processes; `close` ends those that still run."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vitreous-tests-")
        self._address = str(Path(self._folder.name) / "socket")
        self._server: subprocess.Popen[bytes] | None = None
        self._children: list[Child] = []

    def start(self, *arguments: str, cwd: Path | str = ".", env: dict[str, str] | None = None) -> Child:
        """Start `python ARGUMENTS`, where these are -m MODULE … or -c SCRIPT …"""
        if self._server is None:
            self._start_server()
        out, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115  # `close` closes them
        request = {
            "arguments": arguments,
            "folder": os.path.abspath(cwd),
            "environment": dict(os.environ if env is None else env),
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        socket.send_fds(connection, [json.dumps(request).encode()], [out.fileno(), errors.fileno()])
        child = Child(connection, out, errors)
        self._children.append(child)
        return child

    def vitreous(self, *arguments: str, cwd: Path | str = ".", env: dict[str, str] | None = None) -> Child:
        return self.start("-m", "vitreous", *arguments, cwd=cwd, env=env)

    def run(
        self, *arguments: str, cwd: Path | str = ".", env: dict[str, str] | None = None, timeout: float = 240.0
    ) -> subprocess.CompletedProcess[str]:
        child = self.start(*arguments, cwd=cwd, env=env)
        try:
            out, errors = child.communicate(timeout)
        finally:
            child.kill()
        return subprocess.CompletedProcess(arguments, child.wait(), out, errors)

    def _start_server(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen()
            listener.set_inheritable(True)
            self._server = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(listener.fileno())],
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()
