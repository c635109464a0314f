"""`topics` processes that start at once: a launcher has imported the product, and forks for each that a test wants.

    test ── arguments, environment, directory, descriptors ─▶ launcher ─ fork ─▶ keeper ─ fork ─▶ topics …
         ◀── the pid, and at the end the wait status ─────────────────────────────┘

A fork has what a new process has: a pid, an environment, descriptors and an exit status of its own. It saves the
imports, which take a server 0.4 s of processor time. Tests of the start itself run the installed program.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!i")
PROGRAM = "from topics.cli import main; main()"
# What `python -W error` does, for code that is run here.
WARNINGS_ARE_ERRORS = "import warnings; warnings.simplefilter('error')"


class Launched:
    """`topics` with these arguments, or other code; as much of `subprocess.Popen` as tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        code: str = PROGRAM,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._status, status = socket.socketpair()
        with contextlib.ExitStack() as theirs:
            theirs.callback(status.close)
            wanted = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            given = [self._end_of(name, asked, theirs) for name, asked in wanted.items()]
            request = {"argv": ["topics", *arguments], "env": dict(env), "cwd": str(Path.cwd()), "code": code}
            _launcher().start(json.dumps(request).encode(), [*given, status.fileno()])
        self.pid = self._told(PATIENCE_S)

    def _end_of(self, name: str, asked: int, theirs: contextlib.ExitStack) -> int:
        """The descriptor that the process gets; of a pipe, the other end stays here."""
        if asked == subprocess.PIPE:
            reading, writing = os.pipe()
            descriptor, ours = (reading, writing) if name == "stdin" else (writing, reading)
            setattr(self, name, os.fdopen(ours, "wb" if name == "stdin" else "rb"))
        elif asked == subprocess.DEVNULL:
            descriptor = os.open(os.devnull, os.O_RDWR)
        else:
            return asked
        theirs.callback(os.close, descriptor)
        return descriptor

    def _told(self, timeout_s: float | None) -> int:
        self._status.settimeout(timeout_s)
        return int(NUMBER.unpack(self._status.recv(NUMBER.size))[0])

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = os.waitstatus_to_exitcode(self._told(timeout))
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired("topics", timeout or 0) from None
                self._status.close()
            return self.returncode

    def communicate(self, given: bytes = b"", timeout: float = PATIENCE_S) -> tuple[bytes, bytes]:
        """Write this to standard input and close it; what came on the other pipes, at the end of the process."""
        with ThreadPoolExecutor(2) as readers:
            printed = [readers.submit(_read, pipe) for pipe in (self.stdout, self.stderr)]
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError), self.stdin:
                    self.stdin.write(given)
            out, err = (each.result(timeout) for each in printed)
        self.wait(timeout)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], env: Mapping[str, str], given: bytes = b"", *, code: str = PROGRAM
) -> subprocess.CompletedProcess[bytes]:
    """From start to end, with this on standard input."""
    pipe = subprocess.PIPE
    process = Launched(arguments, env, code=code, stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = process.communicate(given)
    return subprocess.CompletedProcess(arguments, process.wait(), out, err)


def _read(pipe: IO[bytes] | None) -> bytes:
    if pipe is None or pipe.closed:
        return b""
    with pipe:
        return pipe.read()


class Launcher:
    """The process that forks. It ends with the process of the tests, whose socket it reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, control = socket.socketpair()
        with control:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.launching", str(control.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[control.fileno()],
            )

    def start(self, request: bytes, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [LENGTH.pack(len(request))], descriptors)
            self._control.sendall(request)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@functools.cache
def _launcher() -> Launcher:
    launcher = Launcher()
    atexit.register(launcher.close)
    return launcher


# --- in the launcher ---


def _serve(control: socket.socket) -> None:
    """A fork for each request, until the tests end."""
    _preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        prefix, descriptors, _, _ = socket.recv_fds(control, LENGTH.size, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not prefix:
            return
        body = exactly(control, LENGTH.unpack(prefix)[0])
        if not os.fork():
            control.close()
            keep(json.loads(body), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _preload() -> None:
    """What `topics serve` and other commands import, also while they read their arguments.

    Frozen, it is shared by all forks: no look for garbage passes over it, and none copies its pages.
    """
    import encodings.idna  # noqa: F401 - by the first look-up of a host

    import topics.client
    import topics.server  # noqa: F401
    from topics.cli import run as run_command
    from topics.cli.command_table import TABLE

    for row in TABLE.values():
        importlib.import_module(f"topics.cli.commands.{row.module}")
    run_command(["completion", "bash"])
    sys.stdout.flush()
    gc.collect()
    gc.freeze()


def exactly(control: socket.socket, count: int) -> bytes:
    body = bytearray()
    while len(body) < count:
        body += control.recv(count - len(body))
    return bytes(body)


def keep(request: Any, descriptors: list[int]) -> NoReturn:
    """Fork once more, and report that process to the last descriptor: only its parent learns how it ended.

    It is reported when it has the descriptors and takes the signals that a new process would.
    """
    *given, status = descriptors
    ready, prepared = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(status)
        os.close(ready)
        _become(request, given, prepared)
    for descriptor in (*given, prepared):
        os.close(descriptor)
    os.read(ready, 1)
    os.close(ready)
    os.write(status, NUMBER.pack(pid))
    _, wait_status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.write(status, NUMBER.pack(wait_status))
    os._exit(0)


def _become(request: Any, given: list[int], prepared: int) -> NoReturn:
    """What the installed program does, from its first line to the end of the process."""
    for target, descriptor in enumerate(given):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(prepared)
    code: object = None
    try:
        exec(request["code"], {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=descriptor == 2 or os.isatty(descriptor))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
