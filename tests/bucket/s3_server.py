"""A real S3 server on loopback: versitygw, with its objects in a directory. `make` installs it where Go is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serving import free_port

# A venv of its own, as for another Spark, is below the first one.
PROGRAMS = [Path(home) / "bin" / "versitygw" for home in (sys.prefix, Path(sys.prefix).parent)]
KEY, SECRET = "topics-test", "a-secret-that-must-not-be-shown"


def found_program() -> Path:
    """The program; without it a test is skipped, and fails where all parts must be."""
    found = next((program for program in PROGRAMS if program.exists()), None) or shutil.which("versitygw")
    if found is None:
        why = "versitygw is not installed: `make` installs it if Go is"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    return Path(found)


class S3Server:
    """The server; it can be stopped, continued, and killed and started again on the same port and files."""

    def __init__(self, path: Path) -> None:
        self._program = found_program()
        self._path = path
        self.port = free_port()
        (path / "bkt").mkdir(parents=True)
        self._start()

    def _start(self) -> None:
        env = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        command = [str(self._program), "--port", f"127.0.0.1:{self.port}", "posix", str(self._path)]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, "versitygw has ended"
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
        }

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        self._start()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def s3_server(path: Path) -> Iterator[S3Server]:
    server = S3Server(path)
    try:
        yield server
    finally:
        server.go_on()
        server.kill()
