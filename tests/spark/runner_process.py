"""`topics pipelines run` as a process, next to a server process: what the tests of the runner stand on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.serving import TOPICS
from topics.client import Client

# Spark starts in ten to twenty seconds, and in a minute or more where other tests have the cores, too.
WAIT_S_MAX = 720.0
ROOT = Path(__file__).parents[2]
QUICK = ("--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false")


def environment(port: int, key: str | None = None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    clean["TOPICS_URL"] = f"http://127.0.0.1:{port}"
    if key is not None:
        clean["TOPICS_API_KEY"] = key
    # Definitions of tests name functions of tests.
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH")]))
    return clean


def topics(
    port: int, *arguments: str, key: str | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    env = {**environment(port, key), **(environ or {})}
    return subprocess.run([TOPICS, *arguments], env=env, capture_output=True, text=True, timeout=2 * WAIT_S_MAX)


class RunnerProcess:
    """A runner with checkpoints and tables below `home`. It is a group of processes: Python, Java, Python workers."""

    def __init__(
        self,
        port: int,
        home: Path,
        *arguments: str,
        key: str | None = None,
        name: str = "r",
        master: str = "local[2]",
        program: Sequence[str | Path] = (TOPICS,),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        places = ("--state", str(home / "state"), "--tables", str(home / "tables"), "--runner", name)
        command = [*program, "pipelines", "run", *places, "--master", master, *QUICK, *arguments]
        self.process = subprocess.Popen(
            command,
            env={**environment(port, key), **(environ or {})},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stderr)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_log(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self.log), lambda: f"no {pattern!r} in:\n{self.log}")

    def terminate(self) -> int:
        """SIGTERM to the runner alone, and its exit code."""
        self.process.terminate()
        code = self.process.wait(timeout=WAIT_S_MAX)
        self._ended()
        return code

    def wait_for_kill(self) -> None:
        """Until it was killed from inside, as tests/spark/killed_runner.py does."""
        assert self.process.wait(timeout=WAIT_S_MAX) == -signal.SIGKILL, self.log
        self.kill()

    def kill(self) -> None:
        """kill -9, all of it at once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=WAIT_S_MAX)
        self._ended()

    def _ended(self) -> None:
        self._reader.join(timeout=PATIENCE_S)
        if self.process.stderr is not None and not self._reader.is_alive():
            self.process.stderr.close()


@contextlib.contextmanager
def running(port: int, home: Path, *arguments: str, **more: Any) -> Iterator[RunnerProcess]:
    runner = RunnerProcess(port, home, *arguments, **more)
    try:
        yield runner
    finally:
        runner.kill()


def until(true: Callable[[], Any], otherwise: Callable[[], object], seconds: float = WAIT_S_MAX) -> Any:
    """Look again and again until it is so; what it was that came."""
    deadline_s = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline_s, otherwise()
        time.sleep(0.1)
    return found


def status_of(client: Client, pipeline: str) -> dict[str, Any]:
    return client.pipeline(pipeline).status or {}
