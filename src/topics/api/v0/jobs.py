"""Jobs of a queue: pages by state and one action for all that are chosen; what became of one job, and of a group."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import page_params, page_query
from topics.api.replies import encode, performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance, Warnings
from topics.api.v0.queue_schema import JobGroupReply, JobReply
from topics.engine.core.waiting.runner import Steps, attempt
from topics.engine.queues.operator.job_pages import START, JobPosition
from topics.engine.queues.results.lookup import GroupReport, JobLookup, JobReport
from topics.engine.queues.verbs import Queues
from topics.model.cursors import page_cursor, place_of
from topics.model.errors import InvalidRequest
from topics.model.requests.config import U64_MAX
from topics.model.requests.jobs import STATES, JobsRequest, JobState
from topics.model.requests.records import parse_match
from topics.model.requests.warnings import match_warnings

ERRORS = ("topic_not_found", "not_a_queue")


class JobItem(msgspec.Struct):
    """A job and how it stands. A leased one has `worker` to `pushed`, a delayed one `due`, a dead one `src_seq`.

    `$seq` of a dead one is its seq in the dead-letter topic. `error` is what the last worker said when it gave up.
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    state: JobState = msgspec.field()
    data: Raw = msgspec.field()
    deliveries: int | UnsetType = UNSET
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    job_priority: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    lease_id: str | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    claimed_ts: int | UnsetType = UNSET
    pushed: bool | UnsetType = UNSET
    due: int | UnsetType = UNSET
    origin: str | UnsetType = msgspec.field(name="from", default=UNSET)
    src_seq: int | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET


class JobList(msgspec.Struct):
    """`dead_letter` is the topic that the dead ones are in, null if the queue has none."""

    topic: str
    state: JobState
    jobs: list[JobItem]
    ready: int
    in_flight: int
    delayed: int
    dead: int
    paused: bool
    dead_letter: str | None
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class JobsReply(msgspec.Struct):
    """`skipped`: given seqs that were not in that state. `more`: others match, call again."""

    topic: str
    action: str
    state: JobState
    changed: int
    skipped: int
    more: bool
    dry_run: bool
    performance: Performance
    warnings: Warnings = UNSET


class JobPlace(msgspec.Struct):
    """The place in a list of jobs."""

    due_ms: int
    seq: int


