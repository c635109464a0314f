"""Metrics: one set of families, shown as Prometheus text or as JSON, limited to the names a key may see."""

from __future__ import annotations

import contextlib
import os
import resource
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.lifecycle import Lifecycle
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.engine.core.waiting.runner import Steps
from topics.engine.log.topic import Topic
from topics.engine.opening.standby import Standby
from topics.engine.opening.store import Store
from topics.engine.queues.part import queue_of
from topics.engine.routers.fold import Routes
from topics.engine.webhooks.verbs import WebhookState
from topics.http.listener import Listener
from topics.http.loop.watchdog import Watchdog
from topics.model.errors import WebhookNotFound
from topics.storage.bucket.shipping import Shipping
from topics.storage.stats import LatencyHistogram, WalStats

PROMETHEUS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX = 1_000
TOPICS_PER_TURN = 2_000
CLASSES = ("ephemeral", "memory", "disk", "fsync", "replicated")
PAGE_BYTES = resource.getpagesize()


class Family(NamedTuple):
    """What Prometheus learns of a metric. `label` is the name of its label, if it has one, or two with a comma."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    label: str = ""


# Every metric. The dashboard and the alerts in deploy/ are made from these names (tools/deploy_files.py).
FAMILIES: Final[Mapping[str, Family]] = {
    "topics_ready": Family("gauge", "1 if requests are accepted."),
    "topics_recovery_progress": Family("gauge", "Part of the log that is replayed, 0 to 1."),
    "topics_uptime_ms": Family("gauge", "Time since the start in ms."),
    "topics_uptime_seconds": Family("gauge", "Time since the start in s."),
    "topics_cpu_seconds": Family("counter", "Processor time of the process, all threads."),
    "topics_memory_bytes": Family("gauge", "Memory of the process."),
    "topics_disk_bytes": Family("gauge", "Size of the file system of the data directory."),
    "topics_disk_free_bytes": Family("gauge", "Free bytes of the file system of the data directory."),
    "topics_routers": Family("gauge", "Number of routers."),
    "topics_sse_connections": Family("gauge", "Open streams and WebSockets."),
    "topics_watch_sessions": Family("gauge", "Number of watch sessions."),
    "topics_connections": Family("gauge", "Open connections."),
    "topics_connections_max": Family("gauge", "Limit of open connections."),
    "topics_connections_refused": Family("counter", "Connections refused at the limit of open connections."),
    "topics_requests": Family("counter", "Requests handled."),
    "topics_request_seconds": Family("counter", "Time that requests held the loop."),
    "topics_tls_certificate_expiry_seconds": Family(
        "gauge", "When the certificate expires, in s since 1970; 0 without TLS."
    ),
    "topics_tls_handshakes": Family("counter", "TLS handshakes that succeeded."),
    "topics_tls_handshake_failures": Family("counter", "TLS handshakes that failed."),
    "topics_loop_longest_turn_seconds": Family("gauge", "Longest turn of the loop in the last minutes."),
    "topics_loop_slow_turns": Family("counter", "Turns of the loop above 100 ms."),
    "topics_topics": Family("gauge", "Number of topics."),
    "topics_topics_by_class": Family("gauge", "Topics by durability class.", "class"),
    "topics_records_appended": Family("counter", "Records appended since the start, copies of routers included."),
    "topics_records_read": Family("counter", "Records given to readers, followers, workers and consumers."),
    "topics_records_live": Family("gauge", "Live records of all topics."),
    "topics_bytes_live": Family("gauge", "Bytes of live records of all topics."),
    "topics_queue_topics": Family("gauge", "Topics that are queues."),
    "topics_queue_leases_in_flight": Family("gauge", "Jobs that are leased."),
    "topics_queue_jobs_ready": Family("gauge", "Jobs ready to be claimed."),
    "topics_queue_jobs_delayed": Family("gauge", "Jobs that are delayed until a later time."),
    # Not a counter: the count of a queue is removed with the queue.
    "topics_queue_dead_lettered_total": Family(
        "gauge", "Jobs that the existing queues have moved to dead-letter topics."
    ),
    "topics_topic_head_seq": Family("gauge", "Highest assigned seq per topic.", "topic"),
    "topics_topic_earliest_seq": Family("gauge", "First live seq per topic.", "topic"),
    "topics_topic_records_live": Family("gauge", "Live records per topic.", "topic"),
    "topics_topic_bytes_live": Family("gauge", "Bytes of live records per topic.", "topic"),
    "topics_topic_queue_ready": Family("gauge", "Jobs ready to be claimed per queue.", "topic"),
    "topics_topic_queue_in_flight": Family("gauge", "Leased jobs per queue.", "topic"),
    "topics_topic_metrics_truncated": Family("gauge", "1 if there are more topics than are listed."),
    "topics_pipeline_up": Family("gauge", "1 if a runner recently reported that it runs.", "pipeline"),
    "topics_pipeline_lag": Family("gauge", "Unprocessed records per pipeline.", "pipeline"),
    "topics_pipeline_topic_lag": Family("gauge", "Unprocessed records per pipeline and topic.", "pipeline,topic"),
    "topics_pipeline_oldest_unread_age_seconds": Family(
        "gauge", "Age of the oldest unprocessed record per pipeline, 0 if there is none.", "pipeline"
    ),
    "topics_pipeline_late_rows": Family("counter", "Rows dropped as late, by the runner that has it now.", "pipeline"),
    "topics_pipeline_unmet_rows": Family(
        "counter", "Rows that did not meet an expectation, by the runner that has it now.", "pipeline,expectation"
    ),
    "topics_pipeline_restarts": Family("counter", "Restarts after failures, by the runner that has it.", "pipeline"),
    "topics_pipeline_rows_per_second": Family("gauge", "Rows per second per pipeline.", "pipeline"),
    "topics_webhook_delivered": Family("counter", "Records delivered per webhook.", "webhook"),
    "topics_webhook_failed": Family("counter", "Attempts that failed per webhook.", "webhook"),
    "topics_webhook_dead": Family("counter", "Records given up per webhook.", "webhook"),
    "topics_webhook_lag": Family("gauge", "Records that are not delivered per webhook.", "webhook"),
    "topics_webhook_paused": Family("gauge", "1 if the webhook is paused.", "webhook"),
    "topics_bucket_up": Family("gauge", "1 if the bucket answers, 0 if it is away or there is none."),
    "topics_bucket_lag_seconds": Family("gauge", "Age of the oldest synced byte of the log that is not in the bucket."),
    "topics_bucket_lag_bytes": Family("gauge", "Bytes of the log that are not in the bucket."),
    "topics_bucket_pieces": Family("counter", "Pieces of the log sent to the bucket."),
    "topics_bucket_bytes": Family("counter", "Bytes of the log sent to the bucket."),
    "topics_bucket_failures": Family("counter", "Attempts that the bucket did not answer."),
    "topics_bucket_gaps": Family("counter", "Times that the copy had to go on from a snapshot."),
    "topics_standby": Family("gauge", "1 if this server is a standby, 0 if it is primary or has no bucket."),
    "topics_standby_lag_seconds": Family("gauge", "How old the state of a standby is at most, 0 if this is none."),
    "topics_wal_frames": Family("counter", "Frames written to the log."),
    "topics_wal_batches": Family("counter", "Writes to the log, each of many frames."),
    "topics_wal_fsyncs": Family("counter", "Syncs of the log."),
    "topics_wal_bytes_written": Family("counter", "Bytes written to the log."),
    "topics_wal_rotations": Family("counter", "Log files started."),
    "topics_wal_queue_depth": Family("gauge", "Changes submitted and not yet published."),
    "topics_wal_queue_depth_peak": Family("gauge", "Highest number of changes that waited."),
    "topics_wal_submit_full": Family("counter", "Writes refused because the disk could not keep up."),
    "topics_wal_read_only": Family("gauge", "1 after a failed sync."),
    "topics_wal_fsync_latency_us": Family("histogram", "Duration of a sync in µs."),
    "topics_wal_fsync_latency_seconds": Family("histogram", "Duration of a sync in s."),
}


class Usage:
    """Counts of things outside the engine's topics."""

    def __init__(self) -> None:
        self.sse_connections = 0
        self.watch_sessions = 0
        self.watchdog: Watchdog | None = None
        self.listener: Listener | None = None


