"""The command's side of a warm Spark: found or started, asked, and waited for."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from topics.cli.failure import NOT_SO, CommandFailed
from topics_spark.sql.warm.requests import Reply, SqlRequest, address, connected, directory, idle_s, send_request

# A Spark that does not listen by then does not start; it listens before its session is ready.
LISTEN_S_MAX: Final = 60.0
LOOK_S: Final = 0.05
# A warm Spark answers sooner than this; above it the command says that one starts.
QUIET_S: Final = 0.5


def warm_address(url: str | None, key: str | None) -> Path | None:
    """None: this command starts a Spark of its own."""
    import topics
    import topics_spark

    if not idle_s(os.environ) or os.environ.get("SPARK_MASTER"):
        return None
    # Changed code is another program.
    changed = max(file.stat().st_mtime_ns for file in Path(topics_spark.__file__).parent.rglob("*.py"))
    return address(os.environ, url, key, sys.executable, topics.__version__, changed, os.environ.get("JAVA_HOME"))


def ask(path: Path, request: SqlRequest) -> int:
    """The exit code; rows and messages go where this process's own go."""
    from topics_spark.source.progress import waiting

    with contextlib.closing(connected(path) or _started(path)) as connection:
        send_request(connection, request, [1, 2])
        replies = connection.makefile("rb")
        connection.settimeout(QUIET_S)
        try:
            first = replies.readline()
        except TimeoutError:
            connection.settimeout(None)
            # A file object is of no use after a timeout.
            replies = connection.makefile("rb")
            with waiting("starting Spark, which stays for the next queries", "Spark is ready"):
                first = replies.readline()
        connection.settimeout(None)
        for line in (first, *iter(replies.readline, b"")):
            reply = msgspec.json.decode(line, type=Reply) if line.strip() else Reply()
            if reply.code is not None:
                return reply.code
    raise CommandFailed(f"the warm Spark has ended before its reply; its log is {log_of(path)}", NOT_SO)


def _started(path: Path) -> socket.socket:
    """A new process that outlives this one, if no other command has just started one."""
    with log_of(path).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "topics_spark.sql.warm.serving", str(path), str(idle_s(os.environ))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    deadline_s = time.monotonic() + LISTEN_S_MAX
    while time.monotonic() < deadline_s:
        if (found := connected(path)) is not None:
            return found
        if process.poll() not in (None, 0):
            break
        time.sleep(LOOK_S)
    raise CommandFailed(f"a warm Spark does not start, see {log_of(path)}; --no-warm does without", NOT_SO)


def log_of(path: Path) -> Path:
    return path.with_suffix(".log")


def stop_all() -> int:
    """End every warm Spark of this user after its current query; how many there were."""
    stopped = 0
    for path in directory(os.environ).glob("spark-*.sock"):
        connection = connected(path)
        if connection is None:
            continue
        with contextlib.closing(connection), contextlib.suppress(OSError):
            send_request(connection, SqlRequest(stop=True), [])
            # It closes the connection when it has heard.
            while connection.recv(1024):
                pass
        stopped += 1
    return stopped
