"""What must hold besides when servers share a bucket: who acknowledges, what is shown, when another may take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from tests.simulation.evidence import Evidence

# A server that did not run for less than this does not notice.
SLEPT_S = 2.0


def the_primary_acknowledges(evidence: Evidence) -> Iterator[str]:
    """In a term one server acknowledges `replicated` writes: the one whose term it is."""
    assert evidence.reigns is not None
    for call in evidence.history.of("append", "multi"):
        topics = call.request["topics"] if call.verb == "multi" else (call.topic,)
        if not any(evidence.durability(topic) == "replicated" for topic in topics):
            continue
        if call.ok and not call.answer.get("deduped") and not evidence.reigns.owned(call):
            yield f"{call.server} acknowledged in the term of another server: {call}"


def woken_servers_ask_first(evidence: Evidence) -> Iterator[str]:
    """A server that was stopped while another one took over acknowledges nothing that comes after it was continued."""
    assert evidence.reigns is not None
    lease_s = evidence.plan.settings["bucket_lease_ms"] / 1000
    pauses = [(event, float(event.detail.split()[0])) for event in evidence.history.events if event.kind == "pause"]
    starts = [(event.machine, event.at_s) for event in evidence.history.events if event.kind == "start"]
    for pause, seconds in pauses:
        woken_s = pause.at_s + seconds
        if seconds < SLEPT_S or seconds < lease_s:
            continue
        if not evidence.reigns.others_announced(pause.machine, pause.at_s, woken_s):
            continue
        # Killed while it was stopped, or later: the next one has not slept.
        next_s = min((at_s for machine, at_s in starts if machine == pause.machine and at_s > pause.at_s), default=inf)
        for call in evidence.history.of("append", "multi", "claim", "ack", "group_ack", "commit"):
            is_woken = call.server == pause.machine and woken_s <= call.began_s < next_s
            asked = is_woken and not evidence.reigns.owned(call)
            if asked and call.ok and not evidence.reigns.began(pause.machine, woken_s, call.began_s):
                yield f"{call.server} was stopped for {seconds:g} s, was replaced, and acknowledged: {call}"


def leases_are_waited_for(evidence: Evidence) -> Iterator[str]:
    """Nobody takes over while the primary renews its lease, unless told to."""
    assert evidence.reigns is not None
    forced = any(call.request.get("force") for call in evidence.history.of("promote"))
    if forced or evidence.history.times("clock"):
        # Which wall clock it had when it asked is not known any more.
        return
    for reign in evidence.reigns.hasty(evidence.plan.settings["bucket_lease_ms"] / 1000, evidence.skews_s):
        yield f"{reign.holder} took over at {reign.from_s:.6f} although the lease was renewed"


def only_what_the_bucket_has_is_shown(evidence: Evidence) -> Iterator[str]:
    """Nobody is told of a `replicated` record before the bucket has it."""
    assert evidence.reigns is not None
    if evidence.reigns.gaps:
        return
    for (topic, _), by_seq in evidence.seen.items():
        if evidence.durability(topic) != "replicated":
            continue
        for seq, found in by_seq.items():
            for data, shown in found.items():
                written = evidence.written.get(data)
                if written is None or written.staged or written.topic != topic:
                    continue
                if not evidence.reigns.has(data, shown.ended_s):
                    yield f"seq {seq} of {topic}, {data!r}, was shown before the bucket had it: {shown}"


def a_standby_has_the_same(evidence: Evidence) -> Iterator[str]:
    """A standby that has followed up to the end shows what the primary showed then."""
    for copy in evidence.copies:
        for topic, records in evidence.finals[0].records.items():
            # Jobs move when their time is up, and what is only in memory is not followed.
            if topic in ("jobs", "dead") or evidence.durability(topic) == "ephemeral":
                continue
            if copy.records.get(topic) != records:
                found = [record["$seq"] for record in copy.records.get(topic, [])]
                yield f"{topic} has {[record['$seq'] for record in records]}, and {found} at the standby"


CHECKERS_OF_BUCKET: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    the_primary_acknowledges,
    woken_servers_ask_first,
    leases_are_waited_for,
    only_what_the_bucket_has_is_shown,
    a_standby_has_the_same,
)