class Metrics:
    def __init__(self, store: Store, lifecycle: Lifecycle, usage: Usage, data_dir: str) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._usage = usage
        self._data_dir = data_dir

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/metrics",
                handler=self.show,
                summary="Metrics: Prometheus text, or JSON if the client asks for it.",
                scopes=Scope.READ,
                replies={200: str},
                media_type="text/plain",
                other_forms={"application/json": dict[str, Any]},
                always=True,
            )
        ]

    def show(self, call: Call) -> Steps[None]:
        """The topics are counted a few at a time: there may be a hundred thousand of them."""
        totals = Totals(self._store, call.principal)
        while totals.count_some():
            yield None
        webhooks: list[WebhookState] = []
        for name in self._webhooks(call.principal):
            # One may have been dropped meanwhile.
            with contextlib.suppress(WebhookNotFound):
                webhooks.append(self._store.webhooks.look(name))
            yield None
        families = Families(self._store, self._lifecycle, self._usage, self._data_dir, call.principal, totals, webhooks)
        if b"application/json" in call.headers.get(b"accept", b"").lower():
            body: dict[str, Any] = {name: value for found in families.collect() for name, value in _as_json(found)}
            body["performance"] = performance(call)
            call.reply(200, encode(body))
            return
        registry = CollectorRegistry()
        registry.register(families)
        call.reply(200, generate_latest(registry), content_type=PROMETHEUS_TEXT)

    def _webhooks(self, principal: Principal) -> list[str]:
        """Those that the key may see, as many as are shown."""
        if not self._store.ready:
            return []
        names = (name for name in self._store.webhooks.names if name.startswith(principal.prefixes))
        return list(islice(names, TOPICS_SHOWN_MAX))


