"""A standalone cluster of Spark from the PySpark package: a master and workers as processes on loopback addresses."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.patience import PATIENCE_S
from topics_spark.spark_home import unzipped_home
from topics_spark.start import prepare

START_S_MAX = PATIENCE_S


class Node:
    """One process of the cluster and all it starts, ended together."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        environ = dict(os.environ)
        prepare(environ, "spark://127.0.0.1")
        environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
        environ |= {"SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
        # The archive of classes (tests/spark/quick_java.py) is for the paths of this home.
        home = environ["SPARK_HOME"] = str(unzipped_home(environ))
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [f"{home}/bin/spark-class", *arguments],
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> re.Match[str]:
        give_up_s = time.monotonic() + START_S_MAX
        while True:
            text = self.log.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found
            assert time.monotonic() < give_up_s, text
            assert self.process.poll() is None, text
            time.sleep(0.05)

    def kill(self) -> None:
        """With every process of its session: executors, and their Python workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(START_S_MAX)


class Cluster:
    def __init__(self, directory: Path, workers: int) -> None:
        self.nodes: list[Node] = []
        self._directory = directory
        master = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = master.wait_for(r"spark://127\.0\.0\.1:\d+")[0]
        self.workers = [self._worker(number) for number in range(workers)]
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def _worker(self, number: int) -> Node:
        work = self._directory / f"work-{number}"
        return self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", f"127.0.0.{number + 2}", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url),
        )

    def _start(self, name: str, main_class: str, *arguments: str) -> Node:
        node = Node(self._directory / f"{name}.log", main_class, "--webui-port", "0", *arguments)
        self.nodes.append(node)
        return node

    def executors(self) -> list[int]:
        """The processes that run tasks, one for each worker and application."""
        found = subprocess.run(["pgrep", "-f", "CoarseGrainedExecutorBackend.*--driver-url"], capture_output=True)
        sessions = {node.process.pid for node in self.workers}
        pids = [int(pid) for pid in found.stdout.split()]
        return [pid for pid in pids if _session_of(pid) in sessions]

    def kill(self) -> None:
        for node in reversed(self.nodes):
            node.kill()


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@contextlib.contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """Killed at the end, whatever happens."""
    directory.mkdir(parents=True, exist_ok=True)
    started = Cluster.__new__(Cluster)
    try:
        started.__init__(directory, workers)
        yield started
    finally:
        started.kill()
