"""`topics bench`: how fast a server is, seen by a few connections of this client on a topic of their own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from topics.cli.connection import Access, takes_access
from topics.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from topics.client import Client

PAGE_RECORDS = 1_000
MIB = 1 << 20


class Figure(NamedTuple):
    """What one kind of request has shown."""

    what: str
    requests_per_s: float
    records_per_s: float
    mib_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


# Does one request; tells how many records and bytes of payload it moved.
Request = Callable[["Client"], tuple[int, int]]


@takes_access
def bench(
    access: Access,
    seconds: Annotated[float, typer.Option(help="How long to measure each kind of request.", min=0.1, max=600)] = 2.0,
    connections: Annotated[int, typer.Option("--connections", "-c", help="Clients at a time.", min=1, max=64)] = 4,
    size: Annotated[int, typer.Option(help="Bytes of one payload.", min=2, max=MIB)] = 200,
    batch: Annotated[int, typer.Option(help="Records in one batch.", min=1, max=10_000)] = 100,
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync"], typer.Option(help="The class of the topic.")
    ] = "disk",
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="How to print it.")] = "text",
) -> None:
    """Measure a server with a quick load on a topic of its own, which is removed afterwards.

    The load is this client's, in one process: it shows what a Python program gets, not the most that a server can do.
    """
    topic = f"bench-{secrets.token_hex(4)}"
    payload = b'"' + b"x" * (size - 2) + b'"'
    one = b'[{"data":%b}]' % payload
    many = b"[" + b",".join([b'{"data":%b}' % payload] * batch) + b"]"

    # Never made again by a request that was under way when the bench was interrupted and the topic removed.
    def append_one(client: Client) -> tuple[int, int]:
        client.append_many(topic, one, create=False)
        return 1, size

    def append_many(client: Client) -> tuple[int, int]:
        client.append_many(topic, many, create=False)
        return batch, batch * size

    def read(client: Client) -> tuple[int, int]:
        count = len(client.diff(topic, limit=PAGE_RECORDS).records)
        return count, count * size

    kinds: list[tuple[str, Request]] = [
        ("append 1", append_one),
        (f"append {batch}", append_many),
        (f"diff {PAGE_RECORDS}", read),
    ]
    rows: list[Figure] = []
    with access.open(retries_max=0) as client:
        client.create(topic, durability=durability)
        try:
            say(f"{client.url}, {connections} connections, {size} bytes a record, {durability}, {seconds:g} s each")
            say("this is what one Python program gets from it; the server itself can do more, see docs/BENCHMARKS.md")
            for what, request in kinds:
                rows.append(_measure(access, what, request, connections, seconds))
            rows.append(_export(client, topic, size))
        finally:
            client.drop(topic)
    _print(rows, output)


def _measure(access: Access, what: str, request: Request, connections: int, seconds: float) -> Figure:
    """The same request on every connection until time is up."""
    taken_s: list[float] = []
    moved: list[tuple[int, int]] = []
    errors: list[Exception] = []
    start = threading.Barrier(connections + 1)

    def load() -> None:
        with access.open(retries_max=0) as client:
            try:
                request(client)
            except Exception as error:  # noqa: BLE001 - raised by the thread that waits for the others
                errors.append(error)
            start.wait()
            end_s = time.perf_counter() + seconds
            while not errors and (begun_s := time.perf_counter()) < end_s:
                try:
                    moved.append(request(client))
                except Exception as error:  # noqa: BLE001
                    errors.append(error)
                    return
                taken_s.append(time.perf_counter() - begun_s)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    start.wait()
    begun_s = time.perf_counter()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - begun_s
    if errors:
        raise errors[0]
    records, size = sum(count for count, _ in moved), sum(count for _, count in moved)
    return Figure(what, len(moved) / took_s, records / took_s, size / took_s / MIB, *_percentiles_ms(taken_s))


def _export(client: Client, topic: str, size: int) -> Figure:
    begun_s = time.perf_counter()
    with client.export(topic) as chunks:
        for _ in chunks:
            pass
    took_s = time.perf_counter() - begun_s
    records = chunks.end.records if chunks.end is not None else 0
    return Figure(*("export", 1 / took_s, records / took_s, records * size / took_s / MIB), *_percentiles_ms([took_s]))


def _percentiles_ms(taken_s: list[float]) -> tuple[float, float, float, float]:
    ordered = sorted(taken_s)
    return tuple(  # pyright: ignore[reportReturnType]
        1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95, 0.99, 1.0)
    )


def _print(rows: list[Figure], output: str) -> None:
    if output == "json":
        for row in rows:
            facts: dict[str, Any] = row._asdict()
            print_json({name: value if isinstance(value, str) else round(value, 3) for name, value in facts.items()})
        return
    head = ("what", "requests/s", "records/s", "MiB/s", "p50 ms", "p95 ms", "p99 ms", "max ms")
    shown = [
        (
            *(row.what, f"{row.requests_per_s:.0f}", f"{row.records_per_s:.0f}", f"{row.mib_per_s:.1f}"),
            *(f"{value:.2f}" for value in row[4:]),
        )
        for row in rows
    ]
    print_table(head, shown)
