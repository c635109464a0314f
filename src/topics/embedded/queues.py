"""Queues: claim jobs, finish them or give them back, and look after what failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

import msgspec

from topics.client.jobs import Acked, Extended, Job, Jobs, Lease, Nacked, Paused, Redriven, held
from topics.embedded.host import Host, Patience
from topics.embedded.requests import warn, wish_of
from topics.embedded.work import Work
from topics.engine.core.engine import PAGE_SIZE_MAX
from topics.engine.core.pending import PendingChange
from topics.engine.queues.claims import Claim, Grant
from topics.engine.queues.cohorts import Cohort
from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.redrive import NOTHING, PIECE_MAX, Driven
from topics.engine.queues.verbs import Held
from topics.model.errors import TopicsError
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import AckRequest, ClaimRequest, ExtendRequest, NackRequest, RedriveRequest
from topics.model.requests.warnings import match_warnings

PAGE_SIZE: Final = 1_000
WAIT_MS_MAX: Final = 30_000
_jobs = msgspec.json.Decoder(list[Job])


class WaitingClaim:
    """A claim in a cohort: over with the pass that gives it something, or when its time is up."""

    __slots__ = ("_claim", "_cohort", "_host", "_waits", "error", "grant", "patience")

    def __init__(self, host: Host, claim: Claim, cohort: Cohort, wait_ms: int) -> None:
        self._host = host
        self._claim = claim
        # Otherwise it waits for the window of its cohort only.
        self._waits = wait_ms > 0
        self.grant: Grant | None = None
        self.error: TopicsError | None = None
        self.patience = Patience(host, wait_ms) if wait_ms else None
        self._cohort = cohort
        cohort.add(self)

    @property
    def is_over(self) -> bool:
        expired = self.patience is not None and self.patience.over
        return expired or self.grant is not None or self.error is not None

    def claim(self) -> Claim | None:
        return None if self.is_over else self._claim

    def granted(self, grant: Grant) -> bool:
        if not grant.seqs and self._waits:
            return True
        self.grant = grant
        self._host.moved.notify_all()
        return False

    def failed(self, error: TopicsError) -> bool:
        self.error = error
        self._host.moved.notify_all()
        return False

    def leave(self) -> None:
        if self.patience is not None:
            self.patience.leave()
        self._cohort.discard(self)


class Queues:
    _host: Host
    _node: str | None

    def _worker(self, node: str | None) -> str:
        """Who claims: as given, as the database was told, or this process on this machine."""
        return node or self._node or f"{socket.gethostname()}-{os.getpid()}"

    # --- claim ---

    def claim(
        self, name: str, node: str | None = None, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0
    ) -> list[Job]:
        """Lease up to `max` jobs; with `wait_ms` (at most 30000) the call waits for one."""
        host = self._host
        request = wish_of(ClaimRequest, node=self._worker(node), max=max, lease_ms=lease_ms, wait_ms=wait_ms)
        found = host.look(lambda: self._claim(name, request))
        grant = found if isinstance(found, Grant) else self._awaited(found)
        if grant.change is not None:
            host.finished(grant.change)
        return decode_deep(_jobs.decode, b"[%b]" % b",".join(grant.jobs))

    def _claim(self, name: str, request: ClaimRequest) -> Grant | WaitingClaim:
        queues, cohorts = self._host.engine.queues, self._host.cohorts
        claim = queues.read_claim(request)
        topic, queue, _ = queues.find(name)
        claim = queues.for_topic(claim, topic.config)
        if not topic.config.claim_jitter_ms:
            grant = queues.serve(topic, queue, [claim])[0]
            if grant.seqs or not request.wait_ms:
                return grant
        return WaitingClaim(self._host, claim, cohorts.of(topic, queue), min(request.wait_ms, WAIT_MS_MAX))

    def _awaited(self, waiting: WaitingClaim) -> Grant:
        host = self._host
        host.wait_until(lambda: waiting.is_over)
        with host.lock:
            waiting.leave()
        if waiting.error is not None:
            host.fail(waiting.error)
        return waiting.grant or Grant()

    # --- ack, nack, extend ---

    def ack(self, name: str, jobs: Jobs, node: str | None = None) -> Acked:
        """Jobs are done, and deleted. What is not held any more is in `skipped`."""
        seqs, lease_ids = held(jobs)
        request = wish_of(AckRequest, node=self._worker(node), seqs=seqs, lease_ids=lease_ids)
        done: Held = self._host.commit(lambda: self._host.engine.queues.ack(name, request)).result
        ready, in_flight = self._counters(name)
        return Acked(topic=name, acked=len(done.jobs), skipped=done.skipped, ready=ready, in_flight=in_flight)

    def nack(
        self,
        name: str,
        jobs: Jobs,
        node: str | None = None,
        *,
        delay_ms: int | None = None,
        dead_letter: bool = False,
        error: str | None = None,
    ) -> Nacked:
        """Give jobs back: claimable at once, after `delay_ms`, or moved to the dead letters."""
        seqs, lease_ids = held(jobs)
        request = wish_of(
            NackRequest,
            node=self._worker(node),
            seqs=seqs,
            lease_ids=lease_ids,
            delay_ms=delay_ms,
            dead_letter=dead_letter,
            error=error,
        )
        done: Held = self._host.commit(lambda: self._host.engine.queues.nack(name, request)).result
        ready, in_flight = self._counters(name)
        return Nacked(topic=name, nacked=len(done.jobs), skipped=done.skipped, ready=ready, in_flight=in_flight)

    def extend(self, name: str, jobs: Jobs, lease_ms: int, node: str | None = None) -> Extended:
        """Keep jobs for `lease_ms` from now."""
        seqs, lease_ids = held(jobs)
        request = wish_of(ExtendRequest, node=self._worker(node), seqs=seqs, lease_ids=lease_ids, lease_ms=lease_ms)
        done: Held = self._host.commit(lambda: self._host.engine.queues.extend(name, request)).result
        deadlines = dict.fromkeys(done.jobs, done.deadline)
        return Extended(topic=name, extended=len(done.jobs), skipped=done.skipped, deadlines=deadlines)

    def _counters(self, name: str) -> tuple[int, int]:
        def count() -> tuple[int, int]:
            queue = self._host.engine.queues.existing(name)
            return queue.ready, queue.in_flight

        return self._host.look(count)

    # --- dead letters, pauses, leases ---

    def redrive(
        self,
        name: str,
        *,
        match: str | tuple[str, str, str] | None = None,
        limit: int | None = None,
        rate_per_s: int | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Send dead letters of this topic back to the queues they came from."""
        request = wish_of(RedriveRequest, match=match, limit=limit, rate_per_s=rate_per_s, dry_run=dry_run)
        driven = self._redriven(name, request)
        warnings = match_warnings(request.match, "match")
        warn(warnings)
        return Redriven(
            topic=name,
            moved=driven.moved,
            to=driven.homes,
            skipped=driven.skipped,
            more=driven.more,
            dry_run=dry_run,
            warnings=warnings,
        )

    def _redriven(self, name: str, request: RedriveRequest) -> Driven:
        """Piece by piece: between two of them others have their turn."""
        redriver, driven = self._host.engine.queues.redriver, NOTHING

        def next_piece() -> PendingChange:
            return redriver.redrive(name, request, lambda _: True, driven, PIECE_MAX)

        while not driven.done:
            try:
                driven = self._host.commit(next_piece).result
            except TopicsError:
                if driven is NOTHING:
                    raise
                # Some have gone home already: that is the answer, and the next call meets what stopped this one.
                return driven
        return driven

    def pause(self, name: str) -> Paused:
        """Hand out no more jobs until `resume`."""
        return self._pause(name, paused=True)

    def resume(self, name: str) -> Paused:
        return self._pause(name, paused=False)

    def _pause(self, name: str, *, paused: bool) -> Paused:
        self._host.commit(lambda: self._host.engine.queues.pause(name, paused=paused))
        ready, in_flight = self._counters(name)
        return Paused(topic=name, paused=paused, ready=ready, in_flight=in_flight)

    def leases(self, name: str, *, page_size: int = PAGE_SIZE) -> Iterator[Lease]:
        """Who holds what, soonest to run out first."""
        size = min(PAGE_SIZE_MAX, max(1, page_size))
        after = 0, 0
        while True:
            page = self._leases(name, after, size)
            for _, lease in page[:size]:
                yield lease
            if len(page) <= size:
                return
            after = page[size - 1][0], page[size - 1][1].seq

    def _leases(self, name: str, after: tuple[int, int], size: int) -> list[tuple[int, Lease]]:
        """One more than fits a page, if there is one; each with the deadline by which leases are in order."""
        host = self._host
        steady = host.engine.steady

        def find() -> list[tuple[int, Lease]]:
            _, queue, _ = host.engine.queues.find(name)
            return [
                (
                    job.deadline,
                    Lease(
                        seq=job.seq,
                        node=job.node,
                        lease_id=f"lease_{job.lease:x}",
                        claimed_ts=steady.wall_ms(job.claimed_ms) if job.claimed_ms else None,
                        deadline=steady.wall_ms(job.deadline),
                        deliveries=job.deliveries,
                        pushed=job.stream != NO_STREAM,
                        error=job.error or None,
                    ),
                )
                for job in queue.leases_from(*after, size + 1)
            ]

        return host.look(find)

    def work(
        self,
        name: str,
        node: str | None = None,
        max: int = 1,
        lease_ms: int | None = None,
        *,
        reconnect_s_max: float = 600.0,
    ) -> Work:
        """Jobs as they come, up to `max` at a time not yet acked; see Work. There is nothing to reconnect to here."""
        del reconnect_s_max
        return Work(self._host, name, wish_of(ClaimRequest, node=self._worker(node), max=max, lease_ms=lease_ms))
