"""`topics top`: a running server at a glance, again and again: rates, topics, queues, lags, slow calls."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from topics.cli.connection import takes_client
from topics.cli.spans import shown_bytes

if TYPE_CHECKING:
    from topics.client import Client

ROWS_MAX = 15
SLOW_MAX = 5
LOG_LINES = 200
RATES = (
    ("requests", "topics_requests_total"),
    ("records in", "topics_records_appended_total"),
    ("records out", "topics_records_read_total"),
    ("log bytes", "topics_wal_bytes_written_total"),
    ("syncs", "topics_wal_fsyncs_total"),
)


class Sample(NamedTuple):
    """The metrics at one moment: plain ones, and those per topic."""

    at_s: float
    values: Mapping[str, float]
    by_topic: Mapping[str, Mapping[str, float]]


@takes_client
def top(
    client: Client,
    interval: Annotated[float, typer.Option("--interval", "-i", help="Seconds between two looks.", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look, over one interval, and end.")] = False,
) -> None:
    """Show a running server live: rates, busiest topics, queues, lags, slow calls. Ctrl-C ends it."""
    before = sample(client)
    live = sys.stdout.isatty() and not once
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(interval)
            now = sample(client)
            lines = frame(client, before, now)
            if live:
                # From the top left corner, and without what was below.
                print("\x1b[H\x1b[2J" + "\n".join(lines), end="\n", flush=True)
            else:
                print("\n".join(lines), flush=True)
            if once:
                return
            before = now


def sample(client: Client) -> Sample:
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    by_topic: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(client.metrics()):
        for name, labels, value, *_ in family.samples:
            if not labels:
                values[name] = value
            elif "topic" in labels:
                by_topic.setdefault(labels["topic"], {})[name] = value
    return Sample(time.monotonic(), values, by_topic)


def frame(client: Client, before: Sample, now: Sample) -> list[str]:
    """The lines of one look."""
    overview = client.overview()
    lines = [head(client.url, now), rates(before, now), ""]
    lines += topics(before, now)
    lines += queues(now, overview)
    if overview["attention"]:
        lines += ["", "NEEDS ATTENTION"]
        lines += [f"  {finding['severity']}: {finding['text']}" for finding in overview["attention"][:ROWS_MAX]]
    slow = slow_calls(client)
    return [*lines, "", "SLOW", *slow] if slow else lines


def head(url: str, now: Sample) -> str:
    value = now.values.get
    up_s = int(value("topics_uptime_seconds", 0))
    state = "ready" if value("topics_ready") else "NOT READY"
    memory, free = (shown_bytes(int(value(name, 0))) for name in ("topics_memory_bytes", "topics_disk_free_bytes"))
    longest_ms = 1000 * value("topics_loop_longest_turn_seconds", 0)
    return (
        f"{url}  {state}  up {up_s // 3600}:{up_s // 60 % 60:02}:{up_s % 60:02}  memory {memory}  disk free {free}  "
        f"connections {value('topics_connections', 0):.0f}  streams {value('topics_sse_connections', 0):.0f}  "
        f"longest turn {longest_ms:.0f} ms"
    )


def rates(before: Sample, now: Sample) -> str:
    span_s = now.at_s - before.at_s
    shown = [
        f"{name} {max(0.0, now.values.get(metric, 0) - before.values.get(metric, 0)) / span_s:,.0f}"
        for name, metric in RATES
    ]
    return "per second: " + "  ".join(shown)


def topics(before: Sample, now: Sample) -> list[str]:
    """The busiest first, then the largest."""
    span_s = now.at_s - before.at_s
    rows: list[tuple[float, float, str, float]] = []
    for name, values in now.by_topic.items():
        head_seq = values.get("topics_topic_head_seq", 0)
        earlier = before.by_topic.get(name, {}).get("topics_topic_head_seq", head_seq)
        size = values.get("topics_topic_bytes_live", 0)
        rows.append(((head_seq - earlier) / span_s, size, name, values.get("topics_topic_records_live", 0)))
    rows.sort(key=lambda row: row[:2], reverse=True)
    cells = [(name, f"{rate:,.0f}", f"{count:,.0f}", shown_bytes(int(size))) for rate, size, name, count in rows]
    return aligned(("TOPIC", "IN/S", "RECORDS", "BYTES"), cells[:ROWS_MAX])


def queues(now: Sample, overview: Mapping[str, object]) -> list[str]:
    found = [
        (name, values["topics_topic_queue_ready"], values.get("topics_topic_queue_in_flight", 0))
        for name, values in now.by_topic.items()
        if "topics_topic_queue_ready" in values
    ]
    if not found:
        return []
    found.sort(key=lambda row: row[1:], reverse=True)
    rows = [(name, f"{ready:,.0f}", f"{leased:,.0f}") for name, ready, leased in found[:ROWS_MAX]]
    counts = (("ready", "ready"), ("in_flight", "leased"), ("delayed", "delayed"), ("dead", "dead"))
    total = ", ".join([f"{overview[name]} {word}" for name, word in counts])
    return ["", f"jobs: {total}", *aligned(("QUEUE", "READY", "LEASED"), rows)]


def slow_calls(client: Client) -> list[str]:
    """The last ones in the server's log; a key that may not read it sees none."""
    from topics.client import Forbidden

    try:
        lines = client.server(log_lines=LOG_LINES)["log"]
    except Forbidden:
        return []
    slow = [line["message"] for line in lines if line["message"].startswith(("slow: ", "the loop was blocked"))]
    return [f"  {message}" for message in slow[-SLOW_MAX:]]


def aligned(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns: the first to the left, the others to the right."""
    widths = [max(len(row[place]) for row in [names, *rows]) for place in range(len(names))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [names, *rows]
    ]