class Jobs:
    def __init__(self, queues: Queues, lookup: JobLookup) -> None:
        self._queues = queues
        self._lookup = lookup

    def routes(self) -> list[Route]:
        path = "/v0/topics/{topic}/jobs"
        return [
            Route(
                method="GET",
                path=path,
                handler=self.show,
                summary="Jobs of a queue that are ready, leased, delayed or dead, a page at a time.",
                scopes=Scope.READ,
                query=(
                    QueryField("state", JobState, "Which jobs.", required=True),
                    QueryField("tag", str, "Only jobs with this tag; with a * at its end, tags that start with it."),
                    *page_query("Jobs"),
                ),
                replies={200: JobList},
                errors=ERRORS,
            ),
            Route(
                method="POST",
                path=path,
                handler=self.act,
                summary="Retry, release, extend, bury, redrive or delete the jobs that are chosen.",
                scopes=Scope.ADMIN,
                body=JobsRequest,
                replies={200: JobsReply},
                errors=(*ERRORS, "batch_too_large", "topic_full"),
            ),
            Route(
                method="GET",
                path=f"{path}/{{seq}}",
                handler=self.job,
                summary="One job, also after its end if the queue keeps results; may wait for the end.",
                scopes=Scope.READ,
                query=(QueryField("wait_ms", int, "How long to wait for the end, at most 30000.", default=0),),
                replies={200: JobReply},
                errors=(*ERRORS, "job_not_found"),
            ),
            Route(
                method="GET",
                path="/v0/topics/{topic}/job-groups/{group}",
                handler=self.group,
                summary="A job group: how many of its jobs have ended.",
                scopes=Scope.READ,
                replies={200: JobGroupReply},
                errors=(*ERRORS, "job_group_not_found"),
            ),
        ]

    def show(self, call: Call) -> Steps[None]:
        call.check_query()
        state = _state_of(call.text("state"))
        tag, (_, cursor, page_size) = call.text("tag"), page_params(call)
        match = None if tag is None else parse_match(["tag", "Glob" if tag.endswith("*") else "Eq", tag], "tag")
        place = place_of(cursor, JobPlace) if cursor is not None else JobPlace(*START)
        topic, _, _ = yield from attempt(lambda: self._queues.find(call.name))
        if state == "dead" and topic.config.dead_letter is not None:
            call.principal.check_name(topic.config.dead_letter, "dead_letter", given=False)
        after = JobPosition(place.due_ms, place.seq)
        page = yield from self._queues.job_pages.page(call.name, state, match, after, page_size)
        call.reply(200, self._rendered(call, state, page.jobs, page.after))

    def _rendered(self, call: Call, state: JobState, jobs: list[bytes], after: JobPosition | None) -> bytes:
        """The jobs are their records' own bytes, and are not parsed for this."""
        counts = self._queues.counts(call.name)
        rest: dict[str, Any] = {**counts, "performance": performance(call)}
        if after is not None:
            rest["next_cursor"] = page_cursor(JobPlace(*after))
        return b'{"topic":"%b","state":"%b","jobs":[%b],%b' % (
            call.name.encode(),
            state.encode(),
            b",".join(jobs),
            encode(rest)[1:],
        )

    def act(self, call: Call) -> Steps[None]:
        params: JobsRequest = call.params
        topic, _, _ = yield from attempt(lambda: self._queues.find(call.name))
        uses_letters = params.action in ("bury", "redrive") or params.state == "dead"
        if uses_letters and topic.config.dead_letter is not None:
            call.principal.check_name(topic.config.dead_letter, "dead_letter", given=False)
        done = yield from self._queues.job_actions.act(call.name, params, call.must_now_finish)
        reply = JobsReply(
            topic=call.name,
            action=params.action,
            state=done.state,
            changed=done.changed,
            skipped=done.skipped,
            more=done.more,
            dry_run=bool(params.dry_run),
            performance=performance(call),
            warnings=match_warnings(params.match, "match") or UNSET,
        )
        call.reply(200, encode(reply))

    # --- one job, one group ---

    def job(self, call: Call) -> Steps[None]:
        call.check_query()
        name, _, text = call.name.rpartition("/")
        if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > U64_MAX:
            raise InvalidRequest(f"seq must be a whole number up to {U64_MAX}, not {text[:32]!r}", field="seq")
        wait_ms = max(0, call.integer("wait_ms", 0))
        report = yield from self._lookup.waiting(name, int(text), wait_ms)
        call.reply(200, encode(JobReply(topic=name, performance=performance(call), **_fields(report))))

    def group(self, call: Call) -> Steps[None]:
        call.check_query()
        name, _, group = call.name.rpartition("/")
        report: GroupReport = yield from attempt(lambda: self._lookup.group(name, group))
        call.reply(200, encode(JobGroupReply(topic=name, performance=performance(call), **_group_fields(report))))


def _fields(report: JobReport) -> dict[str, Any]:
    """What is known of the job; the rest is left out."""
    fields: dict[str, Any] = {name: value for name, value in report._asdict().items() if value}
    fields["deliveries"] = report.deliveries
    for name in ("progress", "result"):
        if name in fields:
            fields[name] = Raw(fields[name])
    return fields


def _group_fields(report: GroupReport) -> dict[str, Any]:
    optional = ("notified_ts", "notified_seq", "error")
    return {name: value for name, value in report._asdict().items() if value or name not in optional}


def _state_of(text: str | None) -> JobState:
    for state in STATES:
        if state == text:
            return state
    raise InvalidRequest(f"state must be one of {', '.join(STATES)}", field="state")
