"""Everything at once: 200,000 events with duplicates, late ones and garbage through three pipelines, and kill -9.

The runner is killed twice and the server once, each while events arrive. What comes out must be what a few lines of
plain Python make of the events that were acknowledged.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.serving import ServerProcess, free_port
from tests.spark.runner_process import RunnerProcess, until
from topics.client import Client, Record, TopicNotFound
from topics_spark.pipelines import tables

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(4500)]

EVENTS = 200_000
SHARES = 4
BATCH_RECORDS = 1_000
KEYS = 20
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=10)
LATE_S_MAX = 50
FAR_LATE = 2_000
GARBAGE = ("nonsense", 42, None, [1, 2], {"at": "yesterday"}, {"id": [], "key": {}}, True)
WAIT_S_MAX = 1200.0

SCHEMA = "id STRING, at TIMESTAMP, key STRING, ms BIGINT"
SOURCE = {"events": {"topic": "events", "schema": SCHEMA}}
PIPELINES: dict[str, dict[str, Any]] = {
    "archive": {
        "sources": {"events": {"topic": "events"}},
        "use": "archive",
        "sink": {"table": "events"},
        "trigger": {"every": "2 seconds"},
    },
    "aggregate": {
        "sources": SOURCE,
        "use": "aggregate",
        "options": {"window": "1 minute", "time": "at", "late": "1 minute", "key": ["key"], "sum": ["ms"]},
        "sink": {"topic": "windows"},
    },
    "dedupe": {"sources": SOURCE, "use": "dedupe", "options": {"key": ["id"]}, "sink": {"topic": "unique"}},
}


def event(number: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    moment = at.isoformat(timespec="milliseconds")
    return {"id": f"e{number}", "at": moment, "key": f"k{chance.randrange(KEYS)}", "ms": chance.randrange(1000)}


def events(count: int) -> Iterator[Any]:
    """A fixed play of chance. No event is later than the pipeline waits for, by whatever batches it comes."""
    chance = random.Random(11)
    recent: list[dict[str, Any]] = []
    for number in range(count):
        at = BEGIN + number * STEP
        match chance.random():
            case share if share < 0.05 and recent:
                yield chance.choice(recent)
            case share if share < 0.07:
                yield chance.choice(GARBAGE)
            case share if share < 0.12:
                yield event(number, at - timedelta(seconds=chance.uniform(0, LATE_S_MAX)), chance)
            case _:
                recent.append(event(number, at, chance))
                yield recent[-1]
        del recent[:-100]


def far_late_events() -> Iterator[Any]:
    """For a window that is long over."""
    chance = random.Random(12)
    return (event(EVENTS + number, BEGIN + timedelta(seconds=30), chance) for number in range(FAR_LATE))


class Producer:
    """Appends batch by batch, and again until it is answered; `acknowledged` is what was."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches = 0
        self.acknowledged: list[Any] = []

    def write(self, wanted: list[Any]) -> None:
        for first in range(0, len(wanted), BATCH_RECORDS):
            batch = wanted[first : first + BATCH_RECORDS]
            body = json.dumps([{"data": each} for each in batch]).encode()
            self._batches += 1
            self._client.append_many("events", body, idempotency_key=f"batch-{self._batches}")
            self.acknowledged += batch

    def writing(self, wanted: list[Any]) -> threading.Thread:
        thread = threading.Thread(target=self.write, args=(wanted,), daemon=True)
        thread.start()
        return thread

    def reach(self, count: int) -> None:
        until(lambda: len(self.acknowledged) >= count, lambda: f"{len(self.acknowledged)} acknowledged")


class World:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.server = self._serve()
        self.client = Client(f"http://127.0.0.1:{self.port}", retries_max=1_000_000, retry_s_max=WAIT_S_MAX)
        self.runners: list[RunnerProcess] = []

    def _serve(self) -> ServerProcess:
        return ServerProcess(self.home / "data", port=self.port).ready()

    def run(self) -> None:
        """A new runner, of another name than those before."""
        self.runners.append(RunnerProcess(self.port, self.home, name=f"runner-{len(self.runners)}"))

    def kill_runner(self) -> None:
        self.runners[-1].kill()

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self._serve()

    def wait(self, true: Callable[[], Any]) -> None:
        until(true, lambda: "\n".join(runner.log for runner in self.runners)[-8000:], WAIT_S_MAX)

    def archived_rows(self) -> int:
        return sum(file.rows for file in tables.load(self.home / "tables" / "events").files)

    def head_seq(self, topic: str) -> int:
        try:
            return self.client.state(topic, touch=False).head_seq
        except TopicNotFound:
            return 0

    def data(self, topic: str) -> list[Any]:
        return [record.data for record in self.client.read(topic) if isinstance(record, Record)]

    def close(self) -> None:
        for runner in self.runners:
            runner.kill()
        self.client.close()
        self.server.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    try:
        yield world
    finally:
        world.close()


