"""What a bucket costs and gives, on a local S3 server, beside the figures that are wanted of it.

BUCKET="lag,restore" measures only the parts whose names hold one of these words; all of them take some six minutes,
the half of which is an idle stretch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.load import wrk
from bench.load.counting_proxy import counting_proxy
from bench.load.directories import on_disk
from bench.load.wire import Wire
from bench.report.figures import number, percentile, spread
from tests.bucket.s3_server import S3Server, s3_server
from tests.serving import TOPICS, Client, ServerProcess, serving

ROUNDS = 5
SECONDS = 2
WRITERS = 16
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}
ONE: dict[str, list[object]] = {"records": [{"data": PAYLOAD}]}
HUNDRED: dict[str, list[object]] = {"records": [{"data": PAYLOAD}] * 100}
WAIT_S_MAX = 60.0
# An even load.
RECORDS_PER_S, BATCH, LAG_S = 50_000, 500, 12.0
PROBE_EVERY_S = (0.01, 0.03)
LEASE_S, TAKE_OVERS = 10.0, 2
RESTORED = 1_000_000
COLD_RECORDS, COLD_READS, COLD_BYTES = 40_000, 10, 1_000_000
# Long enough for three renewals of a server without a standby.
IDLE_S = 150.0


class Figure(NamedTuple):
    what: str
    wanted: str
    measured: str


class Bench(NamedTuple):
    """Where a part keeps its data, and the object store."""

    root: Path
    s3: S3Server

    def url(self, prefix: str) -> str:
        return f"s3://bkt/{prefix}"

    def objects(self, prefix: str) -> Path:
        """The objects below a prefix, as files."""
        return self.root / "s3" / "bkt" / prefix


Part = Callable[[Bench], Iterator[Figure]]
PARTS: dict[str, Part] = {}


def part(name: str) -> Callable[[Part], Part]:
    def add(measure: Part) -> Part:
        PARTS[name] = measure
        return measure

    return add


def until(is_so: Callable[[], object], pause_s: float = 0.02) -> None:
    give_up_s = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < give_up_s, "it does not happen"
        time.sleep(pause_s)


def in_bucket(client: Client) -> bool:
    """Whether the bucket has the whole log."""
    found = client.get("/v0/health").json["bucket"]
    return found["state"] == "ok" and not found["lag_bytes"]


def metric(client: Client, name: str) -> float:
    return client.get("/v0/metrics", headers={"Accept": "application/json"}).json[name]


# --- appends ---


@part("disk")
def disk(bench: Bench) -> Iterator[Figure]:
    """`disk` appends, the two servers in turn: as many as the machine can do, and at an even rate, far below that.

    The S3 server shares its cores and its disk, and a server that writes at full speed keeps it as busy as itself.
    """
    with (
        serving(bench.root / "plain") as plain,
        serving(bench.root / "copied", bucket=bench.url("copied")) as copied,
    ):
        for what, p50_ms in (
            (f"1 record, {WRITERS} writers at full speed", lambda port: full_speed_p50_ms(port, ONE)),
            (f"100 records, {WRITERS} writers at full speed", lambda port: full_speed_p50_ms(port, HUNDRED)),
            (f"100 records, at {RECORDS_PER_S:,} records/s", even_p50_ms),
        ):
            sides: list[list[float]] = [[], []]
            for round_number in range(ROUNDS + 1):
                for side, server in zip(sides, (plain, copied), strict=True):
                    found_ms = p50_ms(server.port)
                    # The first round warms up.
                    if round_number:
                        side.append(found_ms)
                # Nothing is left to be sent beside the next round.
                client = copied.client()
                until(lambda client=client: in_bucket(client))
            without, with_bucket = spread(sides[0]), spread(sides[1])
            more = f"{100 * (with_bucket.median / without.median - 1):+.0f}%"
            shown = f"{more}: {with_bucket.shown('ms')}, without a bucket {without.shown('ms')}"
            yield Figure(f"`disk` append of {what}, p50", "+10%", shown)


def full_speed_p50_ms(port: int, body: object) -> float:
    done = wrk.static(wrk.Aim(port), "/v0/topics/disk", body, WRITERS, SECONDS)
    assert not done.errors
    return done.p50_ms


def even_p50_ms(port: int) -> float:
    took_ms: list[float] = []
    write_steadily(port, "disk", HUNDRED, SECONDS, took_ms)
    return statistics.median(took_ms)


def write_steadily(port: int, topic: str, body: dict[str, list[object]], seconds: float, took_ms: list[float]) -> None:
    """Appends at an even rate of records; one that comes late is followed by the next at once."""
    wire = Wire(port)
    request = wire.bytes_of(f"/v0/topics/{topic}?return_seqs=false", body)
    due_s = began_s = time.perf_counter()
    while due_s < began_s + seconds:
        time.sleep(max(0.0, due_s - time.perf_counter()))
        sent_s = time.perf_counter()
        wire.socket.sendall(request)
        wire.answer()
        took_ms.append(1000 * (time.perf_counter() - sent_s))
        due_s += len(body["records"]) / RECORDS_PER_S
    wire.close()


@part("replicated")
def replicated(bench: Bench) -> Iterator[Figure]:
    """With `fsync` in the same rounds: what the machine does without waiting for the bucket."""
    with serving(bench.root / "replicated", bucket=bench.url("replicated")) as server:
        client = server.client()
        for durability in ("fsync", "replicated"):
            assert client.put(f"/v0/topics/{durability}", {"durability": durability}).status == 201
        for durability, writers in (("replicated", WRITERS), ("replicated", 4 * WRITERS), ("fsync", WRITERS)):
            runs: list[wrk.Run] = []
            pieces: list[float] = []
            for round_number in range(ROUNDS + 1):
                before, began_s = metric(client, "topics_bucket_pieces_total"), time.monotonic()
                run = wrk.static(wrk.Aim(server.port), f"/v0/topics/{durability}", HUNDRED, writers, SECONDS)
                assert not run.errors
                if round_number:
                    runs.append(run)
                    took_s = time.monotonic() - began_s
                    pieces.append((metric(client, "topics_bucket_pieces_total") - before) / took_s)
            rate, p50 = spread([100 * run.per_s for run in runs]), spread([run.p50_ms for run in runs])
            wanted = "100,000 records/s, p50 100 ms" if (durability, writers) == ("replicated", WRITERS) else ""
            yield Figure(
                f"`{durability}`, {writers} writers × 100 records",
                wanted,
                f"{rate.shown('records/s')}, p50 {p50.shown('ms')}, {number(statistics.median(pieces))} pieces/s",
            )


# --- a standby ---


@contextlib.contextmanager
def pair(bench: Bench, prefix: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with (
        serving(bench.root / f"{prefix}-a", bucket=bench.url(prefix)) as primary,
        serving(bench.root / f"{prefix}-b", "--standby", bucket=bench.url(prefix)) as standby,
    ):
        yield primary, standby


def write_probes(client: Client, stop: threading.Event) -> None:
    """The time at which each was sent; at uneven intervals, so that they meet a piece at any age."""
    chance = random.Random(1)
    while not stop.is_set():
        client.append("probe", time.perf_counter())
        time.sleep(chance.uniform(*PROBE_EVERY_S))


@part("lag")
def lag(bench: Bench) -> Iterator[Figure]:
    """From sending a record to the primary to reading it from the standby, by a long poll."""
    with pair(bench, "lag") as (primary, standby):
        writer, reader = primary.client(), standby.client()
        writer.append("probe", 0.0)
        until(lambda: reader.get("/v0/topics/probe?touch=false").status == 200)
        took_ms: list[float] = []
        stop = threading.Event()
        body: dict[str, list[object]] = {"records": [{"data": PAYLOAD}] * BATCH}
        load = threading.Thread(target=write_steadily, args=(primary.port, "load", body, LAG_S, took_ms))
        probes = threading.Thread(target=write_probes, args=(writer, stop))
        began_s = time.perf_counter()
        load.start()
        probes.start()
        lags_ms: list[float] = []
        cursor = 1
        while load.is_alive():
            found = reader.diff("probe", from_seq=cursor, wait_ms=1_000)
            now_s = time.perf_counter()
            cursor = found["next_from_seq"]
            lags_ms += [1000 * (now_s - record["data"]) for record in found["records"]]
        rate = BATCH * len(took_ms) / (time.perf_counter() - began_s)
        stop.set()
        probes.join()
    shown = f"{number(statistics.median(lags_ms))} ms at {number(rate)}/s, p99 {number(percentile(lags_ms, 0.99))} ms"
    yield Figure(f"lag of a standby at {RECORDS_PER_S:,} records/s, p50 of {len(lags_ms)}", "150 ms", shown)


@part("take-over")
def take_over(bench: Bench) -> Iterator[Figure]:
    samples = [seconds_without_primary(bench, f"takeover{round_number}") for round_number in range(TAKE_OVERS)]
    yield Figure(
        f"`kill -9` to the first write that a standby acknowledges, lease {LEASE_S:.0f} s",
        f"{LEASE_S + 2:.0f} s",
        spread(samples).shown("s"),
    )


def seconds_without_primary(bench: Bench, prefix: str) -> float:
    """The primary dies just after a renewal, so that nearly the whole lease has to pass."""
    with pair(bench, prefix) as (primary, standby):
        client, other = primary.client(), standby.client()
        assert client.put("/v0/topics/r", {"durability": "replicated"}).status == 201
        assert client.append("r", 0).status == 200
        until(lambda: other.get("/v0/topics/r?touch=false").status == 200)
        named = bench.objects(prefix) / "primary"
        before = named.stat().st_mtime_ns
        until(lambda: named.stat().st_mtime_ns != before, 0.001)
        primary.process.kill()
        died_s = time.perf_counter()
        until(lambda: other.append("r", 1).status == 200, 0.01)
        return time.perf_counter() - died_s


# --- what is only in the bucket ---


@part("restore")
def restore(bench: Bench) -> Iterator[Figure]:
    """From pieces of the log, and from packs, by both commands; starting them is included."""
    log_only = {"checkpoint_bytes": "64 GiB", "checkpoint_ms": 86_400_000}
    for what, settings in (("log", log_only), ("packs", {"checkpoint_ms": 1_000})):
        prefix = f"restore-{what}"
        fill_to_restore(bench, prefix, settings)
        began_s = time.perf_counter()
        command = [TOPICS, "restore", bench.url(prefix), bench.root / f"{prefix}-copy"]
        subprocess.run(command, check=True, capture_output=True)
        restored_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        with serving(bench.root / f"{prefix}-new", bucket=bench.url(prefix)) as server:
            ready_s = time.perf_counter() - began_s
            assert server.client().state("t")["head_seq"] == RESTORED
        yield Figure(f"`topics restore` of {RESTORED:,} records, {what}", "5 s", f"{number(restored_s)} s")
        yield Figure(f"`topics serve` on an empty directory until ready, {what}", "5 s", f"{number(ready_s)} s")


def fill_to_restore(bench: Bench, prefix: str, settings: Mapping[str, object]) -> None:
    """All of it in the bucket, by a server that has stopped in order."""
    with serving(bench.root / prefix, bucket=bench.url(prefix), **settings) as server:
        wrk.completed_s(wrk.Aim(server.port), "enqueue", "t", RESTORED, HUNDRED)
        ended_s = time.time()
        client = server.client()
        until(lambda: in_bucket(client))
        if prefix.endswith("packs"):
            # One that began after the last record.
            manifests = bench.objects(prefix) / "snapshots"
            until(lambda: any(path.stat().st_mtime > ended_s for path in manifests.glob("*")), 0.1)
        assert server.terminate() == 0


@part("cold")
def cold(bench: Bench) -> Iterator[Figure]:
    """First reads of records that are only in the bucket, by a server that has just started, far from each other."""
    settings = {
        "bucket": bench.url("cold"),
        "local_bytes": COLD_BYTES,
        "checkpoint_ms": 200,
        "bucket_cache_bytes": "1 MiB",
    }
    settings |= {"checkpoint_bytes": "4 MiB", "hot_retain_segments": 0, "hot_retain_bytes": 0}
    payload = {**PAYLOAD, "filler": "x" * 400}
    with serving(bench.root / "cold", **settings) as server:
        client = server.client()
        for _ in range(0, COLD_RECORDS, BATCH):
            client.append("t", *[payload] * BATCH)
        least_bytes = COLD_RECORDS * len(json.dumps(payload)) / 2

        def offloaded() -> bool:
            found = client.get("/v0/health").json["bucket"]
            return found["local_bytes"] <= COLD_BYTES and found["remote_bytes"] > least_bytes

        until(offloaded)
        assert server.terminate() == 0
    requests: list[float] = []
    took_ms: list[float] = []
    with serving(bench.root / "cold", **settings) as server:
        client = server.client()
        for from_seq in range(0, COLD_RECORDS * 3 // 4, COLD_RECORDS * 3 // 4 // COLD_READS):
            before = metric(client, "topics_bucket_range_requests_total")
            began_s = time.perf_counter()
            assert len(client.diff("t", from_seq=from_seq, limit=1)["records"]) == 1
            took_ms.append(1000 * (time.perf_counter() - began_s))
            requests.append(metric(client, "topics_bucket_range_requests_total") - before)
    shown = f"at most {max(requests):.0f}, {number(statistics.median(took_ms))} ms"
    yield Figure(f"requests for the first read of a cold record, {len(requests)} reads", "2", shown)


# --- what it costs while nothing happens ---


@part("idle")
def idle(bench: Bench) -> Iterator[Figure]:
    """Requests to the bucket, counted on the way there."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(counting_proxy(bench.s3.port)) for _ in range(3)]

        def start(number_of_proxy: int, name: str, prefix: str, *arguments: str, **settings: object) -> ServerProcess:
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxies[number_of_proxy].port}"
            settings |= {"bucket": bench.url(prefix), "checkpoint_ms": 1_000}
            return stack.enter_context(serving(bench.root / name, *arguments, **settings))

        try:
            primary = start(0, "idle-primary", "idle")
            start(1, "idle-standby", "idle", "--standby")
            alone = start(2, "idle-alone", "idle-alone", bucket_takeover="off")
        finally:
            os.environ.update(bench.s3.environ)
        for server, prefix in ((primary, "idle"), (alone, "idle-alone")):
            server.client().append("t", 1)
            # The snapshot with it is the last that follows the last write.
            manifests = bench.objects(prefix) / "snapshots"
            until(lambda manifests=manifests: any(manifests.glob("*")))
        time.sleep(5)
        before = [proxy.total for proxy in proxies]
        time.sleep(IDLE_S)
        names = (("primary", "1,500"), ("standby", "1,500"), ("`TOPICS_BUCKET_TAKEOVER=off`", "100"))
        for (name, wanted), proxy, total in zip(names, proxies, before, strict=True):
            count = proxy.total - total
            shown = f"{count * 3600 / IDLE_S:,.0f} ({count} in {IDLE_S:.0f} s)"
            yield Figure(f"requests in an idle hour, {name}", wanted, shown)


def main() -> None:
    wanted = os.environ.get("BUCKET", "").split(",")
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| | wanted | measured |\n| --- | --- | --- |", flush=True)
    with on_disk() as root, s3_server(root / "s3") as s3:
        os.environ.update(s3.environ)
        for name, measure in PARTS.items():
            if any(word in name for word in wanted):
                for figure in measure(Bench(root, s3)):
                    print(f"| {' | '.join(figure)} |", flush=True)
    print(f"\nload average {os.getloadavg()[0]:.1f}")
