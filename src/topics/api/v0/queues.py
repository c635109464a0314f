"""Queues over HTTP: claim, ack, nack, extend, redrive, pause and resume, and who holds what."""

from __future__ import annotations

import base64
import binascii
from time import perf_counter

import msgspec
from msgspec import UNSET

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import encode, performance
from topics.api.routes import Handler, QueryField, Route
from topics.api.v0.queue_schema import (
    AckReply,
    ClaimReply,
    ExtendReply,
    Lease,
    LeaseList,
    NackReply,
    PausedReply,
    RedriveReply,
)
from topics.api.waiting import Turns, answering
from topics.engine.core.deadlines import Deadline
from topics.engine.core.engine import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, Engine
from topics.engine.core.pending import PendingChange, settled
from topics.engine.queues.claims import Claim, Grant
from topics.engine.queues.cohorts import Cohort, Cohorts
from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.queue import Queue
from topics.engine.queues.redrive import NOTHING, PIECE_MAX, Driven
from topics.engine.queues.verbs import Held
from topics.model.errors import InvalidRequest, TopicsError
from topics.model.requests.records import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    PauseRequest,
    RedriveRequest,
)
from topics.model.requests.warnings import match_warnings

WAIT_MS_MAX = 30_000
QUEUE_ERRORS = ("topic_not_found", "not_a_queue")


