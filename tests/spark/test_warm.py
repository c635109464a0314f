"""The Spark that stays between two commands: shared, robust against commands that die, and gone when it is idle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import TOPICS, Client, ServerProcess
from tests.spark.conftest import SECRET
from tests.spark.runner_process import WAIT_S_MAX, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]
LONG = "SELECT max(hash(a.id, b.id)) AS n FROM range(10000000) a CROSS JOIN range(10000000) b"


class Warm:
    """Commands of one user, whose sockets are in a directory of their own: a path of a socket must be short."""

    def __init__(self, server: ServerProcess, place: Path) -> None:
        self.place = place
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
        self.environ = kept | {
            "TOPICS_URL": f"http://127.0.0.1:{server.port}",
            "TOPICS_API_KEY": SECRET,
            "XDG_RUNTIME_DIR": str(place),
        }

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [TOPICS, *arguments],
            env={**self.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, sql: str, *flags: str, **more: str) -> tuple[int, list[Any], str]:
        process = self.start("sql", sql, "-o", "json", "--engine", "spark", *flags, **more)
        out, err = process.communicate(timeout=2 * WAIT_S_MAX)
        assert SECRET not in out + err
        return process.returncode, [json.loads(line) for line in out.splitlines()], err

    def sockets(self) -> list[Path]:
        return list(self.place.glob("topics/*.sock"))

    def pid(self) -> int:
        (lock,) = self.place.glob("topics/*.lock")
        return int(lock.read_text())

    def kill(self) -> None:
        for lock in self.place.glob("topics/*.lock"):
            try:
                os.killpg(int(lock.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                pass


@pytest.fixture
def warm(server: ServerProcess) -> Iterator[Warm]:
    place = Path(tempfile.mkdtemp(prefix="warm"))
    warm = Warm(server, place)
    try:
        yield warm
    finally:
        warm.kill()
        shutil.rmtree(place, ignore_errors=True)


def test_one_spark_answers_many_commands_and_survives_what_they_do(warm: Warm, client: Client, tmp_path: Path) -> None:
    client.append("warm.orders", *({"id": n, "total": n * 1.5} for n in range(4)))
    code, rows, said = warm.ask("SELECT count(*) AS n, sum(total) AS total FROM `warm.orders`")
    assert (code, rows) == (0, [{"n": 4, "total": 9.0}]), said
    assert "(warm Spark)" in said
    pid = warm.pid()
    assert (warm.place / "topics").stat().st_mode & 0o077 == 0

    at_once = [warm.start("sql", f"SELECT {n} AS n") for n in range(3)]
    assert [json.loads(each.communicate(timeout=WAIT_S_MAX)[0]) for each in at_once] == [{"n": n} for n in range(3)]
    code, rows, said = warm.ask("SELECT nothing FROM `warm.orders`")
    assert (code, rows) == (2, []), said
    assert "line 1, column 8" in said
    file = tmp_path / "out.json"
    assert warm.ask("SELECT id FROM `warm.orders` ORDER BY id", "--out", str(file))[0] == 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"id": n} for n in range(4)]

    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        long = warm.start("sql", LONG)
        with socket.socket(socket.AF_UNIX) as other:
            # Garbage from the same user is no reason to end.
            other.connect(str(warm.sockets()[0]))
            other.sendall(b"\xff" * 64)
        until_busy(warm)
        long.send_signal(number)
        _, said = long.communicate(timeout=WAIT_S_MAX)
        assert long.returncode == code, said
        assert len(said.splitlines()) <= 3, said
        assert warm.ask("SELECT 42 AS n")[1] == [{"n": 42}]
    assert warm.pid() == pid

    done = warm.start("spark", "stop")
    assert "1 stopped" in done.communicate(timeout=WAIT_S_MAX)[1]
    until(lambda: not warm.sockets(), lambda: "it still listens")


def until_busy(warm: Warm) -> None:
    """Its Java computes: the long query has begun, as nothing else would take this much."""

    def cpu_s() -> float:
        found = subprocess.run(["ps", "-g", str(warm.pid()), "-o", "cputimes="], capture_output=True, text=True)
        return sum(map(float, found.stdout.split()))

    begun_s = cpu_s()
    until(lambda: cpu_s() > begun_s + 3, lambda: "the query does not begin")


def test_one_that_was_killed_is_replaced_and_an_idle_one_ends(warm: Warm) -> None:
    assert warm.ask("SELECT 1 AS n")[1] == [{"n": 1}]
    pid = warm.pid()
    warm.kill()
    code, rows, said = warm.ask("SELECT 2 AS n", TOPICS_SQL_WARM_S="0.5")
    assert (code, rows) == (0, [{"n": 2}]), said
    assert warm.pid() != pid
    until(lambda: not warm.sockets(), lambda: "it is idle, and still listens")
    until(lambda: not Path(f"/proc/{warm.pid()}").exists(), lambda: "it is idle, and still runs")
