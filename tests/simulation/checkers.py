"""What must hold of a history and of what is there in the end; a checker yields a sentence for what does not.

Claims are made only where they are certain: an answer that never came may stand for either outcome, and what two calls
did at the same time is in no order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from tests.simulation.bucket_checkers import CHECKERS_OF_BUCKET
from tests.simulation.evidence import Evidence, Judged
from tests.simulation.history import Call

# How long after its acknowledgement a `disk` record must be durable, whatever the disk does short of failing a sync.
DURABLE_AFTER_S = 20.0
# More seqs than a topic gets in a world: so many are passed over only where a crash may have lost some.
SKIPPED_MIN = 10_000
# What a server ends with that could not start because of its disk.
DISK_ERRORS = ("OSError", "StorageFull", "[Errno", "the disk refused the write", "cannot create a log file")
DAMAGE_ERRORS = (*DISK_ERRORS, "Damaged", "UnknownPast")
# And one that could not start because of its bucket, or because another server is primary.
BUCKET_ERRORS = (*DISK_ERRORS, "WrongSetting", "InUse", "TakenOver", "Unreachable", "Refused", "DataDirIncompatible")


Checker = Callable[[Evidence], Iterator[str]]


def no_seq_twice(evidence: Evidence) -> Iterator[str]:
    """A seq of a topic stands for one record, for ever; readers never see another one under it."""
    for (topic, epoch), by_seq in evidence.seen.items():
        for seq, found in by_seq.items():
            if len(found) > 1:
                yield f"seq {seq} of {topic} (epoch {epoch}) was {sorted(found)}"


def nothing_is_invented(evidence: Evidence) -> Iterator[str]:
    """Every record that is read was sent, to that topic, by a request that may have been carried out."""
    copies = {"copies": "routed", "dead": "jobs"}
    for (topic, _), by_seq in evidence.seen.items():
        for seq, found in by_seq.items():
            for data in found:
                written = evidence.written.get(data)
                if written is None or written.topic not in (topic, copies.get(topic)):
                    yield f"seq {seq} of {topic} is {data!r}, which nobody sent there"
                elif not any(evidence.may_be_kept(call) for call in written.calls):
                    yield f"seq {seq} of {topic} is {data!r}, whose append was refused: {written.calls[-1]}"


def nothing_is_written_twice(evidence: Evidence) -> Iterator[str]:
    """Nobody sends a record twice without a key, and with one it is written once: it has one place in its topic."""
    for index, final in enumerate(evidence.finals):
        for topic, records in final.records.items():
            for data, count in Counter(record["data"] for record in records).items():
                forgotten = _source_forgets(evidence, topic, data) or _key_may_have_ended(evidence, topic, data)
                if count > 1 and not forgotten:
                    yield f"{data!r} is {count} times in {topic} (reading {index})"
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (topic, epoch), by_seq in evidence.seen.items():
        for seq, found in by_seq.items():
            for data in found:
                if epoch == evidence.epoch(topic):
                    places[topic, data].add(seq)
    for (topic, data), seqs in places.items():
        if len(seqs) > 1 and not _may_be_written_again(evidence, topic, data):
            yield f"{data!r} had the seqs {sorted(seqs)} in {topic}"


def _may_be_written_again(evidence: Evidence, topic: str, data: str) -> bool:
    return (
        _may_have_been_lost(evidence, topic, data)
        or _source_forgets(evidence, topic, data)
        or _key_may_have_ended(evidence, topic, data)
    )


def _key_may_have_ended(evidence: Evidence, topic: str, data: str) -> bool:
    """Whether a repeated request can have come after the end of the window of its key."""
    window_ms = evidence.config(topic).get("idempotency_window_ms")
    written = evidence.written.get(data)
    if not isinstance(window_ms, int) or written is None:
        return False
    calls = written.calls
    if any(call.twice or not call.status for call in calls):
        # Nobody knows when it was carried out.
        return True
    began_s, ended_s = min(call.began_s for call in calls), max(call.ended_s for call in calls)
    return ended_s - began_s >= window_ms / 1000 or any(began_s <= at_s <= ended_s for at_s in evidence.steps)


def _source_forgets(evidence: Evidence, topic: str, data: str) -> bool:
    """Whether a copy outlives the record and its key: a repeated request is then written, and copied, once more."""
    written = evidence.written.get(data)
    if written is None or written.topic == topic:
        return False
    return evidence.durability(written.topic) == "ephemeral" and bool(evidence.kills)


def _may_have_been_lost(evidence: Evidence, topic: str, data: str) -> bool:
    """Whether its first writing can have been lost, so that a repeated request wrote it again."""
    durability = evidence.durability(topic)
    written = evidence.written.get(data)
    if durability == "ephemeral":
        return bool(evidence.kills)
    if durability == "replicated":
        return False
    if evidence.replaced and not (written is not None and written.replicated):
        return True
    return bool(evidence.powers) and durability != "fsync" and not (written is not None and written.synced)


def nothing_acknowledged_is_lost(evidence: Evidence) -> Iterator[str]:
    """What was acknowledged, or seen, is there in the end, or its loss was allowed and is announced."""
    final = evidence.final
    for topic, records in final.records.items():
        if topic == "churn":
            continue
        there = {record["$seq"]: record["data"] for record in records}
        gaps = [(gap["gap_from"], gap["gap_to"]) for gap in final.tombstones[topic]]
        for seq, found in sorted(evidence.seen[topic, evidence.epoch(topic)].items()):
            for data, shown in found.items():
                if there.get(seq) == data or _was_removed(evidence, topic, seq, data):
                    continue
                evicted = "cap_records" in evidence.config(topic) and seq < final.states[topic]["earliest_seq"]
                why = "" if evicted else _loss(evidence, topic, seq, data, shown, there)
                if why:
                    yield f"seq {seq} of {topic}, {data!r}, known since {shown.ended_s:.6f}, is gone: {why}"
                elif not any(start <= seq <= end for start, end in gaps):
                    yield f"seq {seq} of {topic}, {data!r}, is lost without a tombstone (there are {gaps})"


def _was_removed(evidence: Evidence, topic: str, seq: int, data: str) -> bool:
    """Whether somebody asked for it to go, or may have."""
    written = evidence.written.get(data)
    for call in evidence.deletes[topic]:
        if call.may_have_happened:
            match = call.request.get("match")
            before = call.request.get("before_seq")
            by_tag = match is None or (written is not None and written.tag == match[2])
            if by_tag and (before is None or seq < before):
                return True
    return topic == "jobs" and (seq in evidence.acked or data in evidence.dead)


def _loss(evidence: Evidence, topic: str, seq: int, data: str, shown: Call, there: dict[int, str]) -> str:
    """Why it must not have been lost; "" if it may. It was there from some moment of the call on that showed it."""
    if evidence.damaged:
        return ""
    durability = evidence.durability(topic)
    written = evidence.written.get(data)
    if durability == "ephemeral":
        return "" if any(at_s > shown.began_s for at_s in evidence.kills) else "the server was not stopped since"
    if durability == "replicated" or (written is not None and written.replicated and topic == written.topic):
        return "it was in the bucket"
    if evidence.may_be_gone(topic, shown):
        direct = written is not None and topic == written.topic and not written.staged
        assert evidence.reigns is not None
        return "the bucket has it" if direct and evidence.reigns.outlived(data, shown) else ""
    powers = [at_s for at_s in evidence.powers if at_s > shown.began_s]
    if durability == "fsync" or (written is not None and written.synced and topic == written.topic):
        return "it was synced"
    if not powers:
        return "the power was not lost since"
    if not evidence.failed_syncs and shown.ended_s < powers[0] - DURABLE_AFTER_S:
        return f"it was {powers[0] - shown.ended_s:.1f} s old when the power was lost"
    # A suffix: of what was known before some power failure, nothing behind it is there.
    seen = evidence.seen[topic, evidence.epoch(topic)]
    behind = [min(call.ended_s for call in seen[other].values()) for other in there if other > seq]
    if all(any(known_s < power_s for known_s in behind) for power_s in powers):
        return "later records that were known at the same time are there"
    return ""


def losses_are_counted(evidence: Evidence) -> Iterator[str]:
    """What was lost to a cap is counted: by no less than the records that are known to have been there.

    What a crash has lost can only be guessed, also where a cap has removed what came before and after it.
    """
    for topic, records in evidence.final.records.items():
        if "cap_records" not in evidence.config(topic):
            continue
        there = {record["$seq"] for record in records}
        lost = [seq for seq in evidence.seen[topic, evidence.epoch(topic)] if seq not in there]
        for gap in evidence.final.tombstones[topic]:
            known = sorted(seq for seq in lost if gap["gap_from"] <= seq <= gap["gap_to"])
            crashed = any(after - before > SKIPPED_MIN for before, after in pairwise(known))
            if gap["reason"] == "cap" and len(known) > gap["missed_estimate"] and not crashed:
                yield f"{len(known)} records of {topic} are lost in {gap}"


def order_is_kept(evidence: Evidence) -> Iterator[str]:
    """What was acknowledged before another write began comes before it; `$ts` never decreases; seqs rise."""
    by_topic: dict[str, list[tuple[float, float, int, int]]] = defaultdict(list)
    for call in evidence.history.of("append"):
        if (
            call.ok
            and not evidence.is_outdated(call)
            and call.topic != "churn"
            and not call.answer["deduped"]
            and not any("unique_key" in record for record in call.request["records"])
            and call.answer.get("seqs")
        ):
            seqs = call.answer["seqs"]
            by_topic[call.topic].append((call.began_s, call.ended_s, seqs[0], seqs[-1]))
            if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
                yield f"a batch in {call.topic} has the seqs {seqs}"
    for topic, appends in by_topic.items():
        ended = sorted((ended_s, last) for _, ended_s, _, last in appends)
        times = [ended_s for ended_s, _ in ended]
        highest: list[int] = []
        for _, last in ended:
            highest.append(max(last, highest[-1] if highest else 0))
        for began_s, _, first, _ in appends:
            at = bisect_left(times, began_s)
            if at and highest[at - 1] >= first:
                yield f"an append to {topic} began at {began_s:.6f} and got seq {first}, after {highest[at - 1]}"
    for topic, records in evidence.final.records.items():
        for before, after in pairwise(records):
            if before["$seq"] >= after["$seq"] or before["$ts"] > after["$ts"]:
                yield f"{topic} has {before} before {after}"


def heads_never_go_back(evidence: Evidence) -> Iterator[str]:
    """A head that was shown is not above one that is shown later."""
    heads: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for call in evidence.history.of("append", "diff", "state"):
        if call.ok and "head_seq" in call.answer and call.topic != "churn" and not evidence.is_outdated(call):
            heads[call.topic].append((call.ended_s, call.began_s, call.answer["head_seq"]))
    for topic, shown in heads.items():
        shown.sort()
        times = [ended_s for ended_s, _, _ in shown]
        highest: list[int] = []
        for _, _, head in shown:
            highest.append(max(head, highest[-1] if highest else 0))
        for _, began_s, head in shown:
            at = bisect_left(times, began_s)
            if at and highest[at - 1] > head:
                yield f"the head of {topic} was {highest[at - 1]} and then, at {began_s:.6f}, {head}"


def readers_miss_nothing(evidence: Evidence) -> Iterator[str]:
    """What a reader has passed without seeing it is not there later: nothing appears below a cursor."""
    for topic, records in evidence.final.records.items():
        if topic == "churn":
            continue
        seqs = [record["$seq"] for record in records]
        for call in evidence.history.of("diff"):
            if call.topic != topic or not call.ok or call.ended_s > evidence.read_s:
                continue
            if evidence.may_be_gone(topic, call):
                # It may have read what a delete had left, and the delete is gone.
                continue
            got = {record["$seq"] for record in call.answer["records"]}
            start, end = call.request["from_seq"], call.answer["next_from_seq"]
            missed = [seq for seq in seqs[bisect_left(seqs, start + 1) : bisect_left(seqs, end + 1)] if seq not in got]
            if missed:
                yield f"a reader of {topic} went from {start} to {end} without {missed[:5]}: {call}"
        yield from _streams_miss_nothing(evidence, topic, seqs)


def _streams_miss_nothing(evidence: Evidence, topic: str, seqs: list[int]) -> Iterator[str]:
    for call in evidence.history.of("stream"):
        if call.topic != topic or not call.answer["records"] or evidence.may_be_gone(topic, call):
            continue
        got = [record["$seq"] for record in call.answer["records"]]
        if got != sorted(set(got)):
            yield f"a stream of {topic} has {got}"
        start = int(call.request["from"].partition("~")[0])
        if got[0] <= start:
            yield f"a stream of {topic} from {start} began with {got[0]}"
        known = set(got)
        missed = [seq for seq in seqs[bisect_left(seqs, start + 1) : bisect_left(seqs, got[-1])] if seq not in known]
        if missed:
            yield f"a stream of {topic} went from {start} to {got[-1]} without {missed[:5]}"


def counters_are_exact(evidence: Evidence) -> Iterator[str]:
    for index, final in enumerate(evidence.finals):
        for topic, state in final.states.items():
            count = len(final.records[topic])
            if state["count"] != count:
                yield f"{topic} counts {state['count']} records and has {count} (reading {index})"
            queue = state.get("queue")
            if queue is not None and queue["ready"] + queue["in_flight"] + queue["delayed"] != count:
                yield f"{topic} has {count} jobs and counts {queue} (reading {index})"
            cap = evidence.config(topic).get("cap_records")
            if isinstance(cap, int) and count > cap:
                yield f"{topic} has {count} records, above its cap {cap} (reading {index})"


def restarts_change_nothing(evidence: Evidence) -> Iterator[str]:
    """Reading everything, after a clean stop, and after a kill, gives the same records."""
    first = evidence.finals[0]
    for index, later in enumerate(evidence.finals[1:], 1):
        for topic, records in first.records.items():
            if evidence.durability(topic) == "ephemeral":
                continue
            now = later.records.get(topic)
            if topic in ("jobs", "dead"):
                # A lease that runs out may move a job to the dead letters in between.
                continue
            if now != records:
                yield f"{topic} had {_brief(records)} and has {_brief(now)} after restart {index}"


def _brief(records: list[dict[str, Any]] | None) -> str:
    if not records:
        return "nothing"
    return f"{len(records)} records, {records[0]['$seq']}–{records[-1]['$seq']}"


def leases_are_exclusive(evidence: Evidence) -> Iterator[str]:
    """While a lease lasts, no other worker gets the job. It lasts from when its claim began, or was extended."""
    by_seq: dict[int, list[Call]] = defaultdict(list)
    for call in evidence.history.of("claim"):
        if call.ok and not evidence.is_outdated(call):
            for job in call.answer["claimed"]:
                by_seq[job["$seq"]].append(call)
    for seq, claims in by_seq.items():
        for index, first in enumerate(claims):
            for second in claims[index + 1 :]:
                if all(_overlaps(evidence, seq, *pair) for pair in ((first, second), (second, first))):
                    yield f"job {seq} was leased by {first} and by {second}"


def _overlaps(evidence: Evidence, seq: int, earlier: Call, later: Call) -> bool:
    """Whether, if `earlier` was granted before `later`, its lease certainly still stood when that was."""
    lease_ms = earlier.request.get("lease_ms", evidence.plan.topic("jobs").config["lease_ms"])
    return later.ended_s < earlier.began_s + lease_ms / 1000 and not _was_released(
        evidence, seq, earlier, later.ended_s
    )


def _was_released(evidence: Evidence, seq: int, claim: Call, before_s: float) -> bool:
    lasting = evidence.plan.topic("jobs").config["leases_durable"]
    durability = evidence.durability("jobs")
    losses = [] if lasting else evidence.kills
    if lasting and durability != "replicated":
        losses = [*evidence.replaced, *(evidence.powers if durability == "disk" else [])]
    if any(claim.began_s <= at_s <= before_s for at_s in losses):
        return True
    # The time that passes while the server is down is the clock's.
    if all(any(claim.began_s <= at_s <= before_s for at_s in times) for times in (evidence.kills, evidence.steps)):
        return True
    return any(claim.began_s <= at_s <= before_s for at_s in evidence.released[claim.client, seq])


def leases_and_delays_end(evidence: Evidence) -> Iterator[str]:
    """Whatever the clock did: when nobody has claimed or added a job for long enough, all that are there are ready."""
    for index, final in enumerate(evidence.finals):
        if final.rested.get("in_flight") or final.rested.get("delayed"):
            yield f"after the longest lease and delay the jobs are {final.rested} (reading {index})"


def acked_jobs_stay_away(evidence: Evidence) -> Iterator[str]:
    """A job whose ack was answered is not handed out again."""
    acked: dict[int, Call] = {}
    for call in evidence.history.of("ack"):
        if call.ok:
            for seq in call.request["seqs"]:
                if seq not in call.answer["skipped"]:
                    acked.setdefault(seq, call)
    lossy = evidence.durability("jobs") not in ("fsync", "replicated")
    acked = {seq: ack for seq, ack in acked.items() if not evidence.may_be_gone("jobs", ack)}
    for call in evidence.history.of("claim"):
        for job in call.answer.get("claimed", ()) if call.ok and not evidence.is_outdated(call) else ():
            ack = acked.get(job["$seq"])
            if ack is None or call.began_s <= ack.ended_s:
                continue
            if not (lossy and any(at_s > ack.began_s for at_s in evidence.powers)):
                yield f"job {job['$seq']} was acked at {ack.ended_s:.6f} and handed out again: {call}"
    records = evidence.final.records.get("jobs", [])
    for seq in sorted({record["$seq"] for record in records} & acked.keys()):
        if not (lossy and any(at_s > acked[seq].began_s for at_s in evidence.powers)):
            yield f"job {seq} was acked at {acked[seq].ended_s:.6f} and is still there"


def unique_jobs_are_alone(evidence: Evidence) -> Iterator[str]:
    """There is one job at a time for each unique key."""
    for index, final in enumerate(evidence.finals):
        jobs = [evidence.written.get(record["data"]) for record in final.records.get("jobs", ())]
        for key, count in Counter(job.unique_key for job in jobs if job and job.unique_key).items():
            if count > 1:
                yield f"there are {count} jobs with the unique key {key!r} (reading {index})"


def repeats_are_answered_alike(evidence: Evidence) -> Iterator[str]:
    """A repeated request names the records of the first one, also those that had been there before it."""
    first: dict[tuple[str, str], Call] = {}
    for call in evidence.history.of("append"):
        key = call.request.get("idempotency_key")
        if key is None or not call.ok or call.topic == "churn" or evidence.is_outdated(call):
            continue
        before = first.setdefault((call.topic, key), call)
        datas = [record["data"] for record in call.request["records"]]
        if call.answer["seqs"] != before.answer["seqs"] and not any(
            _may_be_written_again(evidence, call.topic, data) for data in datas
        ):
            yield f"one key was answered in two ways: {before} and {call}"


def jobs_are_in_one_place(evidence: Evidence) -> Iterator[str]:
    """A job is in its queue or among the dead letters, not in both."""
    for index, final in enumerate(evidence.finals):
        jobs = {record["data"] for record in final.records.get("jobs", ())}
        for record in final.records.get("dead", ()):
            if record["data"] in jobs:
                yield f"{record['data']!r} is a job and a dead letter (reading {index})"


def groups_get_nothing_again(evidence: Evidence) -> Iterator[str]:
    """What a group has acked is not delivered to it again."""
    lossy = evidence.durability("shared") not in ("fsync", "replicated")
    acked: dict[int, Call] = {}
    for ack in evidence.history.of("group_ack"):
        if (
            ack.ok
            and not evidence.may_be_gone("shared", ack)
            and not (lossy and any(at_s > ack.began_s for at_s in evidence.powers))
        ):
            for offset in range(ack.request["from_offset"], ack.request["upto_offset"] + 1):
                first = acked.setdefault(offset, ack)
                if ack.ended_s < first.ended_s:
                    acked[offset] = ack
    for call in evidence.history.of("consume"):
        for message in call.answer.get("messages", ()) if call.ok and not evidence.is_outdated(call) else ():
            ack = acked.get(message["offset"])
            if ack is not None and ack.ended_s < call.began_s:
                yield f"offset {message['offset']} was acked at {ack.ended_s:.6f} and delivered again: {call}"


def transactions_are_whole(evidence: Evidence) -> Iterator[str]:
    """A commit is in all topics or in none; one that was answered is in all, one that was aborted in none."""
    parts: dict[tuple[str, int], list[str]] = defaultdict(list)
    outcome: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for number, call in _versions(evidence):
        if call.verb == "stage":
            parts[call.client, number] += [
                record["data"] for record in call.request["records"] if record["data"] not in parts[call.client, number]
            ]
        else:
            outcome[call.client, number].append(call)
    places = {topic: {record["data"] for record in records} for topic, records in evidence.final.records.items()}
    for (client, version), datas in parts.items():
        there = [data for data in datas if data in places[evidence.written[data].topic]]
        removed = [
            data
            for data in datas
            if data not in there
            and any(
                _was_removed(evidence, evidence.written[data].topic, seq, data)
                for seq in evidence.seqs_of(evidence.written[data].topic, data) or [1]
            )
        ]
        calls = outcome[client, version]
        committed = any(call.verb == "commit" and call.ok for call in calls)
        missing = len(datas) - len(there) - len(removed)
        if not there and _may_be_uncommitted(evidence, datas, calls):
            continue
        if committed and missing:
            yield f"version {version} of {client} is committed, and {missing} of {len(datas)} records are not there"
        elif there and missing:
            yield f"version {version} of {client} is there in part: {len(there)} of {len(datas)} records"
        elif there and not any(call.verb == "commit" and evidence.may_be_kept(call) for call in calls):
            yield f"version {version} of {client} was never committed, and {there[:3]} are there"


def _may_be_uncommitted(evidence: Evidence, datas: list[str], calls: list[Call]) -> bool:
    """Whether the commit may be gone, with a server that was replaced."""
    topics = {evidence.written[data].topic for data in datas}
    if any(evidence.durability(topic) == "replicated" for topic in topics):
        return False
    return all(evidence.may_be_gone(topic, call) for call in calls if call.ok for topic in topics)


def _versions(evidence: Evidence) -> Iterator[tuple[int, Call]]:
    """Which version a call belongs to: a client has one at a time, and each begins with part 0 of stage s0."""
    current: dict[str, tuple[int, str]] = {}
    for call in evidence.history.of("stage", "commit", "abort"):
        number, first = current.get(call.client, (0, ""))
        if call.verb == "stage" and call.request["stage"] == "s0" and call.request["part"] == 0:
            data = call.request["records"][0]["data"]
            if data != first:
                number, first = number + 1, data
        current[call.client] = number, first
        yield number, call


def several_are_whole(evidence: Evidence) -> Iterator[str]:
    """An append to several topics is in all of them or in none."""
    places = {topic: {record["data"] for record in records} for topic, records in evidence.final.records.items()}
    done: set[str] = set()
    for call in evidence.history.of("multi"):
        pairs = [
            (topic, record["data"]) for topic, part in call.request["topics"].items() for record in part["records"]
        ]
        if pairs[0][1] in done:
            continue
        done.add(pairs[0][1])
        there = [data in places[topic] for topic, data in pairs]
        removed = [
            any(_was_removed(evidence, topic, seq, data) for seq in evidence.seqs_of(topic, data) or [1])
            for topic, data in pairs
        ]
        if any(there) and not all(one or other for one, other in zip(there, removed, strict=True)):
            yield f"an append to several topics is there in part: {list(zip(pairs, there, strict=True))}"


def copies_are_complete(evidence: Evidence) -> Iterator[str]:
    """In the end the destination of a router has every record of its source once, in the order of the source."""
    final = evidence.final
    if not final.router or evidence.durability("routed") == "ephemeral":
        return
    copies = [record["data"] for record in final.records["copies"]]
    source = [record["data"] for record in final.records["routed"]]
    there = set(copies)
    missing = [data for data in source if data not in there]
    if missing:
        yield f"{len(missing)} records of the source were not copied: {missing[:5]}"
    positions = {data: number for number, data in enumerate(source)}
    order = [positions[data] for data in copies if data in positions]
    if order != sorted(order):
        yield "copies are not in the order of their source"


def routers_catch_up(evidence: Evidence) -> Iterator[str]:
    """With nothing left to copy, a router shows no lag and no error, whatever its source has lost."""
    for index, final in enumerate(evidence.finals):
        if final.router and (final.router["lag"] or final.router["last_error"]):
            yield f"the router rests with {final.router} (reading {index})"


CHECKERS: tuple[Checker, ...] = (
    no_seq_twice,
    nothing_is_invented,
    nothing_is_written_twice,
    nothing_acknowledged_is_lost,
    losses_are_counted,
    order_is_kept,
    heads_never_go_back,
    readers_miss_nothing,
    counters_are_exact,
    restarts_change_nothing,
    leases_are_exclusive,
    leases_and_delays_end,
    acked_jobs_stay_away,
    jobs_are_in_one_place,
    unique_jobs_are_alone,
    repeats_are_answered_alike,
    groups_get_nothing_again,
    transactions_are_whole,
    several_are_whole,
    copies_are_complete,
    routers_catch_up,
)
# What holds even when a write was put in a wrong place, and the damage repaired.
CHECKERS_OF_DAMAGE: tuple[Checker, ...] = (
    no_seq_twice,
    nothing_is_invented,
    nothing_acknowledged_is_lost,
    order_is_kept,
    heads_never_go_back,
    counters_are_exact,
)


def check(world: Judged) -> list[str]:
    """Everything that does not hold, each with the name of its checker.

    A server may give up when the disk fails under it while it starts; only those errors are not its own.
    """
    evidence = Evidence(world)
    checkers, allowed = (CHECKERS_OF_DAMAGE, DAMAGE_ERRORS) if evidence.damaged else (CHECKERS, DISK_ERRORS)
    if evidence.reigns is not None:
        checkers, allowed = (*CHECKERS, *CHECKERS_OF_BUCKET), BUCKET_ERRORS
    found = [f"{checker.__name__}: {sentence}" for checker in checkers for sentence in checker(evidence)]
    found += world.mistakes
    found += [
        f"the server gave up: {event.detail}"
        for event in evidence.history.events
        if event.kind == "end" and " " in event.detail and not any(name in event.detail for name in allowed)
    ]
    return found