class Families(Collector):
    """One scrape, limited to one key."""

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        usage: Usage,
        data_dir: str,
        principal: Principal,
        totals: Totals,
        webhooks: Sequence[WebhookState],
    ) -> None:
        self._webhooks = webhooks
        self._store = store
        self._lifecycle = lifecycle
        self._usage = usage
        self._data_dir = data_dir
        self._principal = principal
        self._totals = totals

    def describe(self) -> list[Metric]:
        """Describes nothing in advance: a registry lives for one scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._process()
        open_store = self._store if self._store.ready else None
        yield from self._totals.families()
        yield from _per_topic(self._totals.shown, truncated=self._totals.topics > TOPICS_SHOWN_MAX)
        if open_store is not None:
            yield from _pipelines(open_store, self._principal)
        yield from _webhooks(self._webhooks)
        yield from _bucket(self._store.shipping)
        yield from _standby(self._store.standby)
        yield from _log(open_store)

    def _process(self) -> Iterator[Metric]:
        lifecycle, usage = self._lifecycle, self._usage
        ready = self._store.ready and lifecycle.serving and self._store.commit_log.read_only is None
        yield family("topics_ready", int(ready))
        yield family("topics_recovery_progress", lifecycle.progress)
        yield family("topics_uptime_ms", lifecycle.uptime_ms)
        yield family("topics_uptime_seconds", lifecycle.uptime_ms / 1000)
        yield from self._machine()
        yield family("topics_routers", self._routers())
        yield family("topics_sse_connections", usage.sse_connections)
        yield family("topics_watch_sessions", usage.watch_sessions)
        yield from self._connections()
        longest_s, slow = (usage.watchdog.longest_s, usage.watchdog.slow_turns_total) if usage.watchdog else (0.0, 0)
        yield family("topics_loop_longest_turn_seconds", longest_s)
        yield family("topics_loop_slow_turns", slow)

    def _machine(self) -> Iterator[Metric]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield family("topics_cpu_seconds", used.ru_utime + used.ru_stime)
        yield family("topics_memory_bytes", memory_bytes())
        size, free = disk_bytes(self._data_dir)
        yield family("topics_disk_bytes", size)
        yield family("topics_disk_free_bytes", free)

    def _connections(self) -> Iterator[Metric]:
        listener = self._usage.listener
        if listener is None:
            return
        yield family("topics_connections", listener.connections_open)
        yield family("topics_connections_max", listener.connections_max)
        yield family("topics_connections_refused", listener.connections_refused_total)
        handled, handled_s = listener.handled
        yield family("topics_requests", handled)
        yield family("topics_request_seconds", handled_s)
        tls = listener.tls
        yield family("topics_tls_certificate_expiry_seconds", 0 if tls is None else tls.not_after_s)
        yield family("topics_tls_handshakes", 0 if tls is None else tls.handshakes_total)
        yield family("topics_tls_handshake_failures", 0 if tls is None else tls.failures_total)

    def _routers(self) -> int:
        """The routers whose names the key may see."""
        return (
            sum(name.startswith(self._principal.prefixes) for name in self._store.state.feature(Routes).names)
            if self._store.ready
            else 0
        )


class Totals:
    """The totals of the topics that a key may see, counted in turns; the first of them are listed one by one."""

    def __init__(self, store: Store, principal: Principal) -> None:
        self._store = store
        self._left = visible(store, principal) if store.ready else iter(())
        self.shown: list[Topic] = []
        self.topics = self._records = self._bytes = self._queues = 0
        self._by_class = dict.fromkeys(CLASSES, 0)
        self._jobs = dict.fromkeys(("ready", "in_flight", "delayed", "dead_lettered"), 0)

    def count_some(self) -> bool:
        """Count the next ones; whether there are more."""
        found = list(islice(self._left, TOPICS_PER_TURN))
        self.topics += len(found)
        self.shown += found[: TOPICS_SHOWN_MAX - len(self.shown)]
        jobs = self._jobs
        for topic in found:
            self._by_class[topic.config.durability] += 1
            self._records += topic.count
            self._bytes += topic.bytes
            queue = queue_of(topic)
            if queue is not None:
                self._queues += 1
                queue.advance(self._store.engine.steady.now_ms())
                for place in jobs:
                    jobs[place] += getattr(queue, place)
        return len(found) == TOPICS_PER_TURN

    def families(self) -> Iterator[Metric]:
        jobs = self._jobs
        yield family("topics_topics", self.topics)
        by_class = labelled("topics_topics_by_class")
        for name, count in self._by_class.items():
            by_class.add_metric([name], count)
        yield by_class
        yield family("topics_queue_topics", self._queues)
        yield family("topics_queue_leases_in_flight", jobs["in_flight"])
        yield family("topics_queue_jobs_ready", jobs["ready"])
        yield family("topics_queue_jobs_delayed", jobs["delayed"])
        yield family("topics_queue_dead_lettered_total", jobs["dead_lettered"])
        yield family("topics_records_live", self._records)
        yield family("topics_bytes_live", self._bytes)


def visible(store: Store, principal: Principal) -> Iterator[Topic]:
    """The topics whose names the key may see, by name."""
    names, by_name = store.state.names, store.state.by_name
    index = 0
    # In order, prefixes either follow one another or lie within an earlier one, which has covered them already.
    for prefix in sorted(principal.prefixes):
        index = max(index, bisect_left(names, prefix))
        while index < len(names) and names[index].startswith(prefix):
            name = names[index]
            yield by_name[name]
            # Topics may have been created and deleted meanwhile.
            index = index + 1 if index < len(names) and names[index] == name else bisect_right(names, name)


def _per_topic(shown: list[Topic], *, truncated: bool) -> Iterator[Metric]:
    families = {name: labelled(name) for name, row in FAMILIES.items() if row.label == "topic"}
    for topic in shown:
        label = [topic.name]
        families["topics_topic_head_seq"].add_metric(label, topic.head_seq)
        families["topics_topic_earliest_seq"].add_metric(label, topic.earliest_seq)
        families["topics_topic_records_live"].add_metric(label, topic.count)
        families["topics_topic_bytes_live"].add_metric(label, topic.bytes)
        queue = queue_of(topic)
        if queue is not None:
            families["topics_topic_queue_ready"].add_metric(label, queue.ready)
            families["topics_topic_queue_in_flight"].add_metric(label, queue.in_flight)
    yield from families.values()
    yield family("topics_topic_metrics_truncated", int(truncated))


def _standby(standby: Standby | None) -> Iterator[Metric]:
    yield family("topics_standby", int(standby is not None))
    yield family("topics_standby_lag_seconds", standby.age_ms / 1000 if standby is not None else 0)


def _bucket(shipping: Shipping | None) -> Iterator[Metric]:
    """All of them are 0 without a bucket."""
    status = shipping.status if shipping is not None else None
    up = shipping is not None and shipping.away_since_s is None and shipping.fenced is None
    yield family("topics_bucket_up", int(up))
    yield family("topics_bucket_lag_seconds", status.lag_ms / 1000 if status is not None else 0)
    yield family("topics_bucket_lag_bytes", status.lag_bytes if status is not None else 0)
    yield family("topics_bucket_pieces", shipping.pieces_total if shipping is not None else 0)
    yield family("topics_bucket_bytes", shipping.bytes_total if shipping is not None else 0)
    yield family("topics_bucket_failures", shipping.failures_total if shipping is not None else 0)
    yield family("topics_bucket_gaps", shipping.gaps_total if shipping is not None else 0)


def _pipelines(store: Store, principal: Principal) -> Iterator[Metric]:
    """As last reported by their runners."""
    families = {name: labelled(name) for name in FAMILIES if name.startswith("topics_pipeline_")}
    of_topic = families["topics_pipeline_topic_lag"]
    room = TOPICS_SHOWN_MAX
    shown = store.pipelines.list(
        page_size=TOPICS_SHOWN_MAX, wanted=lambda state: state.name.startswith(principal.prefixes)
    ).pipelines
    for state in shown:
        status = state.status
        if status is not None:
            label, backlog = [state.name], store.pipelines.backlog(state)
            families["topics_pipeline_up"].add_metric(label, int(store.pipelines.is_up(status)))
            families["topics_pipeline_lag"].add_metric(label, status.lag if backlog is None else backlog.lag)
            families["topics_pipeline_late_rows"].add_metric(label, status.late_rows)
            for name, rows in status.unmet.items():
                families["topics_pipeline_unmet_rows"].add_metric([state.name, name], rows)
            families["topics_pipeline_restarts"].add_metric(label, status.restarts)
            families["topics_pipeline_rows_per_second"].add_metric(label, status.rows_per_second)
            if backlog is not None:
                age_s = store.pipelines.age_ms(backlog) / 1000
                families["topics_pipeline_oldest_unread_age_seconds"].add_metric(label, age_s)
                for each in backlog.inputs[:room]:
                    of_topic.add_metric([state.name, each.topic], each.lag)
                room -= len(backlog.inputs[:room])
    yield from families.values()


def _webhooks(shown: Sequence[WebhookState]) -> Iterator[Metric]:
    families = {name: labelled(name) for name in FAMILIES if name.startswith("topics_webhook_")}
    for state in shown:
        label = [state.name]
        families["topics_webhook_delivered"].add_metric(label, state.delivered_total)
        families["topics_webhook_failed"].add_metric(label, state.failed_total)
        families["topics_webhook_dead"].add_metric(label, state.dead_total)
        families["topics_webhook_lag"].add_metric(label, state.lag)
        families["topics_webhook_paused"].add_metric(label, int(state.paused))
    yield from families.values()


def _log(store: Store | None) -> Iterator[Metric]:
    """All 0 while there is no log to write to: a family that disappears looks like a fault to an alert."""
    stats, depth, depth_peak, refused, read_only, appended, read = WalStats(), 0, 0, 0, False, 0, 0
    if store is not None:
        stats, pipeline = store.wal.stats, store.commit_log
        depth, depth_peak, refused = pipeline.depth, pipeline.depth_peak, pipeline.refused_total
        read_only = pipeline.read_only is not None
        appended, read = store.state.appended_total, store.state.read_total
    yield family("topics_records_appended", appended)
    yield family("topics_records_read", read)
    yield family("topics_wal_frames", stats.frames_total)
    yield family("topics_wal_batches", stats.batches_total)
    yield family("topics_wal_fsyncs", stats.fsyncs_total)
    yield family("topics_wal_bytes_written", stats.bytes_written_total)
    yield family("topics_wal_rotations", stats.rotations_total)
    yield family("topics_wal_queue_depth", depth)
    yield family("topics_wal_queue_depth_peak", depth_peak)
    yield family("topics_wal_submit_full", refused)
    yield family("topics_wal_read_only", int(read_only))
    yield _latency("topics_wal_fsync_latency_us", stats.fsync_us, 1)
    yield _latency("topics_wal_fsync_latency_seconds", stats.fsync_us, 1_000_000)


def _latency(name: str, histogram: LatencyHistogram, per_unit: int) -> Metric:
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip(histogram.bounds_us, histogram.counts, strict=False):
        below += count
        buckets.append((str(bound if per_unit == 1 else bound / per_unit), below))
    buckets.append(("+Inf", histogram.count))
    text = FAMILIES[name].text
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_us / per_unit)


def family(name: str, value: float) -> Metric:
    """A metric without labels."""
    kind, text, _ = FAMILIES[name]
    return (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, value=value)


def labelled(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    """A metric with one value for each value of its label, still empty."""
    kind, text, label = FAMILIES[name]
    return (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=label.split(","))


def memory_bytes() -> int:
    """What the process holds in memory now."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def disk_bytes(path: str) -> tuple[int, int]:
    """All bytes of the file system, and those that are free; 0 while the directory cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _as_json(found: Metric) -> Iterator[tuple[str, Any]]:
    """A plain number, or an object from label to number."""
    if found.type == "histogram":
        buckets = {sample.labels["le"]: sample.value for sample in found.samples if sample.name.endswith("_bucket")}
        rest = {
            sample.name.removeprefix(found.name + "_"): sample.value for sample in found.samples if not sample.labels
        }
        yield found.name, {"buckets": buckets, **rest}
    elif all(sample.labels for sample in found.samples):
        yield found.name, {" ".join(sample.labels.values()): sample.value for sample in found.samples}
    else:
        for sample in found.samples:
            yield sample.name, sample.value
