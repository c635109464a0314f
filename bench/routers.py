"""The routers' figures: latency from source to destination, copies per second, and what ten routers cost appends."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bench.engine import append, body_of, kill, opened
from tests.serving import Client, ServerProcess, serving
from topics.engine.core.pending import Busy
from topics.engine.opening.store import Store
from topics.engine.routers.fold import Routes
from topics.model.requests.routers import RouterRequest

DESTINATIONS = 50
BATCH = 100
RECORDS_PER_S = 50_000
PHASE_S = 2.0
LOOK_EVERY = 25
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}


# --- copies per second, in process ---


def route(store: Store, name: str, source: str, dest: str) -> None:
    while True:
        try:
            change = store.routers.put(name, RouterRequest(source, dest))
            break
        except Busy as busy:
            change = busy.change
            store.commit_log.flush()
            while not change.done:
                store.settle()
    store.commit_log.flush()
    while not change.done:
        store.settle()


def fan_out(batches: int, *, skewed: bool) -> float:
    """Copies per second from one source to 50 destinations, appends included.

    `skewed` destinations have other seqs than their neighbours, so that no two share a batch.
    """
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data")
        for number in range(DESTINATIONS):
            route(store, f"r{number}", "source", f"dest{number}")
            if skewed:
                append(store, f"dest{number}", body_of(number + 1))
                store.commit_log.flush()
        body = body_of(BATCH)

        def run(count: int) -> float:
            started = time.perf_counter()
            for _ in range(count):
                append(store, "source", body)
                store.commit_log.flush()
                store.settle()
                store.background.run(time.perf_counter() + 0.001)
                while store.forwarder.step():
                    pass
                store.step()
            return time.perf_counter() - started

        run(batches // 10)
        took = run(batches)
        while store.forwarder.pending or any(router.lag for router in store.state.feature(Routes).by_name.values()):
            store.settle()
            store.background.run(time.perf_counter() + 0.001)
            store.forwarder.step()
        kill(store)
        return batches * BATCH * DESTINATIONS / took


# --- latency, over HTTP ---


class Latency(NamedTuple):
    p50_ms: float
    p99_ms: float


def latency_of(samples_ms: list[float]) -> Latency:
    return Latency(statistics.median(samples_ms), statistics.quantiles(samples_ms, n=100)[98])


def visible_after(server: ServerProcess, source: str, watched: str, samples: int) -> Latency:
    """From sending an append to a long-poll's reply with the record."""
    writer, reader = server.client(), server.client()
    arrived: list[float] = []
    ready, seen = threading.Semaphore(0), threading.Semaphore(0)

    def read() -> None:
        cursor = reader.state(watched)["head_seq"]
        for _ in range(samples):
            ready.release()
            while True:
                diff = reader.diff(watched, from_seq=cursor, wait_ms=20_000)
                cursor = diff["next_from_seq"]
                if diff["records"]:
                    break
            arrived.append(time.perf_counter())
            seen.release()

    thread = threading.Thread(target=read)
    thread.start()
    took_ms: list[float] = []
    for number in range(samples):
        ready.acquire()
        time.sleep(0.002)  # the long-poll is on its way to the server
        sent = time.perf_counter()
        writer.append(source, PAYLOAD)
        seen.acquire()
        took_ms.append((arrived[number] - sent) * 1000)
    thread.join()
    return latency_of(took_ms)


# --- appends beside ten routers, over HTTP ---


def paced(client: Client, topic: str, seconds: float, lags: list[int]) -> list[float]:
    """Milliseconds of each of 500 appends per second of 100 records; sometimes a router's lag is read."""
    body = json.dumps({"records": [{"data": PAYLOAD}] * BATCH}).encode()
    headers = {"Content-Type": "application/json"}
    took_ms: list[float] = []
    due = time.perf_counter()
    until = due + seconds
    while due < until:
        due += BATCH / RECORDS_PER_S
        if len(took_ms) % LOOK_EVERY == 0:
            lags.append(client.get(f"/v0/routers/{topic}9").json["lag"])
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        sent = time.perf_counter()
        client.request("POST", f"/v0/topics/{topic}?return_seqs=false", body=body, headers=headers)
        took_ms.append((time.perf_counter() - sent) * 1000)
    return took_ms


def beside_routers(server: ServerProcess, phases: int) -> None:
    client = server.client()
    client.put("/v0/routers/plain9", {"source": "elsewhere", "dest": "idle"})
    for number in range(10):
        client.put(f"/v0/routers/routed{number}", {"source": "routed", "dest": f"dest{number}"})
    plain: list[float] = []
    routed: list[float] = []
    lags: list[int] = []
    for _ in range(phases):
        plain += paced(client, "plain", PHASE_S, [])
        routed += paced(client, "routed", PHASE_S, lags)
        while client.get("/v0/routers/routed9").json["lag"]:
            time.sleep(0.01)
    without, beside = latency_of(plain), latency_of(routed)
    lag_ms = max(lags) / RECORDS_PER_S * 1000
    print(
        f"| append of 100 records at 50,000 records/s, no router | p50 {without.p50_ms:.2f} ms, mean "
        f"{statistics.mean(plain):.2f} ms, p99 {without.p99_ms:.2f} ms |"
    )
    print(
        f"| the same with 10 routers | p50 {beside.p50_ms:.2f} ms ({beside.p50_ms / without.p50_ms - 1:+.0%}), mean "
        f"{statistics.mean(routed):.2f} ms, p99 {beside.p99_ms:.2f} ms |"
    )
    print(f"| lag of the last of the 10 routers, worst of {len(lags)} samples | {lag_ms:.0f} ms |", flush=True)


def main() -> None:
    print("| work | figure |")
    print("| --- | --- |")
    for skewed in (False, True):
        rate = max(fan_out(400, skewed=skewed) for _ in range(3))
        which = ", each with seqs of its own" if skewed else ""
        print(f"| one source to 50 destinations, batches of 100{which} | {rate:,.0f} copies/s |", flush=True)
    with tempfile.TemporaryDirectory() as root, serving(Path(root)) as server:
        client = server.client()
        client.put("/v0/routers/r", {"source": "a", "dest": "b"})
        client.append("direct", 0)
        direct = visible_after(server, "direct", "direct", 1_000)
        routed = visible_after(server, "a", "b", 1_000)
        print(f"| append to long-poll, same topic | p50 {direct.p50_ms:.2f} ms, p99 {direct.p99_ms:.2f} ms |")
        print(
            f"| append to long-poll at the destination | p50 {routed.p50_ms:.2f} ms, p99 {routed.p99_ms:.2f} ms: "
            f"{routed.p50_ms - direct.p50_ms:+.2f} ms |",
            flush=True,
        )
        beside_routers(server, 5)


if __name__ == "__main__":
    main()
