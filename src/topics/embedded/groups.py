"""Consumer groups: consume, commit, and list how far groups are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from topics.api.groups.messages import render
from topics.client.messages import (
    Committed,
    Consumed,
    GroupStanding,
    LatestOffset,
    Message,
    NextOffset,
    OffsetRange,
    Partition,
    Start,
    start_json,
)
from topics.embedded.host import Host
from topics.embedded.requests import request_of
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps, published
from topics.engine.groups.consume import ConsumedBatch, Reading, consume
from topics.engine.groups.verbs import Acked, Standing
from topics.engine.log.topic import Topic
from topics.model.requests.groups import (
    ConsumeRequest,
    GroupAckRequest,
    LatestOffsetsRequest,
    ResetRequest,
    check_ack,
    check_latest,
    offset_of,
    split_partition,
    wants_all,
)

STANDINGS_MAX = 10_000
_messages = msgspec.json.Decoder(list[Message])


class Groups:
    _host: Host

    def consume(
        self,
        topic: str,
        group: str | None = None,
        *,
        partition: Partition = 0,
        start: Start | None = None,
        limit: int = 100,
        timeout_s: float = 0,
        member: str | None = None,
    ) -> Consumed:
        """A batch of messages. With a group they belong to this consumer until it commits them or their lease expires.

        `start` applies to a group that has committed nothing yet, and to reading without a group. `partition` may be
        `"all"`. With `timeout_s` the call waits for a message: 80% of that time, and at most 20 s. `member` names
        this consumer, shown with what it holds.
        """
        request = request_of(
            ConsumeRequest,
            topic_id=topic,
            group_id=group,
            partition_id=partition,
            start=start_json(start),
            limit=limit,
            timeout_seconds=timeout_s,
            member=member,
        )
        host = self._host
        reading = host.look(lambda: Reading(request))
        batch, rendered = host.run(self._consume(reading, lambda: self._partitions(topic, partition)))
        return Consumed(
            messages=_messages.decode(b"[%b]" % b",".join(rendered)),
            next_offset=batch.next_offsets[0][1],
            has_more=batch.has_more,
            partitions=[NextOffset(partition=number, next_offset=offset) for number, offset in batch.next_offsets]
            if reading.every
            else [],
        )

    def _consume(
        self, reading: Reading, find: Callable[[], list[tuple[int, Topic]]]
    ) -> Steps[tuple[ConsumedBatch, list[bytes]]]:
        """A batch whose claims are in the log, and its messages."""
        batch = yield from consume(self._host.consuming, self._host.runner, reading, find)
        rendered: list[bytes] = []
        for number, portion in batch.portions:
            rendered += render(reading.topic_id, number, portion.runs)
        for claim in batch.claims:
            yield from published(claim)
        return batch, rendered

    def commit(
        self, topic: str, group: str, upto_offset: int, partition: int = 0, *, from_offset: int | None = None
    ) -> Committed:
        """Commit everything up to and including this offset, whichever consumer received it.

        With `from_offset`, only that range: the committed offset moves once everything below it is done as well.
        """
        request = request_of(
            GroupAckRequest,
            topic_id=topic,
            group_id=group,
            upto_offset=upto_offset,
            partition_id=partition,
            from_offset=from_offset,
        )
        host = self._host

        def ack() -> PendingChange:
            upto_seq, from_seq = check_ack(request)
            return host.consuming.ack(host.consuming.partition(topic, partition), group, upto_seq, from_seq)

        acked: Acked = host.commit(ack).result
        committed = offset_of(acked.committed)
        held_back = [OffsetRange(seqs.from_seq - 1, seqs.to_seq - 1) for seqs in acked.held_back]
        return Committed(
            success=True,
            acknowledged_offset=committed,
            committed_offset=committed if held_back else None,
            held_back=held_back,
        )

    def commit_batch(self, topic: str, group: str, batch: Consumed) -> dict[int, Committed]:
        """Commit the messages of this batch and nothing else: messages of other consumers stay theirs."""
        return {
            partition: self.commit(topic, group, done.to_offset, partition, from_offset=done.from_offset)
            for partition, done in batch.ranges().items()
        }

    def groups(
        self, topic: str | None = None, group: str | None = None, *, limit: int | None = None
    ) -> list[GroupStanding]:
        """How far groups are, in each partition that they have read."""

        def wanted(name: str, group_id: str) -> bool:
            return group in (None, group_id) and (topic is None or split_partition(name)[0] == topic)

        most = STANDINGS_MAX if limit is None else max(1, min(STANDINGS_MAX, limit))
        return [_standing(found) for found in self._host.run(self._host.consuming.standings(most, wanted))]

    def reset_group(
        self,
        topic: str,
        group: str,
        start: Start | None = None,
        *,
        partition: Partition = "all",
        forget: bool = False,
        dry_run: bool = False,
    ) -> dict[int, int]:
        """Put a group elsewhere, or forget it; the next offset of each partition. A dry run changes nothing."""
        request = request_of(
            ResetRequest,
            topic_id=topic,
            group_id=group,
            start=start_json(start),
            partition_id=partition,
            forget=forget,
            dry_run=dry_run,
        )
        places = self._host.run(self._host.consuming.reset_all(request, lambda: self._partitions(topic, partition)))
        return {place.partition: place.next_seq - 1 for place in places}

    def latest_offsets(self, partitions: str | Iterable[tuple[str, int]]) -> list[LatestOffset]:
        """The ends of partitions: of those given, or of partition 0 of one topic."""
        asked = [(partitions, 0)] if isinstance(partitions, str) else partitions
        named = [{"topic_id": topic, "partition_id": number} for topic, number in asked]
        request = request_of(LatestOffsetsRequest, partitions=named)

        def find() -> list[LatestOffset]:
            check_latest(request)
            offsets: list[LatestOffset] = []
            for each in request.partitions:
                number = each.partition_id or 0
                head_seq = self._host.consuming.partition(each.topic_id, number).head_seq
                offsets.append(
                    LatestOffset(
                        topic=each.topic_id, partition=number, next_offset=head_seq, last_offset=offset_of(head_seq)
                    )
                )
            return offsets

        return self._host.look(find)

    def _partitions(self, topic: str, partition: Partition) -> list[tuple[int, Topic]]:
        if wants_all(partition, None):
            return self._host.consuming.partitions(topic)
        assert isinstance(partition, int)
        return [(partition, self._host.consuming.partition(topic, partition))]


def _standing(standing: Standing) -> GroupStanding:
    topic, number = split_partition(standing.topic)
    return GroupStanding(
        topic=topic,
        partition=number,
        group=standing.group,
        committed_offset=offset_of(standing.committed),
        next_offset=standing.position,
        last_offset=offset_of(standing.head_seq),
        lag=standing.lag,
        open_claims=standing.open_claims,
        expired_claims=standing.expired_claims,
        acked_ahead=standing.acked_ahead,
    )
