"""Records of a topic as they arrive, in one table of a notebook."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from topics.client import Client, Record
from topics_spark.notebooks.results import html_table, needed

# How long the newest table may be out of date if nothing arrives, and an interrupt may have to wait.
WAIT_MS: Final = 1_000
ROWS_MAX: Final = 1_000
COLUMNS: Final = ("seq", "ts", "tag", "data")


def live(
    topic: str,
    *,
    from_seq: int | None = None,
    rows: int = 10,
    records: int | None = None,
    seconds: float | None = None,
    url: str | None = None,
) -> int:
    """Show the newest rows of a topic and keep the table current; how many records arrived meanwhile.

    New are records after `from_seq`, by default after the head at the start. It ends after this number of new records
    or of seconds, or with the kernel's interrupt.
    """
    display: Any = needed("IPython.display")
    newest: deque[Record] = deque(maxlen=max(1, min(rows, ROWS_MAX)))
    arrived = 0
    ends_s = None if seconds is None else time.monotonic() + seconds
    with Client(url) as client:
        known_seq = client.state(topic).head_seq if from_seq is None else from_seq
        next_seq = max(0, known_seq - rows)
        handle = display.display(display.HTML(_shown(topic, newest, arrived)), display_id=True)
        try:
            while (records is None or arrived < records) and (ends_s is None or time.monotonic() < ends_s):
                page = client.diff(topic, next_seq, wait_ms=_wait_ms(ends_s))
                newest.extend(page.records)
                arrived += sum(record.seq > known_seq for record in page.records)
                next_seq = page.next_from_seq
                if page.records:
                    handle.update(display.HTML(_shown(topic, newest, arrived)))
        except KeyboardInterrupt:
            # This is how a table without an end is stopped.
            pass
    return arrived


def _wait_ms(ends_s: float | None) -> int:
    return WAIT_MS if ends_s is None else max(0, min(WAIT_MS, int(1000 * (ends_s - time.monotonic()))))


def _shown(topic: str, newest: deque[Record], arrived: int) -> str:
    found = (
        (each.seq, datetime.fromtimestamp(each.ts / 1000, UTC), each.tag, json.dumps(each.data, ensure_ascii=False))
        for each in reversed(newest)
    )
    return html_table(COLUMNS, found, f"{topic}: {arrived} new")
