"""Jobs of tests/spark/job.py as processes that can be killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from topics.client import Client, Record

ROOT = Path(__file__).parents[2]
JOB_S_MAX = 450.0


class Job:
    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.job", *arguments],
                cwd=ROOT,
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def succeed(self) -> None:
        code = self.process.wait(JOB_S_MAX)
        assert code == 0, self.log.read_text(errors="replace")[-4000:]

    def python_workers(self) -> list[int]:
        """The processes that run the connector's part of tasks: children of the daemon that Spark keeps for them."""
        found = subprocess.run(
            ["pgrep", "-s", str(self.process.pid), "-f", "pyspark.daemon"], capture_output=True, text=True
        )
        pids = [int(pid) for pid in found.stdout.split()]
        return [pid for pid in pids if _parent_of(pid) in pids]

    def kill(self) -> None:
        """The driver, its JVM and its workers, with no chance to say goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


@contextlib.contextmanager
def running(log: Path, *arguments: str) -> Iterator[Job]:
    job = Job(log, *arguments)
    try:
        yield job
    finally:
        job.kill()


def fill(client: Client, topic: str, records: int) -> None:
    body = b",".join([b'{"data":{"n":%d},"tag":"k%d"}' % (number, number % 7) for number in range(records)])
    client.append_many(topic, b"[%b]" % body)


def contents(client: Client, topic: str) -> list[tuple[int, str | None]]:
    """Each record as its number and tag, in order of the numbers, so that two topics can be compared."""
    return sorted((record.data["n"], record.tag or None) for record in client.read(topic) if isinstance(record, Record))
