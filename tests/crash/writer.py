"""A process that writes until it is killed: says what it begins, and what was acknowledged, one JSON line each.

Started by test_kill.py as `python -m tests.crash.writer <directory> <generation> <appends to repeat as JSON>`.
Its first line is everything that it found.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import topics
from topics.model.settings import Settings

HOUR_MS = 3_600_000
SETTINGS = Settings(
    segment_max_events=20,
    hot_retain_segments=1,
    hot_retain_bytes=20_000,
    wal_file_bytes=32_768,
    checkpoint_bytes=20_000,
    checkpoint_ms=50,
)
CONFIGS: dict[str, dict[str, Any]] = {
    "disk": {"durability": "disk"},
    "fsync": {"durability": "fsync"},
    "memory": {"durability": "memory"},
    "capped": {"durability": "disk", "cap_records": 30},
    "ephemeral": {"durability": "ephemeral"},
}
DELETING = ("disk", "fsync")


def say(**line: Any) -> None:
    """One write per line, so that lines of several threads never mix and a kill cuts at most the last one."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def found(db: topics.Database) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for state in db.topics():
        records: list[tuple[int, str, str | None]] = []
        cursor = 0
        while True:
            diff = db.diff(state.topic, cursor, limit=1000, include_tags=True)
            records += [(record.seq, record.data, record.tag) for record in diff.records]
            cursor = diff.next_from_seq
            if diff.caught_up:
                break
        states[state.topic] = {"head": state.head_seq, "count": state.count, "records": records}
    return states


def append(db: topics.Database, topic: str, key: str, batch: list[tuple[str, str | None]]) -> None:
    say(kind="append", topic=topic, key=key, batch=batch)
    records = [topics.Outgoing(value, tag) for value, tag in batch]
    done = db.append_many(topic, records, idempotency_key=key)
    say(kind="appended", topic=topic, first=done.first_seq, last=done.last_seq, deduped=done.deduped)


def delete(db: topics.Database, topic: str, before: int, match: Any) -> None:
    say(kind="delete", topic=topic, before=before, match=match)
    died = db.delete(topic, before_seq=before, match=match)
    say(kind="deleted", topic=topic, died=died)


def write(db: topics.Database, topic: str, generation: int, repeated: list[Any]) -> None:
    rng = random.Random(f"{topic} {generation}")
    for earlier in repeated:
        append(db, topic, earlier["key"], [(value, tag) for value, tag in earlier["batch"]])
    number = 0
    while True:
        number += 1
        batch: list[tuple[str, str | None]] = []
        for index in range(rng.choice((1, 1, 3, 8))):
            value = f"{generation}.{number}.{index} " + "x" * rng.choice((0, 10, 200))
            batch.append((value, rng.choice((None, "t1", "t2:a", "t2:b"))))
        append(db, topic, f"{generation}.{number}", batch)
        if topic in DELETING and number % 5 == 0:
            head = db.state(topic).head_seq
            match = rng.choice((None, "t1", ["tag", "Glob", "t2:*"]))
            delete(db, topic, max(1, head - (100 if match is None else rng.randint(0, 40))), match)


def main() -> None:
    path, generation, repeated = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    db = topics.open(path, SETTINGS)
    for name, config in CONFIGS.items():
        # Keys are repeated in later lives, which may come late on a busy machine.
        db.configure(name, idempotency_window_ms=HOUR_MS, **config)
    say(kind="found", topics=found(db))
    threads = [
        threading.Thread(target=write, args=(db, name, generation, repeated.get(name, [])), daemon=True)
        for name in CONFIGS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
