"""Queues over HTTP: claim, ack, nack, extend, cancel, redrive, pause and resume, and the list of leases."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import msgspec
from msgspec import UNSET

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import page_params, page_query
from topics.api.replies import encode, performance
from topics.api.routes import Handler, Route
from topics.api.v0.queue_schema import (
    AckReply,
    CancelReply,
    ClaimReply,
    ExtendReply,
    Lease,
    LeaseList,
    LeasePlace,
    NackReply,
    PausedReply,
    RedriveReply,
)
from topics.api.waiting import answering
from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.log.topic import Topic
from topics.engine.queues.claims import Grant
from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.operator.job_pages import JobPosition
from topics.engine.queues.queue import Queue
from topics.engine.queues.verbs import Held
from topics.engine.queues.waiting_claims import AskedClaim, Claims
from topics.model.cursors import page_cursor, place_of
from topics.model.requests.jobs import CancelRequest
from topics.model.requests.records import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    PauseRequest,
    RedriveRequest,
)
from topics.model.requests.warnings import match_warnings, results_warning

QUEUE_ERRORS = ("topic_not_found", "not_a_queue")


class Queues:
    def __init__(self, engine: Engine, pressure: Pressure, claims: Claims) -> None:
        self._engine = engine
        self._queues = claims.queues
        self._pressure = pressure
        self._claims = claims

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
            _write(f"{one}/nack", self.nack, "Give jobs back, or give them up.", NackRequest, NackReply),
            _write(f"{one}/extend", self.extend, "Set a new deadline for held leases.", ExtendRequest, ExtendReply),
            Route(
                method="POST",
                path=f"{one}/redrive",
                handler=self.redrive,
                summary="Move dead letters back to the queues they came from.",
                scopes=Scope.WRITE | Scope.DELETE,
                body=RedriveRequest,
                replies={200: RedriveReply},
                errors=("topic_not_found", "topic_full", "throttled"),
            ),
            Route(
                method="POST",
                path=f"{one}/cancel",
                handler=self.cancel,
                summary="Remove jobs that are not wanted any more, also from workers that have them.",
                scopes=Scope.WRITE | Scope.DELETE,
                body=CancelRequest,
                replies={200: CancelReply},
                errors=(*QUEUE_ERRORS, "batch_too_large"),
            ),
            _control(f"{one}/pause", self.pause, "Stop handing out jobs until resumed."),
            _control(f"{one}/resume", self.resume, "Hand out jobs again."),
            Route(
                method="GET",
                path=f"{one}/leases",
                handler=self.leases,
                summary="The leases of a queue, the next to expire first.",
                scopes=Scope.READ,
                query=page_query("Leases"),
                replies={200: LeaseList},
                errors=QUEUE_ERRORS,
            ),
        ]

    # --- claim ---

    def claim(self, call: Call) -> Steps[None] | None:
        may_be_refused = call.crowded or self._pressure.floor is not None
        asked = self._claims.ask(call.name, call.params, partial(self._admit, call) if may_be_refused else None)
        grant = asked.grant
        if grant is None or grant.change is not None:
            return self._claim_later(call, asked)
        call.reply(200, claimed(call, asked.queue, grant))
        return None

    def _claim_later(self, call: Call, asked: AskedClaim) -> Steps[None]:
        """There are no jobs yet, or the leases must be in the log first."""
        grant = asked.grant or (yield from self._claims.wait(asked, call.params.wait_ms))
        if grant.change is not None:
            yield from published(grant.change)
        call.reply(200, claimed(call, asked.queue, grant))

    def _admit(self, call: Call, topic: Topic) -> None:
        call.check_slot()
        if self._pressure.floor is not None and self._pressure.sheds(call, self._engine.effective_priority(topic)):
            raise self._pressure.refusal()

    # --- ack, nack, extend ---

    def ack(self, call: Call) -> None:
        self._check_slot(call)
        self._queues.ack(call.name, call.params).answer(answering(call, self._acked))

    def _check_slot(self, call: Call) -> None:
        """Errors of the call itself are reported before the cap of its principal."""
        if call.crowded:
            self._queues.check_seqs(call.params)
            self._queues.find(call.name)
            call.check_slot()

    def _acked(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        ready, in_flight = self._counters(call.name)
        body = (
            b'{"topic":"%b","acked":%d,"skipped":%b,"ready":%d,"in_flight":%d,%b'
            b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%b}}'
        ) % (
            call.name.encode(),
            len(held.jobs),
            encode(held.skipped) if held.skipped else b"[]",
            ready,
            in_flight,
            b"" if held.results_kept else b'"warnings":%b,' % encode([results_warning(call.name)]),
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
        self._queues.nack(call.name, call.params).answer(answering(call, self._nacked))

    def _nacked(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        ready, in_flight = self._counters(call.name)
        reply = NackReply(call.name, len(held.jobs), held.skipped, ready, in_flight, performance(call))
        call.reply(200, encode(reply))

    def extend(self, call: Call) -> None:
        self._check_slot(call)
        self._queues.extend(call.name, call.params).answer(answering(call, self._extended))

    def _extended(self, call: Call, change: PendingChange) -> None:
        held: Held = change.result
        deadlines = {str(seq): held.deadline for seq in held.jobs}
        reply = ExtendReply(call.name, len(held.jobs), held.skipped, deadlines, performance(call))
        if held.cancelled:
            reply.cancelled = list(held.cancelled)
        call.reply(200, encode(reply))

    # --- cancel ---

    def cancel(self, call: Call) -> Steps[None]:
        done = yield from self._queues.job_actions.cancel(call.name, call.params, call.must_now_finish)
        ready, in_flight = self._counters(call.name)
        call.reply(200, encode(CancelReply(call.name, done.removed, done.skipped, ready, in_flight, performance(call))))

    # --- redrive, pause, resume ---

    def redrive(self, call: Call) -> Steps[None]:
        principal = call.principal
        driven = yield from self._queues.redriver.redrive_all(
            call.name, call.params, lambda name: name.startswith(principal.prefixes), call.must_now_finish
        )
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
        self._queues.pause(call.name, paused=True).answer(answering(call, self._paused))

    def resume(self, call: Call) -> None:
        self._queues.pause(call.name, paused=False).answer(answering(call, self._paused))

    def _paused(self, call: Call, change: PendingChange) -> None:
        del change
        queue = self._queues.existing(call.name)
        reply = PausedReply(call.name, queue.paused, queue.ready, queue.in_flight, performance(call))
        call.reply(200, encode(reply))

    # --- leases ---

    def leases(self, call: Call) -> Steps[None]:
        _, cursor, page_size = page_params(call)
        after = LeasePlace(0, 0) if cursor is None else place_of(cursor, LeasePlace)
        place = JobPosition(after.deadline + 1, after.seq)
        chosen = yield from self._queues.job_pages.choose(call.name, "leased", None, place, page_size)
        topic, queue, _ = yield from attempt(lambda: self._queues.find(call.name))
        is_in, steady = self._queues.job_pages.is_in, self._engine.steady
        shown = [(at.seq, queue.jobs[at.seq]) for at in chosen.found if is_in(topic, queue, "leased", at.seq)]
        reply = LeaseList(
            topic=call.name,
            leases=[
                Lease(
                    seq=seq,
                    node=job.node,
                    lease_id=f"lease_{job.lease_of(seq):x}",
                    claimed_ts=steady.wall_ms(job.claimed_ms) if job.claimed_ms else msgspec.UNSET,
                    deadline=steady.wall_ms(job.deadline),
                    deliveries=job.deliveries,
                    pushed=job.stream != NO_STREAM,
                    error=job.error or msgspec.UNSET,
                )
                for seq, job in shown
            ],
            in_flight=queue.in_flight,
            performance=performance(call),
        )
        if chosen.after is not None:
            reply.next_cursor = page_cursor(LeasePlace(chosen.after.due_ms - 1, chosen.after.seq))
        call.reply(200, encode(reply))


def claimed(call: Call, queue: Queue, grant: Grant) -> bytes:
    return (
        b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,%b'
        b'"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.1f}}'
    ) % (
        call.name.encode(),
        b",".join(grant.jobs),
        len(grant.jobs),
        queue.ready,
        _more(grant) if grant.more else b"",
        (perf_counter() - call.request.received_s) * 1000,
        call.throttled_s * 1000,
    )


def _more(grant: Grant) -> bytes:
    return b'"more":true,"limited_by":"%b",' % grant.limited_by.encode() if grant.limited_by else b'"more":true,'


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
