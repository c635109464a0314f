"""`topics bench`: the speed of a server, measured by some connections of this client on a temporary topic."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from topics.cli.bench_load import PAGE_RECORDS, Load, measure
from topics.cli.connection import Access, takes_access
from topics.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from topics.client import Client

MIB = 1 << 20
PROCESSES_DEFAULT = 2


class Figure(NamedTuple):
    """The measurements of one kind of request."""

    what: str
    requests_per_s: float
    records_per_s: float
    mib_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@takes_access
def bench(
    access: Access,
    seconds: Annotated[float, typer.Option(help="How long to measure each kind of request.", min=0.1, max=600)] = 2.0,
    connections: Annotated[int, typer.Option("--connections", "-c", help="Number of clients.", min=1, max=64)] = 4,
    processes: Annotated[
        int, typer.Option("--processes", "-p", help="Processes that share the connections.", min=1, max=64)
    ] = PROCESSES_DEFAULT,
    size: Annotated[int, typer.Option(help="Bytes per payload.", min=2, max=MIB)] = 200,
    batch: Annotated[int, typer.Option(help="Records per batch.", min=1, max=10_000)] = 100,
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync", "replicated"], typer.Option(help="The durability of the topic.")
    ] = "disk",
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="The output format.")] = "text",
) -> None:
    """Measure a server with a short load on a temporary topic, which is removed afterwards.

    The load comes from this client, in several processes: it shows what Python programs get, not the server's limit.
    """
    topic = f"bench-{secrets.token_hex(4)}"
    processes = min(processes, connections)
    kinds = [("append 1", 1), (f"append {batch}", batch), (f"diff {PAGE_RECORDS}", 0)]
    rows: list[Figure] = []
    with access.open(retries_max=0) as client:
        client.create(topic, durability=durability)
        try:
            shared = f"{connections} connections" if connections > 1 else "1 connection"
            shared += f" of {processes} processes" if processes > 1 else ""
            say(f"{client.url}, {shared}, {size} bytes per record, {durability}, {seconds:g} s each")
            say("these figures show what Python programs get; the server itself can do more, see docs/BENCHMARKS.md")
            for what, records in kinds:
                load = Load(access, topic, records, size, connections, seconds)
                rows.append(_figure(what, load, processes))
            rows.append(_export(client, topic, size))
        finally:
            client.drop(topic)
    _print(rows, output)


def _figure(what: str, load: Load, processes: int) -> Figure:
    took_s, records, taken_us = measure(load, processes)
    rates = (len(taken_us) / took_s, records / took_s, records * load.size / took_s / MIB)
    return Figure(what, *rates, *_percentiles_ms([taken / 1e6 for taken in taken_us]))


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
