"""Jobs through worker libraries of Python: ours, RQ and Celery enqueue the same jobs, two processes run them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.contestants import redis_streams
from bench.contestants.contestant import LIBRARY_JOBS, Missing, Sample, free_port, running
from bench.jobs.marks import times
from bench.load.trees import CACHE, Tree

SCRIPTS = Path(__file__).parent.parent / "jobs"
WORKERS = 2
RUN_S_MAX = 60.0
INSTALL_S_MAX = 300
PEERS = CACHE / "python"
PACKAGES = ("rq", "celery[redis]", "hiredis")


class Library:
    """One worker library: the programs of all are started by the same steps."""

    name: str
    kind = "bar"
    promise: str

    def enqueued_s(self, command: Sequence[str | Path], env: dict[str, str]) -> float:
        words = [str(word) for word in command]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
        if done.returncode:
            raise RuntimeError(f"{self.name} does not enqueue: {done.stderr[-500:]}")
        return float(done.stdout.splitlines()[-1])

    def worked_s(self, workers: Sequence[Sequence[str | Path]], env: dict[str, str], root: Path, ready: int) -> float:
        """Seconds from the first to the last job, once `ready` workers have finished loading."""
        with contextlib.ExitStack() as stack:
            for number, command in enumerate(workers):
                stack.enter_context(running(command, root / f"log-{number}", env=env))
            self._wait(lambda: len(list(root.glob("ready-*"))) >= ready, root)
            (root / "go").touch()
            marks = root / "marks"
            self._wait(lambda: marks.exists() and marks.stat().st_size >= 8 * LIBRARY_JOBS, root)
        found = times(root / "marks")
        if len(found) != LIBRARY_JOBS:
            raise RuntimeError(f"{self.name} ran {len(found)} jobs instead of {LIBRARY_JOBS}")
        return found[-1] - found[0]

    def _wait(self, is_so: Callable[[], bool], root: Path) -> None:
        end_s = time.monotonic() + RUN_S_MAX
        while not is_so():
            if time.monotonic() > end_s:
                logs = "".join(path.read_text()[-500:] for path in root.glob("log-*"))
                raise RuntimeError(f"{self.name}: jobs are left after {RUN_S_MAX:.0f} s: {logs}")
            time.sleep(0.01)


class TopicsWorkers(Library):
    kind = "own"
    promise = "`disk`: a job is written when it is enqueued and when it is acked"

    def __init__(self, tree: Tree) -> None:
        self.name = f"topics {tree.name}"
        self._tree = tree

    def prepare(self, root: Path) -> None:
        """Nothing to prepare."""

    def measure(self, root: Path) -> Iterator[Sample]:
        with self._tree.serving(root / "data") as server:
            env = {**os.environ, "PYTHONPATH": f"{self._tree.path}:{SCRIPTS}"}
            script = [sys.executable, SCRIPTS / "with_topics.py"]
            more = [f"http://127.0.0.1:{server.port}", str(LIBRARY_JOBS), root]
            took_s = self.enqueued_s([*script, "enqueue", *more], env)
            took_s += self.worked_s([[*script, "work", *more]] * WORKERS, env, root, WORKERS)
        yield "library", LIBRARY_JOBS / took_s


class OnRedis(Library):
    """A library whose jobs are in Redis."""

    def prepare(self, root: Path) -> None:
        redis_streams.RedisStreams().prepare(root)
        install()
        package = self.name.lower()
        code = f"from importlib.metadata import version; print(version({package!r}))"
        done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True, timeout=60)
        self.name = f"{self.name} {done.stdout.strip()}"

    @contextlib.contextmanager
    def broker(self, root: Path) -> Iterator[str]:
        port = free_port()
        with running(redis_streams.server_command(port, root, "everysec"), root / "redis-log", port):
            yield f"redis://127.0.0.1:{port}/0"


class Rq(OnRedis):
    name = "RQ"
    promise = (
        "Redis `everysec`; the job of a worker that died is marked failed, and run again only if retries are configured"
    )

    def measure(self, root: Path) -> Iterator[Sample]:
        with self.broker(root) as broker:
            env = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
            script = [python(), SCRIPTS / "with_rq.py"]
            more = [broker, str(LIBRARY_JOBS), root]
            took_s = self.enqueued_s([*script, "enqueue", *more], env)
            took_s += self.worked_s([[*script, "work", *more]] * WORKERS, env, root, WORKERS)
        yield "library", LIBRARY_JOBS / took_s


class Celery(OnRedis):
    name = "Celery"
    promise = "Redis `everysec`, acknowledged after the job"

    def measure(self, root: Path) -> Iterator[Sample]:
        with self.broker(root) as broker:
            env = {**os.environ, "PYTHONPATH": str(SCRIPTS), "BROKER": broker}
            took_s = self.enqueued_s(
                [python(), SCRIPTS / "with_celery.py", "enqueue", broker, str(LIBRARY_JOBS), root], env
            )
            quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING"]
            worker = [python(), "-m", "celery", "-A", "with_celery", "worker", "-c", str(WORKERS), *quiet]
            # Its processes start together: one parent hands out the jobs.
            took_s += self.worked_s([worker], env, root, 0)
        yield "library", LIBRARY_JOBS / took_s


def python() -> Path:
    return PEERS / "bin" / "python"


def install() -> None:
    """RQ and Celery in a separate environment: they are not dependencies of this project."""
    if (PEERS / "ready").exists():
        return
    steps = [
        [sys.executable, "-m", "venv", str(PEERS)],
        [str(python()), "-m", "pip", "install", "--quiet", *PACKAGES],
    ]
    # The pinned versions of this project do not apply to them.
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    for step in steps:
        done = subprocess.run(step, env=env, capture_output=True, text=True, check=False, timeout=INSTALL_S_MAX)
        if done.returncode:
            raise Missing(f"RQ and Celery, which pip does not install: {done.stderr[-300:]}")
    (PEERS / "ready").touch()
