"""How long the loop is blocked: the longest wait of another client's `/v0/health` while a scenario loads the server.

A scenario is a function that takes a directory, loads a server on it and yields once it is measured:

    @scenario("what it does", limit_ms=50)
    def name(root: Path) -> Iterator[ServerProcess]: …start a server, yield it, then load it until the generator ends

Between the yield and the end of the generator a separate process requests `/v0/health` repeatedly on one
connection. The table has

* the longest wait, the median, and the number of replies,
* how long the server's loop thread was ready to run within the longest wait and had no core: the share of others,
* the most CPU time that the server's loop thread used within one wait: the length of the wait if no other process
  used the cores. The kernel counts it in steps of its tick, up to 4 ms;
* the longest turn of the loop in the last two minutes as measured by the server itself, loading included.

The prober is a process, so that pauses of the load program are not counted. It and the server run at a higher priority
than the load, where the user may raise it.
STALLS="HTTP/2,redrive" measures only the scenarios whose names hold one of these words.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from io import FileIO
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from tests.serving import ServerProcess, serving

HEALTH = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Between two probes; short, so that a pause is noticed soon after it begins.
PROBE_EVERY_S = 0.001
# Above the load program and other programs on the machine; the prober above the server.
SERVER_NICE, PROBER_NICE = -10, -15
# No checkpoint in between: all that is replayed or loaded is in the log.
IN_THE_LOG = {"checkpoint_bytes": "64 GiB", "checkpoint_ms": 86_400_000}


class Scenario(NamedTuple):
    what: str
    limit_ms: int
    run: Callable[[Path], Iterator[ServerProcess]]


class Waits(NamedTuple):
    """The measurements of the prober."""

    longest_ms: float
    median_ms: float
    answers: int
    cpu_ms: float
    turn_ms: float
    no_core_ms: float


class Probe(NamedTuple):
    """One answer, in seconds: its wait, and what the loop thread did meanwhile: used a core, waited for one."""

    wait_s: float
    cpu_s: float
    no_core_s: float


SCENARIOS: list[Scenario] = []


def scenario(what: str, limit_ms: int = 50) -> Callable[[Callable[[Path], Iterator[ServerProcess]]], object]:
    def add(run: Callable[[Path], Iterator[ServerProcess]]) -> object:
        SCENARIOS.append(Scenario(what, limit_ms, run))
        return run

    return add


# --- the prober ---


def prefer(pid: int, nice: int) -> None:
    """Raise the priority of a process's main thread; without permission, leave it."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)