def test_what_comes_out_is_what_was_acknowledged(world: World) -> None:
    for name, definition in PIPELINES.items():
        world.client.put_pipeline(name, definition)
    all_events = list(events(EVENTS - FAR_LATE))
    size = len(all_events) // SHARES
    shares = [all_events[number * size : (number + 1) * size] for number in range(SHARES - 1)]
    shares.append(all_events[(SHARES - 1) * size :])
    producer = Producer(world.client)

    world.run()
    producer.write(shares[0])
    world.wait(lambda: world.archived_rows() and world.head_seq("unique") and world.head_seq("windows"))
    writing = producer.writing(shares[1])
    producer.reach(size + size // 10)
    world.kill_runner()
    world.run()
    writing.join()
    world.wait(lambda: world.archived_rows() > size)

    writing = producer.writing(shares[2])
    producer.reach(2 * size + size // 10)
    world.kill_server()
    writing.join()
    world.wait(lambda: world.archived_rows() > 2 * size)

    writing = producer.writing(shares[3])
    producer.reach(3 * size + size // 10)
    world.kill_runner()
    world.run()
    writing.join()

    world.wait(lambda: windows_of(world).keys() >= {(f"00:{minute:02}", "k0") for minute in range(20)})
    producer.write(list(far_late_events()))
    world.wait(lambda: world.archived_rows() == EVENTS)
    # Two moments of the next day: the second one finds the watermark after all windows.
    counted = dict(producer_windows(all_events))
    producer.write([event(EVENTS + FAR_LATE, BEGIN + timedelta(days=1), random.Random(1))])
    unique = ids_of(producer.acknowledged)
    world.wait(
        lambda: (
            world.archived_rows() == EVENTS + 1
            and len(windows_of(world)) >= len(counted)
            and world.head_seq("unique") >= len(unique)
        )
    )
    assert world.runners[-1].terminate() == 0

    assert world.data("events") == producer.acknowledged
    assert archived(world) == list(enumerate(producer.acknowledged, 1))
    assert windows_of(world) == counted
    assert Counter(ids_of_rows(world.data("unique"))) == Counter(unique)


def producer_windows(wanted: list[Any]) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """Count and sum for each minute and key, of everything that is an event and not from another day."""
    counts: Counter[tuple[str, str]] = Counter()
    sums: Counter[tuple[str, str]] = Counter()
    for each in wanted:
        if isinstance(each, dict) and "ms" in each:
            slot = each["at"][11:16], each["key"]
            counts[slot] += 1
            sums[slot] += each["ms"]
    return ((slot, (counts[slot], sums[slot])) for slot in counts)


def windows_of(world: World) -> dict[tuple[str, str], tuple[int, int]]:
    """A window that came twice would be a mistake as well."""
    rows = world.data("windows") if world.head_seq("windows") else []
    found = {(row["window_start"][11:16], row["key"]): (row["count"], row["sum_ms"]) for row in rows}
    assert len(found) == len(rows)
    return found


def ids_of(wanted: list[Any]) -> set[str | None]:
    """Rows without an id count as one; an id that is not a string is used as its JSON text."""
    ids = (each.get("id") if isinstance(each, dict) else None for each in wanted)
    return {json.dumps(found) if isinstance(found, list) else found for found in ids}


def ids_of_rows(rows: list[Any]) -> list[str | None]:
    return [row.get("id") if isinstance(row, dict) else None for row in rows]


def archived(world: World) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    for path in tables.files(world.home / "tables" / "events"):
        rows = pyarrow.parquet.ParquetFile(path).read(["seq", "data"])
        found += zip(rows["seq"].to_pylist(), map(json.loads, rows["data"].to_pylist()), strict=True)
    return sorted(found, key=lambda row: row[0])