class Queues:
    def __init__(self, engine: Engine, pressure: Pressure, cohorts: Cohorts, turns: Turns) -> None:
        self._turns = turns
        self._engine = engine
        self._queues = engine.queues
        self._pressure = pressure
        self._cohorts = cohorts

    def routes(self) -> list[Route]:
        one = "/v0/topics/{topic}"
        return [
            Route(
                method="POST",
                path=f"{one}/claim",
                handler=self.claim,
                summary="Lease jobs to a worker.",
                scopes=Scope.READ | Scope.WRITE,
                body=ClaimRequest,
                checks_slot=True,
                replies={200: ClaimReply},
                errors=(*QUEUE_ERRORS, "throttled"),
            ),
            _write(f"{one}/ack", self.ack, "Complete jobs: they are deleted.", AckRequest, AckReply),
            _write(f"{one}/nack", self.nack, "Give jobs back, or up.", NackRequest, NackReply),
            _write(f"{one}/extend", self.extend, "Set the deadline of held leases anew.", ExtendRequest, ExtendReply),
            Route(
                method="POST",
                path=f"{one}/redrive",
                handler=self.redrive,
                summary="Send dead letters back to the queues they came from.",
                scopes=Scope.WRITE | Scope.DELETE,
                body=RedriveRequest,
                replies={200: RedriveReply},
                errors=("topic_not_found", "topic_full", "throttled"),
            ),
            _control(f"{one}/pause", self.pause, "Hand out no more jobs until resumed."),
            _control(f"{one}/resume", self.resume, "Hand out jobs again."),
            Route(
                method="GET",
                path=f"{one}/leases",
                handler=self.leases,
                summary="Who holds what, soonest to run out first.",
                scopes=Scope.READ,
                query=(
                    QueryField("page_size", int, "Leases in one answer, 1 to 1000.", default=PAGE_SIZE_DEFAULT),
                    QueryField("cursor", str, "The next_cursor of the page before."),
                ),
                replies={200: LeaseList},
                errors=QUEUE_ERRORS,
            ),
        ]

    # --- claim ---

    def claim(self, call: Call) -> None:
        params: ClaimRequest = call.params
        claim = self._queues.read_claim(params)
        topic, queue, _ = self._queues.find(call.name)
        call.check_slot()
        if self._pressure.floor is not None and self._pressure.sheds(call, self._engine.effective_priority(topic)):
            raise self._pressure.refusal()
        claim = self._queues.for_topic(claim, topic.config)
        if not topic.config.claim_jitter_ms:
            grant = self._queues.serve(topic, queue, [claim])[0]
            if grant.seqs or not params.wait_ms:
                answer_claim(call, queue, grant)
                return
        WaitingClaim(call, claim, self._cohorts, self._cohorts.of(topic, queue), min(params.wait_ms, WAIT_MS_MAX))

    # --- ack, nack, extend ---

    def ack(self, call: Call) -> None:
        self._check_slot(call)
        self._queues.ack(call.name, call.params).then(answering(call, self._acked))

    def _check_slot(self, call: Call) -> None:
        """What is wrong with the call itself is told before its key's cap."""
        if call.crowded:
            self._queues.check_seqs(call.params)
            self._queues.find(call.name)
            call.check_slot()

    def _acked(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        ready, in_flight = self._counters(call.name)
        body = (
            b'{"topic":"%b","acked":%d,"skipped":%b,"ready":%d,"in_flight":%d,'
            b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%b}}'
        ) % (
            call.name.encode(),
            len(held.jobs),
            encode(held.skipped),
            ready,
            in_flight,
            (perf_counter() - call.request.received_s) * 1000,
            change.wal_append_ms,
            b"%.3f" % change.fsync_ms if change.fsync_ms else b"0.0",
        )
        call.reply(200, body)

    def _counters(self, name: str) -> tuple[int, int]:
        queue = self._queues.existing(name)
        return queue.ready, queue.in_flight

    def nack(self, call: Call) -> None:
        self._check_slot(call)
        self._queues.nack(call.name, call.params).then(answering(call, self._nacked))

    def _nacked(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        ready, in_flight = self._counters(call.name)
        reply = NackReply(call.name, len(held.jobs), held.skipped, ready, in_flight, performance(call))
        call.reply(200, encode(reply))

    def extend(self, call: Call) -> None:
        self._check_slot(call)
        self._queues.extend(call.name, call.params).then(answering(call, self._extended))

    def _extended(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        deadlines = {str(seq): held.deadline for seq in held.jobs}
        reply = ExtendReply(call.name, len(held.jobs), held.skipped, deadlines, performance(call))
        call.reply(200, encode(reply))

    # --- redrive, pause, resume ---

    def redrive(self, call: Call) -> None:
        principal = call.principal
        before: Driven | None = call.started
        try:
            change = self._queues.redriver.redrive(
                call.name, call.params, lambda name: name.startswith(principal.prefixes), before or NOTHING, PIECE_MAX
            )
        except TopicsError:
            if before is None:
                raise
            # Some have gone home already: that is the answer, and the next call meets what stopped this one.
            change = settled(0, before._replace(done=True))
        change.then(answering(call, self._redriven))

    def _redriven(self, call: Call, change: PendingChange) -> None:
        driven: Driven = change.result
        if not driven.done:
            call.started, call.must_finish = driven, True
            self._turns.again(call)
            return
        reply = RedriveReply(
            topic=call.name,
            moved=driven.moved,
            to=driven.homes,
            skipped=driven.skipped,
            more=driven.more,
            dry_run=bool(call.params.dry_run),
            performance=performance(call),
            warnings=match_warnings(call.params.match, "match") or UNSET,
        )
        call.reply(200, encode(reply))

    def pause(self, call: Call) -> None:
        self._queues.pause(call.name, paused=True).then(answering(call, self._paused))

    def resume(self, call: Call) -> None:
        self._queues.pause(call.name, paused=False).then(answering(call, self._paused))

    def _paused(self, call: Call, change: PendingChange) -> None:
        del change
        queue = self._queues.existing(call.name)
        reply = PausedReply(call.name, queue.paused, queue.ready, queue.in_flight, performance(call))
        call.reply(200, encode(reply))

    # --- leases ---

    def leases(self, call: Call) -> None:
        page_size = max(1, min(PAGE_SIZE_MAX, call.integer("page_size", PAGE_SIZE_DEFAULT)))
        after = decode_cursor(call.text("cursor"))
        _, queue, _ = self._queues.find(call.name)
        jobs = queue.leases_from(*after, page_size + 1)
        shown, steady = jobs[:page_size], self._engine.steady
        reply = LeaseList(
            topic=call.name,
            leases=[
                Lease(
                    seq=job.seq,
                    node=job.node,
                    lease_id=f"lease_{job.lease:x}",
                    claimed_ts=steady.wall_ms(job.claimed_ms) if job.claimed_ms else msgspec.UNSET,
                    deadline=steady.wall_ms(job.deadline),
                    deliveries=job.deliveries,
                    pushed=job.stream != NO_STREAM,
                    error=job.error or msgspec.UNSET,
                )
                for job in shown
            ],
            in_flight=queue.in_flight,
            performance=performance(call),
        )
        if len(jobs) > page_size:
            reply.next_cursor = encode_cursor(shown[-1].deadline, shown[-1].seq)
        call.reply(200, encode(reply))


class WaitingClaim:
    """A claim in a cohort: answered by the pass that gives it something, or when its time is up."""

    __slots__ = ("_call", "_claim", "_cohort", "_cohorts", "_deadline", "_waits")

    def __init__(self, call: Call, claim: Claim, cohorts: Cohorts, cohort: Cohort, wait_ms: int) -> None:
        self._call = call
        self._claim = claim
        self._cohorts = cohorts
        self._cohort = cohort
        # Otherwise it waits for the window of its cohort only.
        self._waits = wait_ms > 0
        self._deadline: Deadline | None = cohorts.deadlines.add(wait_ms, self._expire) if wait_ms else None
        call.on_end = self._leave
        call.may_be_abandoned()
        cohort.add(self)

    def claim(self) -> Claim | None:
        return self._claim if self._call.open else None

    def granted(self, grant: Grant) -> bool:
        if not grant.seqs and self._waits:
            return True
        self._forget_deadline()
        answer_claim(self._call, self._cohort.queue, grant)
        return False

    def failed(self, error: TopicsError) -> bool:
        self._call.fail(error)
        return False

    def _expire(self) -> None:
        self._deadline = None
        if self._call.open:
            answer_claim(self._call, self._cohort.queue, Grant())
            self._cohorts.wake()

    def _leave(self) -> None:
        self._forget_deadline()
        self._cohort.discard(self)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._cohorts.deadlines.remove(self._deadline)
            self._deadline = None


def answer_claim(call: Call, queue: Queue, grant: Grant) -> None:
    """Now, or when the log has the leases."""
    if grant.change is None:
        call.reply(200, claimed(call, queue, grant))
    else:
        grant.change.then(answering(call, lambda call, _: call.reply(200, claimed(call, queue, grant))))


def claimed(call: Call, queue: Queue, grant: Grant) -> bytes:
    return (
        b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,%b'
        b'"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.1f}}'
    ) % (
        call.name.encode(),
        b",".join(grant.jobs),
        len(grant.jobs),
        queue.ready,
        b'"more":true,' if grant.more else b"",
        (perf_counter() - call.request.received_s) * 1000,
        call.throttled_s * 1000,
    )


class _Cursor(msgspec.Struct):
    deadline: int
    seq: int


def encode_cursor(deadline: int, seq: int) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(deadline, seq))).decode()


def decode_cursor(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    try:
        found = msgspec.json.decode(base64.b64decode(cursor, altchars=b"-_", validate=True), type=_Cursor)
    except (binascii.Error, ValueError):
        raise InvalidRequest("cursor is not one that this server gave out", field="cursor") from None
    return found.deadline, found.seq


def _write(path: str, handler: Handler, summary: str, body: type[msgspec.Struct], reply: type[msgspec.Struct]) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=handler,
        summary=summary,
        scopes=Scope.WRITE,
        body=body,
        checks_slot=True,
        replies={200: reply},
        errors=(*QUEUE_ERRORS, "batch_too_large"),
    )


def _control(path: str, handler: Handler, summary: str) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=handler,
        summary=summary,
        scopes=Scope.ADMIN,
        body=PauseRequest,
        replies={200: PausedReply},
        errors=QUEUE_ERRORS,
    )
