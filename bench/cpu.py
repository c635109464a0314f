"""The server's processor time per request for the ten commonest calls, of several trees in alternating rounds."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.load import wrk
from bench.load.directories import on_disk
from bench.load.polls import Pairs
from bench.load.trees import Tree, trees_for
from bench.report import page
from bench.report.figures import Spread, spread, table
from bench.report.pictures import Bar, Group, picture
from tests.groups.consumers import SECRET, token
from tests.serving import ServerProcess

KEY = "bench-key"
ROUNDS = 5
SECONDS = 1
CONNECTIONS = 16
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}
ONE = {"records": [{"data": PAYLOAD}]}
MANY = {"records": [{"data": PAYLOAD}] * 100}
JOBS = 100_000
SETTLE_S = 0.1
SETTLE_S_MAX = 3.0
FILL = 1_000


class Subject(NamedTuple):
    """A running server of a tree, and its number of requests."""

    tree: Tree
    server: ServerProcess

    @property
    def aim(self) -> wrk.Aim:
        return wrk.Aim(self.server.port, KEY)

    @property
    def pid(self) -> int:
        return self.server.process.pid


# Generates the load, and returns how often the request or pair was answered.
Load = Callable[[], int]
Prepare = Callable[[Subject, str], Load]


class Call(NamedTuple):
    """One of the ten calls: its row, and the function that prepares a topic and returns the load to measure."""

    what: str
    prepare: Prepare
    # Target figures in µs: compiled, pure.
    wanted: tuple[int, int] | None = None


def static(path: str, body: object, method: str = "POST") -> Prepare:
    def prepare(subject: Subject, _: str) -> Load:
        return lambda: counted(wrk.static(subject.aim, path, body, CONNECTIONS, SECONDS, method=method))

    return prepare


def counted(run: wrk.Run, per_pair: bool = False) -> int:
    if run.errors:
        raise wrk.WrkFailed(f"{run.errors} requests failed")
    return run.finished if per_pair else run.requests


def watched(subject: Subject, name: str) -> Load:
    """Appends to a topic that one stream watches."""
    client = subject.server.client(KEY)
    client.append(name, PAYLOAD)
    asked = {"topics": {name: {"tail": True}}, "heartbeat_ms": 60_000}
    url = client.post("/v0/watch", asked).json["stream_url"]
    stream = socket.create_connection(("127.0.0.1", subject.server.port), timeout=60)
    headers = f"Host: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {KEY}\r\n"
    stream.sendall(f"GET {url} HTTP/1.1\r\n{headers}\r\n".encode())
    seen = b""
    while b"event: caught-up" not in seen:
        seen += stream.recv(1 << 16)
    drain = threading.Thread(target=_drain, args=(stream,), daemon=True)
    drain.start()

    def load() -> int:
        done = counted(wrk.static(subject.aim, f"/v0/topics/{name}", ONE, CONNECTIONS, SECONDS))
        stream.shutdown(socket.SHUT_RDWR)
        drain.join()
        stream.close()
        return done

    return load


def _drain(stream: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    with contextlib.suppress(OSError):
        while stream.recv_into(buffer):
            pass


def polled(subject: Subject, name: str) -> Load:
    pairs = Pairs(subject.server.port, KEY, name, PAYLOAD, CONNECTIONS // 2)
    return lambda: pairs.run(SECONDS)


def filled(subject: Subject, name: str, **config: object) -> None:
    client = subject.server.client(KEY)
    if config:
        client.put(f"/v0/topics/{name}", config)
    for _ in range(JOBS // FILL):
        client.append(name, *[PAYLOAD] * FILL)


def paired(aim: wrk.Aim, call: str, name: str) -> Load:
    return lambda: counted(wrk.scripted(aim, call, name, JOBS, CONNECTIONS, SECONDS), per_pair=True)


def claimed(subject: Subject, name: str) -> Load:
    filled(subject, name, type="queue")
    return paired(subject.aim, "claim", name)


def nacked(subject: Subject, name: str) -> Load:
    filled(subject, name, type="queue", lease_ms=600_000)
    client = subject.server.client(KEY)
    for _ in range(JOBS // FILL):
        client.post(f"/v0/topics/{name}/claim", {"node": "w", "max": FILL})
    return paired(subject.aim, "nack", name)


def consumed(subject: Subject, name: str) -> Load:
    filled(subject, name)
    return paired(wrk.Aim(subject.server.port, token()), "consume", name)


CALLS = (
    Call("append 1 record", static("/v0/topics/one", ONE), (28, 42)),
    Call("append 100 records", static("/v0/topics/many", MANY)),
    Call("diff of 1 record", static("/v0/topics/read/diff", {"limit": 1}), (26, 40)),
    Call("diff of 100 records", static("/v0/topics/read/diff", {"limit": 100})),
    Call("long poll + append that answers it", polled),
    Call("append 1 record to 1 SSE watcher", watched),
    Call("claim 8 jobs + ack 8", claimed, (70, 100)),
    Call("nack 8 jobs", nacked),
    Call("consume 10 messages + ack (group)", consumed),
    Call("state of a topic", static("/v0/topics/one", None, "GET")),
)


def cost_us(subject: Subject, call: Call, name: str) -> float:
    """Microseconds of the server per request or pair; preparation is not counted."""
    load = call.prepare(subject, name)
    settle(subject.pid)
    before_s = wrk.cpu_s(subject.pid)
    done = load()
    took_s = wrk.cpu_s(subject.pid) - before_s
    if done == 0:
        raise wrk.WrkFailed(f"{call.what}: nothing was answered")
    subject.server.client(KEY).delete(f"/v0/topics/{name}")
    return took_s * 1e6 / done


def settle(pid: int) -> None:
    """Wait until a server has finished the work left by the preparation: checkpoints, deletions."""
    end_s = time.monotonic() + SETTLE_S_MAX
    while time.monotonic() < end_s:
        before_s = wrk.cpu_s(pid)
        time.sleep(SETTLE_S)
        if wrk.cpu_s(pid) - before_s < SETTLE_S / 50:
            return


Samples = dict[tuple[str, str], list[float]]


def measure(wanted: list[Tree], root: Path, rounds: int = ROUNDS) -> Samples:
    """Each call on each tree in turn, with another tree first in every round; a round before that warms up."""
    samples: Samples = {}
    with contextlib.ExitStack() as stack:
        subjects: list[Subject] = []
        for number, tree in enumerate(wanted):
            settings = {"api_keys": KEY, "jwt_secret": SECRET}
            server = stack.enter_context(tree.serving(root / str(number), **settings))
            server.client(KEY).append("read", *[PAYLOAD] * 1000)
            subjects.append(Subject(tree, server))
        for round_number in range(rounds + 1):
            for number, call in enumerate(CALLS):
                first = (round_number + number) % len(subjects)
                for subject in subjects[first:] + subjects[:first]:
                    cost = cost_us(subject, call, f"call-{number}-{round_number}")
                    if round_number:
                        samples.setdefault((call.what, subject.tree.name), []).append(cost)
                        print(f"{round_number} | {call.what} | {subject.tree.name} | {cost:.1f} µs", file=sys.stderr)
    return samples


def shown(samples: Samples, names: list[str]) -> str:
    """The table: calls by trees, and the last tree compared with the first."""
    compared = [f"{names[-1]} ÷ {names[0]}"] if len(names) > 1 else []
    rows: list[list[str]] = []
    for call in CALLS:
        spreads = [spread(samples[call.what, name]) for name in names]
        first, last = samples[call.what, names[0]], samples[call.what, names[-1]]
        ratios = spread([new / old for old, new in zip(first, last, strict=True)])
        ratio = [f"{ratios.median:.2f} ({ratios.low:.2f} to {ratios.high:.2f})"] if compared else []
        wanted = f"{call.wanted[0]} compiled, {call.wanted[1]} pure" if call.wanted else ""
        rows.append([call.what, wanted, *(each.shown("µs") for each in spreads), *ratio])
    return table(["call", "wanted, µs", *names, *compared], rows)


def history_head() -> str:
    return "| tree | " + " | ".join(call.what for call in CALLS) + " |"


def history_rows(samples: Samples, names: list[str], day: str) -> list[str]:
    medians = {name: " | ".join(f"{spread(samples[call.what, name]).median:.0f}" for call in CALLS) for name in names}
    return [f"| {name}, {day} | {medians[name]} |" for name in names]


def drawn(samples: Samples, names: list[str]) -> str:
    def bar(name: str, value: Spread) -> Bar:
        return Bar(name, value, "own" if name.endswith("compiled") or len(names) == 1 else "bar")

    groups = [Group(call.what, "µs", [bar(name, spread(samples[call.what, name])) for name in names]) for call in CALLS]
    return picture("Processor time of the server per call", groups)


def main() -> None:
    wanted = trees_for("cpu")
    conditions = page.Conditions()
    with on_disk() as root:
        samples = measure(wanted, root)
    names = [tree.name for tree in wanted]
    head = f"{conditions.sentence()} {ROUNDS} alternating rounds, median and range, {CONNECTIONS} connections, keys on."
    text = f"{head}\n\n{shown(samples, names)}"
    print(text, flush=True)
    rows = history_rows(samples, names, conditions.day)
    old = page.part(page.PAGE.read_text(), "cpu-history")
    history = page.with_history(old, history_head(), rows)
    image = "![processor time per call](pictures/cpu.svg)"
    page.write({"cpu": f"{text}\n{image}", "cpu-history": history}, {"cpu": drawn(samples, names)})


if __name__ == "__main__":
    main()
