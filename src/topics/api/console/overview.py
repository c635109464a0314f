"""The state of everything in one answer: totals of what a key may see, and what needs attention, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.metrics import TOPICS_PER_TURN, Usage, disk_bytes, visible
from topics.api.promotion import bucket_health
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import BucketHealth, Performance, Role
from topics.engine.core.waiting.runner import Steps
from topics.engine.groups.part import groups_of
from topics.engine.groups.verbs import GROUPS_PER_STEP, lag_of
from topics.engine.log.topic import Topic
from topics.engine.queues.dead_letters import left_of
from topics.engine.queues.operator.job_pages import oldest_ready_ts
from topics.engine.queues.part import queue_of
from topics.engine.routers.fold import Routes
from topics.engine.routers.router import Router
from topics.model.requests.groups import split_partition

if TYPE_CHECKING:
    from topics.engine.opening.store import Store
    from topics.engine.pipelines.feature import PipelineState
    from topics.engine.queues.queue import Queue

FINDINGS_MAX = 100
WAITS_MS_MAX = 300_000
# A worker that polls asks more often than this; one that waits or works is counted anyway.
UNCLAIMED_MS_MAX = 15_000
LAG_MAX = 10_000
BUCKET_AWAY_MS_MAX = 2_000
# An idle standby knows of nothing newer than the primary's last renewal.
BUCKET_LAG_MS_MAX = 15_000
DISK_FREE_SHARE_MIN = 0.1
PIPELINES_MAX = 1_000
SEVERITIES = ("error", "warning", "notice")

Severity = Literal["error", "warning", "notice"]
Kind = Literal["server", "queue", "router", "pipeline", "group"]


class Finding(msgspec.Struct):
    """Something that needs attention: what it is about, what is wrong, how many or how long, and all that in words."""

    severity: Severity
    kind: Kind
    name: str
    problem: str
    value: int
    text: str
    # of a group: its topic
    topic: str | UnsetType = UNSET


class OldestJob(msgspec.Struct):
    topic: str
    ts: int


class OverviewReply(msgspec.Struct):
    """`attention` lists the gravest first, at most 100; `more` counts the rest. With a bucket there are `bucket` and
    `role`, as in `/v0/health`; on a standby also `primary`, the primary's address, null while none is known.
    """

    topics: int
    queues: int
    records: int
    bytes: int
    ready: int
    in_flight: int
    delayed: int
    dead: int
    live_readers: int
    routers: int
    oldest_job: OldestJob | None
    attention: list[Finding]
    more: int
    performance: Performance
    bucket: BucketHealth | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    primary: str | UnsetType | None = UNSET


class Overview:
    def __init__(self, store: Store, usage: Usage, data_dir: str, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._usage = usage
        self._data_dir = data_dir
        self._now_ms = now_ms

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/overview",
                handler=self.show,
                summary="Totals of the topics that the key may see, and what needs attention.",
                scopes=Scope.READ,
                replies={200: OverviewReply},
            )
        ]

    def show(self, call: Call) -> Steps[None]:
        survey = Survey(self._store, self._now_ms())
        topics = visible(self._store, call.principal)
        while some := list(islice(topics, TOPICS_PER_TURN)):
            for topic in some:
                survey.look_at(topic)
                if topic.groups is not None:
                    yield from survey.look_at_groups(topic)
            yield None
        survey.found.extend(self._elsewhere(call.principal))
        survey.found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        store = self._store
        reply = OverviewReply(
            topics=survey.topics,
            queues=survey.queues,
            records=survey.records,
            bytes=survey.bytes,
            ready=survey.ready,
            in_flight=survey.in_flight,
            delayed=survey.delayed,
            dead=survey.dead,
            live_readers=self._usage.sse_connections if call.principal.sees_all_names else call.principal.streams,
            routers=len(list(self._routers(call.principal))),
            oldest_job=survey.oldest,
            attention=survey.found[:FINDINGS_MAX],
            more=max(0, len(survey.found) - FINDINGS_MAX) + survey.more,
            performance=performance(call),
            bucket=bucket_health(store),
            role=store.role or UNSET,
            primary=store.standby.primary_url if store.standby is not None else UNSET,
        )
        call.reply(200, encode(reply))

    def _elsewhere(self, principal: Principal) -> Iterator[Finding]:
        """What is not about a topic."""
        store = self._store
        if store.commit_log.read_only is not None:
            fenced = store.shipping.fenced if store.shipping is not None else None
            since = "since a sync of its log failed" if fenced is None else f"because {fenced.message}"
            yield Finding("error", "server", "", "read_only", 1, f"The server is read-only {since}")
        yield from _of_bucket(store)
        if principal.sees_all_names:
            total, free = disk_bytes(self._data_dir)
            if free < DISK_FREE_SHARE_MIN * total:
                text = f"The disk is {100 - 100 * free // total}% full"
                yield Finding("warning", "server", "", "disk_full", free, text)
        for router in self._routers(principal):
            if router.last_error is not None:
                text = f"Router {router.name} is stopped: {router.last_error.message}"
                yield Finding("error", "router", router.name, "stopped", router.lag, text)
        yield from self._pipelines(principal)

    def _routers(self, principal: Principal) -> Iterator[Router]:
        for router in self._store.state.feature(Routes).by_name.values():
            names = (router.name, router.source.name, router.dest.name)
            if all(name.startswith(principal.prefixes) for name in names):
                yield router

    def _pipelines(self, principal: Principal) -> Iterator[Finding]:
        pipelines = self._store.pipelines

        def wanted(state: PipelineState) -> bool:
            """As in their list: its error may show records of the topics that it reads."""
            names = [state.name, *(name for name, _ in state.definition.ends())]
            return all(name.startswith(principal.prefixes) for name in names)

        page = pipelines.list(page_size=PIPELINES_MAX, wanted=wanted)
        for state in page.pipelines:
            status = state.status
            if status is None or state.definition.enabled is False:
                continue
            if status.state == "failed":
                text = f"Pipeline {state.name} failed: {(status.last_error or 'no reason given').splitlines()[0]}"
                yield Finding("error", "pipeline", state.name, "failed", status.restarts, text)
            elif status.state != "stopped" and not pipelines.is_up(status):
                text = f"Nothing was heard of the runner of pipeline {state.name} lately"
                yield Finding("warning", "pipeline", state.name, "silent", status.ts, text)


def _of_bucket(store: Store) -> Iterator[Finding]:
    """Whether the copy in the bucket is made, or followed; a request that fails once is repeated within this time."""
    away_ms, goes_on = 0, ""
    lag_ms, behind = 0, ""
    if store.standby is not None:
        lag_ms, behind = store.standby.age_ms, "This standby does not keep up: what it shows is {} old"
        following = store.standby.following
        if following.away_since_s is not None:
            away_ms = int(1000 * (following.clock_s() - following.away_since_s))
        goes_on = "what this standby shows is that old"
    elif store.shipping is not None:
        away_ms = store.shipping.away_ms
        lag_ms = store.shipping.status.lag_ms - store.settings.bucket_piece_ms
        behind = "The bucket does not keep up with the writes: the copy there is {} old"
        goes_on = "the log waits on disk, and so do writes with durability replicated"
        if not store.shipping.whole:
            text = "The copy in the bucket has a gap, which ends with the next snapshot"
            yield Finding("warning", "server", "", "bucket_gap", store.shipping.status.lag_bytes, text)
    if away_ms > BUCKET_AWAY_MS_MAX:
        text = f"The bucket has not answered for {span(away_ms)}: {goes_on}"
        yield Finding("warning", "server", "", "bucket_away", away_ms, text)
    elif lag_ms > BUCKET_LAG_MS_MAX:
        yield Finding("warning", "server", "", "bucket_behind", lag_ms, behind.format(span(lag_ms)))


class Survey:
    """What the topics come to, and what needs attention among them."""

    def __init__(self, store: Store, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._steady_ms = store.engine.steady.now_ms()
        self.topics = self.queues = self.records = self.bytes = 0
        self.ready = self.in_flight = self.delayed = self.dead = 0
        self.oldest: OldestJob | None = None
        self.found: list[Finding] = []
        self.more = 0

    def look_at(self, topic: Topic) -> None:
        self.topics += 1
        self.records += topic.count
        self.bytes += topic.bytes
        queue = queue_of(topic)
        if queue is not None:
            self._look_at_queue(topic, queue)

    def _look_at_queue(self, topic: Topic, queue: Queue) -> None:
        queue.advance(self._steady_ms)
        self.queues += 1
        self.ready += queue.ready
        self.in_flight += queue.in_flight
        self.delayed += queue.delayed
        dead = left_of(self._store.state, topic)
        self.dead += dead
        name = topic.name
        if queue.refused:
            text = f"{jobs(queue.refused)} of {name} cannot be moved to the dead letters: {queue.refusal or 'not yet'}"
            self._note("error", name, "refused", queue.refused, text)
        if dead:
            self._note("warning", name, "dead", dead, f"{jobs(dead)} of {name} {'is' if dead == 1 else 'are'} dead")
        if queue.paused and queue.ready:
            self._note("notice", name, "paused", queue.ready, f"{name} is paused while {jobs(queue.ready)} wait")
        oldest_ts = oldest_ready_ts(topic)
        if oldest_ts is None:
            return
        if self.oldest is None or oldest_ts < self.oldest.ts:
            self.oldest = OldestJob(name, oldest_ts)
        waits_ms = self._now_ms - oldest_ts
        if queue.paused:
            return
        if self._is_unclaimed(queue, oldest_ts):
            asked_ts = queue.last_claim_ts
            since = "since the server started" if asked_ts is None else f"for {span(self._now_ms - asked_ts)}"
            wait = "waits" if queue.ready == 1 else "wait"
            text = f"{jobs(queue.ready)} of {name} {wait}, and no worker has asked {since}"
            self._note("warning", name, "unclaimed", queue.ready, text)
        elif waits_ms > WAITS_MS_MAX:
            text = f"A job of {name} has been waiting for {span(waits_ms)}"
            self._note("warning", name, "waits", waits_ms, text)

    def _is_unclaimed(self, queue: Queue, oldest_ts: int) -> bool:
        """Nobody works on the queue, waits for its jobs, or has asked for them since they came."""
        if queue.claimers or queue.in_flight:
            return False
        return self._now_ms - max(oldest_ts, queue.last_claim_ts or 0) > UNCLAIMED_MS_MAX

    def look_at_groups(self, topic: Topic) -> Steps[None]:
        for number, (group_id, group) in enumerate(list(groups_of(topic).items()), 1):
            if number % GROUPS_PER_STEP == 0:
                yield None
            lag = lag_of(topic, group)
            if lag > LAG_MAX:
                base, _ = split_partition(topic.name)
                text = f"Group {group_id} is {lag:,} records behind in {topic.name}"
                self._add(Finding("warning", "group", group_id, "lags", lag, text, topic=base))

    def _note(self, severity: Severity, name: str, problem: str, value: int, text: str) -> None:
        self._add(Finding(severity, "queue", name, problem, value, text))

    def _add(self, finding: Finding) -> None:
        """Bounded: a thousand queues with the same fault are one fault."""
        if len(self.found) < 10 * FINDINGS_MAX:
            self.found.append(finding)
        else:
            self.more += 1


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def span(ms: int) -> str:
    """20 seconds, 7 minutes, 3 hours: never one of anything, and never less than seconds."""
    if ms < 120_000:
        return f"{ms // 1_000} seconds"
    return f"{ms // 60_000} minutes" if ms < 7_200_000 else f"{ms // 3_600_000:,} hours"
