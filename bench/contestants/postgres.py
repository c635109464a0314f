"""PostgreSQL: inserts by pgbench, and jobs claimed with FOR UPDATE SKIP LOCKED."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.contestants.contestant import (
    BATCH,
    CONNECTIONS,
    JOBS,
    JOBS_CLAIM,
    PAYLOAD,
    START_S_MAX,
    Missing,
    Sample,
    free_port,
    running,
)

INSTALLED = Path("/usr/lib/postgresql")
RUN_S_MAX = 120.0
SECONDS = 2
PRODUCERS = 4

SCHEMA = """
CREATE TABLE log (seq bigserial PRIMARY KEY, ts timestamptz NOT NULL DEFAULT now(), data text NOT NULL);
CREATE TABLE jobs (id bigserial PRIMARY KEY, leased_until timestamptz, data text NOT NULL);
"""
# With -M prepared, pgbench sends variables as parameters: the payloads go over the wire each time.
ONE = "INSERT INTO log (data) VALUES (:payload) RETURNING seq;\n"
MANY = "INSERT INTO log (data) SELECT unnest(:batch::text[]) RETURNING seq;\n"
ENQUEUE = "INSERT INTO jobs (data) SELECT unnest(:batch::text[]) RETURNING id;\n"
WORK = f"""
WITH claimed AS (
    UPDATE jobs SET leased_until = now() + interval '30 s' WHERE id IN (
        SELECT id FROM jobs WHERE leased_until IS NULL OR leased_until < now()
        ORDER BY id LIMIT {JOBS_CLAIM} FOR UPDATE SKIP LOCKED)
    RETURNING id, data)
SELECT array_agg(id) AS ids, array_agg(data) AS payloads FROM claimed \\gset
DELETE FROM jobs WHERE id = ANY(:ids::bigint[]);
"""


class Timed(NamedTuple):
    """The measurements of pgbench."""

    per_s: float
    p50_ms: float


def program(name: str) -> Path:
    """A program of PostgreSQL: Debian has a directory for each version."""
    versions = sorted(INSTALLED.glob(f"*/bin/{name}"), key=lambda path: float(path.parent.parent.name))
    found = str(versions[-1]) if versions else shutil.which(name)
    if found is None:
        raise Missing(f"{name} (Debian: apt install postgresql)")
    return Path(found)


def owner() -> str | None:
    """PostgreSQL does not run as root: the user that its server runs as, or None for the current one."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Missing("a user that PostgreSQL can run as")


class Postgres:
    name = "PostgreSQL"
    promise = (
        "`fsync=off`: `write(2)` of its log has returned, nothing is ever synced; by default: synced. "
        "A row is also indexed and part of a transaction"
    )
    kind = "bar"

    def prepare(self, root: Path) -> None:
        self._user = owner()
        for each in ("initdb", "postgres", "pgbench", "psql", "pg_isready"):
            program(each)
        done = subprocess.run(
            [program("postgres"), "--version"], capture_output=True, text=True, check=True, timeout=30
        )
        found = re.search(r"([\d.]+)", done.stdout)
        self.name = f"PostgreSQL {found[1]}" if found else self.name
        # A cluster as initdb creates it, copied for every round.
        self._template = root / "cluster"
        self._template.mkdir()
        if self._user is not None:
            shutil.chown(self._template, self._user)
        command = [program("initdb"), "-D", self._template, "--auth=trust", "-U", "bench", "-E", "UTF8", "--no-sync"]
        subprocess.run(
            command,
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=RUN_S_MAX,
            cwd="/",
        )

    @contextlib.contextmanager
    def _serving(self, root: Path, fsync: str) -> Iterator[Pgbench]:
        directory = root / fsync
        directory.mkdir()
        data = directory / "data"
        subprocess.run(["cp", "-a", self._template, data], check=True, timeout=RUN_S_MAX)
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": fsync,
            "shared_buffers": "256MB",
            "max_wal_size": "4GB",
            "logging_collector": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with running([program("postgres"), "-D", data, *options], directory / "log", port, user=self._user):
            bench = Pgbench(port, directory)
            bench.wait()
            bench.sql(SCHEMA)
            yield bench

    def measure(self, root: Path) -> Iterator[Sample]:
        with self._serving(root, "off") as bench:
            bench.timed(ONE, seconds=1)
            yield "append 1, 16", bench.timed(ONE).per_s
            yield "append 100", BATCH * bench.timed(MANY).per_s
            yield "append 1, 1, p50", bench.timed(ONE, connections=1).p50_ms
            yield "queue", bench.jobs_per_s()
        with self._serving(root, "on") as bench:
            yield "append 100, fsync", BATCH * bench.timed(MANY).per_s
            yield "append 1, 1, fsync, p50", bench.timed(ONE, connections=1).p50_ms


class Pgbench:
    """pgbench against one server."""

    def __init__(self, port: int, directory: Path) -> None:
        self._directory = directory
        self._access = ["-h", "127.0.0.1", "-p", str(port), "-U", "bench"]

    def wait(self) -> None:
        """Wait until it accepts connections: its port is open before that."""
        command = [str(program("pg_isready")), *self._access, "-q"]
        end_s = time.monotonic() + START_S_MAX
        while subprocess.run(command, check=False, timeout=RUN_S_MAX).returncode:
            if time.monotonic() > end_s:
                raise RuntimeError("PostgreSQL accepts no connections")
            time.sleep(0.02)

    def sql(self, text: str) -> str:
        command = [str(program("psql")), *self._access, "-d", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=RUN_S_MAX).stdout.strip()

    def timed(self, script: str, *, connections: int = CONNECTIONS, seconds: int = SECONDS) -> Timed:
        """Transactions per second and the median of their latencies, which pgbench only logs."""
        logs = self._directory / "latencies"
        per_s = self._run(script, connections, ["-T", str(seconds), "-l", f"--log-prefix={logs}"])
        took_us: list[int] = []
        for path in self._directory.glob("latencies*"):
            took_us += [int(line.split()[2]) for line in path.read_text().splitlines()]
            path.unlink()
        return Timed(per_s, statistics.median(took_us) / 1000)

    def jobs_per_s(self) -> float:
        """All jobs are enqueued, then claimed and acked, with exactly as many claims as needed: each is full."""
        batches, claims = JOBS // BATCH, JOBS // JOBS_CLAIM
        enqueued_s = batches / self._run(ENQUEUE, PRODUCERS, ["-t", str(batches // PRODUCERS)])
        self.sql("ANALYZE jobs")
        worked_s = claims / self._run(WORK, CONNECTIONS, ["-t", str(claims // CONNECTIONS)])
        if (left := self.sql("SELECT count(*) FROM jobs")) != "0":
            raise RuntimeError(f"{left} jobs are left")
        return JOBS / (enqueued_s + worked_s)

    def _run(self, script: str, connections: int, more: Sequence[str]) -> float:
        file = self._directory / "script"
        file.write_text(script)
        batch = "{" + ",".join([json.dumps(PAYLOAD)] * BATCH) + "}"
        variables = ["-D", f"payload={PAYLOAD}", "-D", f"batch={batch}"]
        load = ["-n", "-M", "prepared", "-c", str(connections), "-j", "1", "-f", str(file), *more]
        command = [str(program("pgbench")), *self._access, *load, *variables, "postgres"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
        found = re.search(r"tps = ([\d.]+) \(without initial connection time\)", done.stdout)
        if done.returncode or not found:
            raise RuntimeError(f"pgbench: {done.stdout[-500:]}{done.stderr[-500:]}")
        return float(found[1])
