"""Metrics: one set of families, shown as Prometheus text or as JSON, limited to the names a key may see."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

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
from topics.engine.opening.store import Store
from topics.engine.queues.part import queue_of
from topics.engine.routers.fold import Routes
from topics.http.listener import Listener
from topics.http.loop.watchdog import Watchdog
from topics.storage.stats import LatencyHistogram, WalStats

PROMETHEUS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX = 1_000
TOPICS_PER_TURN = 2_000
CLASSES = ("ephemeral", "memory", "disk", "fsync")

TOPIC_GAUGES: Final[Mapping[str, str]] = {
    "topics_topic_head_seq": "Highest assigned seq per topic.",
    "topics_topic_earliest_seq": "First live seq per topic.",
    "topics_topic_records_live": "Live records per topic.",
    "topics_topic_bytes_live": "Bytes of live records per topic.",
    "topics_topic_queue_ready": "Jobs ready to be claimed per queue.",
    "topics_topic_queue_in_flight": "Leased jobs per queue.",
}


class Usage:
    """Counts of things outside the engine's topics."""

    def __init__(self) -> None:
        self.sse_connections = 0
        self.watch_sessions = 0
        self.watchdog: Watchdog | None = None
        self.listener: Listener | None = None


class Metrics:
    def __init__(self, store: Store, lifecycle: Lifecycle, usage: Usage) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._usage = usage

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
        families = Families(self._store, self._lifecycle, self._usage, call.principal, totals)
        if b"application/json" in call.headers.get(b"accept", b"").lower():
            body: dict[str, Any] = {name: value for family in families.collect() for name, value in _as_json(family)}
            body["performance"] = performance(call)
            call.reply(200, encode(body))
            return
        registry = CollectorRegistry()
        registry.register(families)
        call.reply(200, generate_latest(registry), content_type=PROMETHEUS_TEXT)


class Families(Collector):
    """One scrape, limited to one key."""

    def __init__(self, store: Store, lifecycle: Lifecycle, usage: Usage, principal: Principal, totals: Totals) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._usage = usage
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
        yield from _log(open_store)

    def _process(self) -> Iterator[Metric]:
        lifecycle, usage = self._lifecycle, self._usage
        ready = self._store.ready and lifecycle.serving and self._store.commit_log.read_only is None
        yield gauge("topics_ready", "1 if requests are accepted.", int(ready))
        yield gauge("topics_recovery_progress", "Part of the log that is replayed, 0 to 1.", lifecycle.progress)
        yield gauge("topics_uptime_ms", "Time since the start in ms.", lifecycle.uptime_ms)
        yield gauge("topics_uptime_seconds", "Time since the start in s.", lifecycle.uptime_ms / 1000)
        yield gauge("topics_routers", "Number of routers.", self._routers())
        yield gauge("topics_sse_connections", "Open streams and WebSockets.", usage.sse_connections)
        yield gauge("topics_watch_sessions", "Number of watch sessions.", usage.watch_sessions)
        yield from self._connections()
        longest_s, slow = (usage.watchdog.longest_s, usage.watchdog.slow_turns_total) if usage.watchdog else (0.0, 0)
        yield gauge("topics_loop_longest_turn_seconds", "Longest turn of the loop in the last minutes.", longest_s)
        yield counter("topics_loop_slow_turns", "Turns of the loop above 100 ms.", slow)

    def _connections(self) -> Iterator[Metric]:
        listener = self._usage.listener
        if listener is None:
            return
        yield gauge("topics_connections", "Open connections.", listener.connections_open)
        yield gauge("topics_connections_max", "Limit of open connections.", listener.connections_max)
        refused = "Connections refused at the limit of open connections."
        yield counter("topics_connections_refused", refused, listener.connections_refused_total)

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
        yield gauge("topics_topics", "Number of topics.", self.topics)
        family = GaugeMetricFamily("topics_topics_by_class", "Topics by durability class.", labels=["class"])
        for name, count in self._by_class.items():
            family.add_metric([name], count)
        yield family
        yield gauge("topics_queue_topics", "Topics that are queues.", self._queues)
        yield gauge("topics_queue_leases_in_flight", "Jobs that are leased.", jobs["in_flight"])
        yield gauge("topics_queue_jobs_ready", "Jobs ready to be claimed.", jobs["ready"])
        yield gauge("topics_queue_jobs_delayed", "Jobs that are delayed until a later time.", jobs["delayed"])
        # Not a counter: the count of a queue is removed with the queue.
        dead = "Jobs that the existing queues have moved to dead-letter topics."
        yield gauge("topics_queue_dead_lettered_total", dead, jobs["dead_lettered"])
        yield gauge("topics_records_live", "Live records of all topics.", self._records)
        yield gauge("topics_bytes_live", "Bytes of live records of all topics.", self._bytes)


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
    families = {name: GaugeMetricFamily(name, text, labels=["topic"]) for name, text in TOPIC_GAUGES.items()}
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
    yield gauge("topics_topic_metrics_truncated", "1 if there are more topics than are listed.", int(truncated))


