"""The warm Spark as a process: one query after another, each in a session of its own, until nobody asks any more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from topics.cli.failure import NOT_SO, PIPE_CLOSED, CommandFailed, failure_of
from topics.cli.output import say
from topics_spark.sql.warm.requests import Reply, SqlRequest, receive_request, send_reply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics_spark.sql.formats import Form

BACKLOG: Final = 64


def main(path: Path, idle_s: float) -> int:
    lock = path.with_suffix(".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Another one listens, or is about to.
        return 0
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        path.unlink(missing_ok=True)
        os.umask(0o077)
        listener.bind(str(path))
        listener.listen(BACKLOG)
        try:
            serve(listener, idle_s)
        finally:
            path.unlink(missing_ok=True)
    return 0


def serve(listener: socket.socket, idle_s: float) -> None:
    from topics_spark.sql.command import started

    spark = started(None, {})
    listener.settimeout(idle_s)
    try:
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return
            with connection:
                if is_ours(connection) and not answer(spark, connection):
                    return
    finally:
        with contextlib.suppress(Exception):
            spark.stop()


def is_ours(connection: socket.socket) -> bool:
    """Whether the other side is this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.getuid()


def answer(spark: SparkSession, connection: socket.socket) -> bool:
    """Whether to go on."""
    try:
        request, files = receive_request(connection)
    except (ValueError, OSError):
        return True
    if request.stop:
        return False
    with contextlib.suppress(OSError), output_to(files), stopped_with(spark, connection) as gone:
        send_reply(connection, Reply(ready=True))
        code = run(spark, request)
        if not gone.is_set():
            sys.stdout.flush()
            send_reply(connection, Reply(code=code))
    return True


def run(spark: SparkSession, request: SqlRequest) -> int:
    from topics_spark.sql.command import Session
    from topics_spark.sql.query_inputs import QueryInputs
    from topics_spark.sql.views import Views

    out = None if request.out is None else Path(request.out)
    try:
        views = Views(spark.newSession(), QueryInputs(**request.inputs))
        session = Session(views, cast("Form", request.form), out, request.limit_rows, engine="warm Spark")
        session.run_all(request.text)
    except BrokenPipeError:
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the next query must not suffer from this one
        known = failure_of(error) or failure_of(CommandFailed(f"{type(error).__name__}: {error}", NOT_SO))
        assert known is not None
        say(known.line)
        return known.code
    return 0


@contextlib.contextmanager
def output_to(files: list[int]) -> Generator[None]:
    """Standard output and error are those of the command, for one query: there is one at a time."""
    kept = [os.dup(1), os.dup(2)]
    try:
        for number, each in enumerate(files, 1):
            os.dup2(each, number)
        yield
    finally:
        # What is left in a buffer was meant for that command, whose pipe may be closed.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        for number, each in enumerate(kept, 1):
            os.dup2(each, number)
        for each in (*kept, *files):
            os.close(each)


@contextlib.contextmanager
def stopped_with(spark: SparkSession, connection: socket.socket) -> Generator[threading.Event]:
    """A command that goes away, by Ctrl-C or by a kill, does not want its rows any more."""
    gone, over = threading.Event(), threading.Event()

    def look() -> None:
        try:
            ended = not connection.recv(1)
        except OSError:
            ended = True
        if ended and not over.is_set():
            gone.set()
            with contextlib.suppress(Exception):
                cast("Any", spark).sparkContext.cancelAllJobs()

    thread = threading.Thread(target=look, name="command", daemon=True)
    thread.start()
    try:
        yield gone
    finally:
        over.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), float(sys.argv[2])))
