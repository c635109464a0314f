"""The server's own past: a point every 5 s for an hour, of what is counted anyway. No walk over topics, no scrape."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from topics.api.console.queue_history import QueueHistory
from topics.api.metrics import Usage, disk_bytes, memory_bytes

if TYPE_CHECKING:
    from topics.engine.opening.store import Store

STEP_MS = 5_000
POINTS_MAX = 720

SERIES: Final[Mapping[str, str]] = {
    "records_in_per_s": "Records appended a second, copies of routers included.",
    "records_out_per_s": "Records given to readers, followers, workers and consumers a second.",
    "requests_per_s": "Requests a second.",
    "handler_ms": "Mean time that a request held the loop, in ms.",
    "sync_ms": "Mean duration of a sync of the log, in ms; 0 without syncs.",
    "loop_lag_ms": "The latest that the loop was in this time, in ms.",
    "log_bytes_per_s": "Bytes written to the log a second.",
    "records": "Live records.",
    "bytes": "Bytes of live records.",
    "memory_bytes": "Memory of the process.",
    "disk_free_bytes": "Free bytes where the data directory is.",
    "live_readers": "Streams and WebSockets that are open.",
    "connections": "Connections that are open.",
    "jobs_ready": "Jobs that wait to be claimed, in the queues whose past is kept.",
    "jobs_in_flight": "Jobs that workers hold, in those queues.",
    "jobs_waiting_ms": "How long the job that is next has waited, in the queue where that is longest, in ms.",
}


class Totals:
    """What only grows, at one moment."""

    __slots__ = ("handled", "handled_s", "log_bytes", "records_in", "records_out", "sync_us", "syncs")

    def __init__(self, store: Store, usage: Usage) -> None:
        self.handled, self.handled_s = usage.listener.handled if usage.listener is not None else (0, 0.0)
        self.records_in, self.records_out = store.state.appended_total, store.state.read_total
        stats = store.wal.stats
        self.log_bytes, self.syncs, self.sync_us = stats.bytes_written_total, stats.fsyncs_total, stats.fsync_us.sum_us


class History:
    """Points as rows, oldest first; a row is the time and a value for each of SERIES."""

    def __init__(self, store: Store, usage: Usage, data_dir: str, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._usage = usage
        self._data_dir = data_dir
        self._now_ms = now_ms
        self.queues = QueueHistory(store, now_ms)
        self.rows: deque[tuple[float, ...]] = deque(maxlen=POINTS_MAX)
        self._before: Totals | None = None
        self._since_s = 0.0
        self._lag_ms = 0.0

    def note(self, lag_ms: float, now_s: float) -> None:
        """Called many times a second with how late the loop was; now and then that makes a point."""
        if lag_ms > self._lag_ms:
            self._lag_ms = lag_ms
        if now_s - self._since_s >= STEP_MS / 1000 and self._store.ready:
            self.queues.note(now_s)
            self._add(now_s)

    def _add(self, now_s: float) -> None:
        now, before = Totals(self._store, self._usage), self._before
        if before is not None:
            self.rows.append((self._now_ms(), *self._values(before, now, now_s - self._since_s)))
        self._before, self._since_s, self._lag_ms = now, now_s, 0.0

    def _values(self, before: Totals, now: Totals, span_s: float) -> tuple[float, ...]:
        state, usage = self._store.state, self._usage
        handled, syncs = now.handled - before.handled, now.syncs - before.syncs
        return (
            round((now.records_in - before.records_in) / span_s, 2),
            round((now.records_out - before.records_out) / span_s, 2),
            round(handled / span_s, 2),
            round(1000 * (now.handled_s - before.handled_s) / handled, 3) if handled else 0,
            round((now.sync_us - before.sync_us) / 1000 / syncs, 3) if syncs else 0,
            round(self._lag_ms, 1),
            round((now.log_bytes - before.log_bytes) / span_s),
            state.count,
            state.bytes,
            memory_bytes(),
            disk_bytes(self._data_dir)[1],
            usage.sse_connections,
            usage.listener.connections_open if usage.listener is not None else 0,
            *self.queues.latest(),
        )