def _pipelines(store: Store, principal: Principal) -> Iterator[Metric]:
    """As last reported by their runners."""
    up = GaugeMetricFamily("topics_pipeline_up", "1 if a runner recently reported that it runs.", labels=["pipeline"])
    lag = GaugeMetricFamily("topics_pipeline_lag", "Unprocessed records per pipeline.", labels=["pipeline"])
    rate = GaugeMetricFamily("topics_pipeline_rows_per_second", "Rows per second per pipeline.", labels=["pipeline"])
    shown = store.pipelines.list(
        page_size=TOPICS_SHOWN_MAX, wanted=lambda state: state.name.startswith(principal.prefixes)
    ).pipelines
    for state in shown:
        status = state.status
        if status is not None:
            up.add_metric([state.name], int(store.pipelines.is_up(status)))
            lag.add_metric([state.name], status.lag)
            rate.add_metric([state.name], status.rows_per_second)
    yield from (up, lag, rate)


def _log(store: Store | None) -> Iterator[Metric]:
    """All 0 while there is no log to write to: a family that disappears looks like a fault to an alert."""
    stats, depth, depth_peak, refused, read_only = WalStats(), 0, 0, 0, False
    if store is not None:
        stats, pipeline = store.wal.stats, store.commit_log
        depth, depth_peak, refused = pipeline.depth, pipeline.depth_peak, pipeline.refused_total
        read_only = pipeline.read_only is not None
    yield counter("topics_wal_frames", "Frames written to the log.", stats.frames_total)
    yield counter("topics_wal_batches", "Writes to the log, each of many frames.", stats.batches_total)
    yield counter("topics_wal_fsyncs", "Syncs of the log.", stats.fsyncs_total)
    yield counter("topics_wal_bytes_written", "Bytes written to the log.", stats.bytes_written_total)
    yield counter("topics_wal_rotations", "Log files started.", stats.rotations_total)
    yield gauge("topics_wal_queue_depth", "Changes submitted and not yet published.", depth)
    yield gauge("topics_wal_queue_depth_peak", "Highest number of changes that waited.", depth_peak)
    yield counter("topics_wal_submit_full", "Writes refused because the disk could not keep up.", refused)
    yield gauge("topics_wal_read_only", "1 after a failed sync.", int(read_only))
    yield _latency("topics_wal_fsync_latency_us", "Duration of a sync in µs.", stats.fsync_us, 1)
    yield _latency("topics_wal_fsync_latency_seconds", "Duration of a sync in s.", stats.fsync_us, 1_000_000)


def _latency(name: str, text: str, histogram: LatencyHistogram, per_unit: int) -> Metric:
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip(histogram.bounds_us, histogram.counts, strict=False):
        below += count
        buckets.append((str(bound if per_unit == 1 else bound / per_unit), below))
    buckets.append(("+Inf", histogram.count))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_us / per_unit)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _as_json(family: Metric) -> Iterator[tuple[str, Any]]:
    """A plain number, or an object from label to number."""
    if family.type == "histogram":
        buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
        rest = {
            sample.name.removeprefix(family.name + "_"): sample.value for sample in family.samples if not sample.labels
        }
        yield family.name, {"buckets": buckets, **rest}
    elif all(sample.labels for sample in family.samples):
        yield family.name, {next(iter(sample.labels.values())): sample.value for sample in family.samples}
    else:
        for sample in family.samples:
            yield sample.name, sample.value
