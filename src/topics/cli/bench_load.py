"""The load of `topics bench`: processes of their own, each with some connections, started together and merged."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.cli.connection import Access
from topics.cli.failure import CommandFailed, failure_of

if TYPE_CHECKING:
    from topics.client import Client

PAGE_RECORDS = 1_000
READY = "ready"
GO = "go"
STOP_S_MAX = 10.0
PROGRAM = "from topics.cli.bench_load import main; main()"


class Load(NamedTuple):
    """What a process does: the same request on every connection until time is up."""

    access: Access
    topic: str
    # Records of one append; 0: read instead.
    batch: int
    size: int
    connections: int
    seconds: float


class Measured(NamedTuple):
    """What the requests of one process or of all have shown."""

    took_s: float
    records: int
    taken_us: list[int]


def measure(load: Load, processes: int) -> Measured:
    """The load divided among processes, which begin together once all are connected."""
    shares = [share for share in _shares(load.connections, processes) if share]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_process(load._replace(connections=share))) for share in shares]
        for process in started:
            _answer(process)
        for process in started:
            _tell(process, GO)
        found = [_answer(process) for process in started]
    taken_us = [taken for each in found for taken in each["taken_us"]]
    return Measured(max(each["took_s"] for each in found), sum(each["records"] for each in found), taken_us)


def _shares(connections: int, processes: int) -> list[int]:
    each, more = divmod(connections, processes)
    return [each + (number < more) for number in range(processes)]


@contextlib.contextmanager
def _process(load: Load) -> Generator[subprocess.Popen[str]]:
    """A process that has its orders; it is gone afterwards, however this one ends."""
    # Ctrl-C reaches only this process, which then ends the others. A key on the command line could be read by all.
    command = [sys.executable, "-P", "-c", PROGRAM]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _tell(process, json.dumps(load))
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        print(line, file=process.stdin, flush=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a process; one that failed says why."""
    assert process.stdout is not None
    line = process.stdout.readline()
    told: dict[str, Any] = json.loads(line) if line else {"error": "a process of the bench ended early", "code": 1}
    if "error" in told:
        raise CommandFailed(told["error"], told["code"])
    return told


# --- in the process ---


def main() -> None:
    """Read the orders, connect, wait for the others, make the load, and print what it showed."""
    given: list[Any] = json.loads(sys.stdin.readline())
    load = Load(Access(*given[0]), *given[1:])
    try:
        measured = _run(load)
    except Exception as error:  # noqa: BLE001 - the other process prints it as it prints its own
        failure = failure_of(error)
        told = {"error": failure.line, "code": failure.code} if failure else {"error": repr(error), "code": 1}
        print(json.dumps(told), flush=True)
        return
    print(json.dumps(measured._asdict()), flush=True)


def _run(load: Load) -> Measured:
    request = _request_of(load)
    taken_us: list[int] = []
    counts: list[int] = []
    errors: list[Exception] = []
    connected = threading.Barrier(load.connections + 1)
    begin = threading.Barrier(load.connections + 1)

    def work() -> None:
        with load.access.open(retries_max=0) as client:
            try:
                request(client)
            except Exception as error:  # noqa: BLE001 - raised by the thread that waits for the others
                errors.append(error)
            connected.wait()
            begin.wait()
            end_s = time.perf_counter() + load.seconds
            while not errors and (begun_s := time.perf_counter()) < end_s:
                try:
                    counts.append(request(client))
                except Exception as error:  # noqa: BLE001
                    errors.append(error)
                    return
                taken_us.append(round((time.perf_counter() - begun_s) * 1e6))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(load.connections)]
    for thread in threads:
        thread.start()
    connected.wait()
    if not errors:
        print(json.dumps({READY: True}), flush=True)
        sys.stdin.readline()
    begun_s = time.perf_counter()
    begin.wait()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - begun_s
    if errors:
        raise errors[0]
    return Measured(took_s, sum(counts), taken_us)


def _request_of(load: Load) -> Callable[[Client], int]:
    """Does one request; tells how many records it moved."""
    if not load.batch:
        return lambda client: len(client.diff(load.topic, limit=PAGE_RECORDS).records)
    payload = b'"' + b"x" * (load.size - 2) + b'"'
    body = b"[" + b",".join([b'{"data":%b}' % payload] * load.batch) + b"]"

    # Never made again by a request that was under way when the bench was interrupted and the topic removed.
    def append(client: Client) -> int:
        client.append_many(load.topic, body, create=False)
        return load.batch

    return append