def probe(stop: Event, pipe: Connection) -> None:
    """Report that it is up, take port and pid, request health until the stop, send waits and CPU times in seconds."""
    prefer(0, PROBER_NICE)
    waits: list[Probe] = []
    pipe.send("up")
    port, pid = pipe.recv()
    with (
        open(f"/proc/{pid}/task/{pid}/schedstat", "rb", buffering=0) as loop_thread,
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not stop.is_set():
            cpu_s, no_core_s = cpu_times_s(loop_thread)
            started_s = time.perf_counter()
            connection.sendall(HEALTH)
            received = b""
            while not received.endswith(b"}"):
                received += connection.recv(65_536)
            wait_s = time.perf_counter() - started_s
            cpu_then_s, no_core_then_s = cpu_times_s(loop_thread)
            waits.append(Probe(wait_s, cpu_then_s - cpu_s, no_core_then_s - no_core_s))
            assert received.startswith(b"HTTP/1.1 200"), received
            if len(waits) == 1:
                pipe.send("begun")
            time.sleep(PROBE_EVERY_S)
    pipe.send(waits)


def cpu_times_s(schedstat: FileIO) -> tuple[float, float]:
    """How long a thread has run, and how long it was ready to run and did not."""
    schedstat.seek(0)
    ran_ns, waited_ns, _ = schedstat.read(64).split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


def measure(run: Callable[[Path], Iterator[ServerProcess]]) -> Waits:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pipe, theirs = context.Pipe()
    prober = context.Process(target=probe, args=(stop, theirs))
    prober.start()
    server: ServerProcess | None = None
    try:
        assert pipe.recv() == "up"
        with tempfile.TemporaryDirectory() as root:
            steps = run(Path(root))
            try:
                server = next(steps)
                prefer(server.process.pid, SERVER_NICE)
                pipe.send((server.port, server.process.pid))
                assert pipe.recv() == "begun"
                assert next(steps, None) is None, "a scenario yields once"
                stop.set()
                answers = pipe.recv()
                metrics = server.client().get("/v0/metrics", headers={"Accept": "application/json"}).json
            finally:
                if server is not None:
                    server.kill()
    finally:
        stop.set()
        prober.kill()
        prober.join()
    turn_ms = 1000 * metrics["topics_loop_longest_turn_seconds"]
    waits = [1000 * answer.wait_s for answer in answers]
    cpu_ms = 1000 * max(answer.cpu_s for answer in answers)
    no_core_ms = 1000 * max(answers).no_core_s
    return Waits(max(waits), statistics.median(waits), len(waits), cpu_ms, turn_ms, no_core_ms)


# --- scenarios ---


def replayed(root: Path, topic: str, bodies: Iterator[bytes], **settings: object) -> Iterator[ServerProcess]:
    """A log of these appends, written by a server that is killed, and replayed while the waits are measured."""
    with serving(root, **IN_THE_LOG, **settings) as writer:
        client = writer.client()
        for body in bodies:
            reply = client.request(
                "POST",
                f"/v0/topics/{topic}?return_seqs=false",
                body=body,
                headers={"Content-Type": "application/json"},
            )
            assert reply.status < 300, reply
    server = ServerProcess(root, **IN_THE_LOG, **settings)
    yield server
    server.ready()


def batch(records: list[dict[str, object]]) -> bytes:
    return json.dumps({"records": records}).encode()


@scenario("start: replay of 600,000 records in batches of 10,000, with tags")
def replay_batches(root: Path) -> Iterator[ServerProcess]:
    records = [{"data": {"n": n, "text": "x" * 60}, "tag": f"tag-{n}"} for n in range(10_000)]
    return replayed(root, "t", iter([batch(records)] * 60))


@scenario("start: replay of one frame of 60 MB")
def replay_huge_frame(root: Path) -> Iterator[ServerProcess]:
    return replayed(root, "t", iter([batch([{"data": "x" * 1_000_000}] * 60)]))


@scenario("start: replay of 200,000 single records")
def replay_single_records(root: Path) -> Iterator[ServerProcess]:
    with serving(root, **IN_THE_LOG) as writer:
        head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 24\r\n\r\n"
        with socket.create_connection(("127.0.0.1", writer.port)) as connection:
            for _ in range(400):
                connection.sendall((head + b'{"records":[{"data":1}]}') * 500)
                answered = 0
                while answered < 500:
                    answered += connection.recv(1 << 20).count(b"HTTP/1.1 20")
    server = ServerProcess(root, **IN_THE_LOG)
    yield server
    server.ready()


@scenario("start: replay of 10,000 delayed jobs with unique keys in one batch")
def replay_jobs(root: Path) -> Iterator[ServerProcess]:
    with serving(root) as writer:
        assert writer.client().put("/v0/topics/q", {"type": "queue"}).status == 201
    records = [{"data": n, "delay_ms": 1_000 + n, "unique_key": f"key-{n}"} for n in range(10_000)]
    return (yield from replayed(root, "q", iter([batch(records)])))


def main() -> None:
    for module in ("attacks", "maxima", "lists"):
        importlib.import_module(f"bench.{module}")
    print(
        "| while | longest wait of /v0/health | without a core | CPU in a wait "
        "| median | probes | longest turn | wanted |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for what, limit_ms, run in SCENARIOS:
        if not any(word in what for word in os.environ.get("STALLS", "").split(",")):
            continue
        waits = measure(run)
        print(
            f"| {what} | {waits.longest_ms:.1f} ms | {waits.no_core_ms:.1f} ms | {waits.cpu_ms:.1f} ms "
            f"| {waits.median_ms:.2f} ms | {waits.answers:,} | {waits.turn_ms:.1f} ms | {limit_ms} ms |",
            flush=True,
        )
