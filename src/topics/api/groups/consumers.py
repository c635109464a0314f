"""Consumer groups over HTTP: consume, ack, latest offsets, the progress of groups, and reset."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.groups.messages import render
from topics.api.groups.tokens import Tokens, TokenUser
from topics.api.replies import encode
from topics.api.routes import Handler, QueryField, Route
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, published
from topics.engine.groups.consume import Reading, consume
from topics.engine.groups.verbs import Acked, Consuming, Standing
from topics.engine.log.topic import Topic
from topics.model.requests.groups import (
    ConsumeRequest,
    GroupAckRequest,
    LatestOffsetsRequest,
    ResetRequest,
    check_ack,
    check_latest,
    offset_of,
    partition_name,
    split_partition,
    wants_all,
)

STANDINGS_MAX = 10_000


class MessageReply(msgspec.Struct):
    topic_id: str
    partition_id: int
    offset: int
    payload: str
    key: str | None
    timestamp_ms: int
    user: str
    op: str


class PartitionOffset(msgspec.Struct):
    partition_id: int
    next_offset: int


class ConsumeReply(msgspec.Struct):
    """For all partitions, `partitions` holds the next offset of each; `next_offset` is that of the first."""

    messages: list[MessageReply]
    next_offset: int
    has_more: bool
    partitions: list[PartitionOffset] | UnsetType = UNSET


class OffsetRange(msgspec.Struct):
    from_offset: int
    to_offset: int


class AckReply(msgspec.Struct):
    """`acknowledged_offset` is the committed offset, null if there is none.

    If a range was acked and something below it is not, `held_back` lists those ranges (at most 100).
    """

    success: bool
    acknowledged_offset: int | None
    committed_offset: int | UnsetType | None = UNSET
    held_back: list[OffsetRange] | UnsetType = UNSET


class LatestOffset(msgspec.Struct):
    topic_id: str
    partition_id: int
    next_offset: int
    last_offset: int | None


class LatestOffsetsReply(msgspec.Struct):
    offsets: list[LatestOffset]


class GroupStanding(msgspec.Struct):
    topic_id: str
    partition_id: int
    group_id: str
    committed_offset: int | None
    next_offset: int
    last_offset: int | None
    lag: int
    open_claims: int
    expired_claims: int
    acked_ahead: int


class GroupsReply(msgspec.Struct):
    groups: list[GroupStanding]


class ResetReply(msgspec.Struct):
    success: bool
    partitions: list[PartitionOffset]


class Groups:
    def __init__(self, consuming: Consuming, runner: Runner, tokens: Tokens) -> None:
        self._consuming = consuming
        self._runner = runner
        self._tokens = tokens

    def routes(self) -> list[Route]:
        under = "/v1/api/topics"

        def row(path: str, handler: Handler, summary: str, reply: Any, body: Any, scope: Scope) -> Route:
            checks_slot = body in (ConsumeRequest, GroupAckRequest)
            return Route(
                method="POST" if body is not None else "GET",
                path=under + path,
                handler=handler,
                summary=summary,
                scopes=scope,
                body=body,
                # Consuming without a group changes nothing; with one, the engine refuses it.
                changes=body in (GroupAckRequest, ResetRequest),
                checks_slot=checks_slot,
                query=() if body is not None else _LIST_QUERY,
                replies={200: reply},
                errors=("topic_not_found",),
                family=self._tokens,
            )

        read, admin = Scope.READ, Scope.ADMIN
        return [
            row("/consume", self.consume, "Messages for a consumer.", ConsumeReply, ConsumeRequest, read),
            row("/ack", self.ack, "Commit a group's progress.", AckReply, GroupAckRequest, read),
            row(
                "/latest-offsets",
                self.latest,
                "Latest offsets of partitions.",
                LatestOffsetsReply,
                LatestOffsetsRequest,
                read,
            ),
            row("/groups", self.list, "The progress of groups.", GroupsReply, None, read),
            row("/groups/reset", self.reset, "Set a group's position, or remove it.", ResetReply, ResetRequest, admin),
        ]

    # --- consume ---

    def consume(self, call: Call) -> Steps[None]:
        """The reply is sent when the claims of a group are in the log."""
        principal = call.principal
        reading = Reading(call.params, principal.subject if isinstance(principal, TokenUser) else "")

        def find() -> list[tuple[int, Topic]]:
            partitions = self._partitions(call, reading.topic_id, call.params.partition_id, reading.every)
            call.check_slot()
            return partitions

        batch = yield from consume(self._consuming, self._runner, reading, find)
        rendered: list[bytes] = []
        for number, portion in batch.portions:
            rendered += render(reading.topic_id, number, portion.runs)
        every = b""
        if reading.every:
            every = b',"partitions":' + encode([PartitionOffset(*pair) for pair in batch.next_offsets])
        body = b'{"messages":[%b],"next_offset":%d,"has_more":%b%b}' % (
            b",".join(rendered),
            batch.next_offsets[0][1],
            b"true" if batch.has_more else b"false",
            every,
        )
        for claim in batch.claims:
            yield from published(claim)
        call.reply(200, body)

    # --- ack ---

    def ack(self, call: Call) -> None:
        params: GroupAckRequest = call.params
        upto_seq, from_seq = check_ack(params)
        ((_, topic),) = self._partitions(call, params.topic_id, params.partition_id, every=False)
        call.check_slot()
        self._consuming.ack(topic, params.group_id, upto_seq, from_seq).answer(answering(call, self._acked))

    def _acked(self, call: Call, change: PendingChange) -> None:
        acked: Acked = change.result
        reply = AckReply(success=True, acknowledged_offset=offset_of(acked.committed))
        if acked.held_back:
            reply.committed_offset = reply.acknowledged_offset
            reply.held_back = [OffsetRange(seqs.from_seq - 1, seqs.to_seq - 1) for seqs in acked.held_back]
        call.reply(200, encode(reply))

    # --- offsets, progress, reset ---

    def latest(self, call: Call) -> None:
        params: LatestOffsetsRequest = call.params
        check_latest(params)
        offsets: list[LatestOffset] = []
        for asked in params.partitions:
            ((number, topic),) = self._partitions(call, asked.topic_id, asked.partition_id, every=False)
            offsets.append(LatestOffset(asked.topic_id, number, topic.head_seq, offset_of(topic.head_seq)))
        call.reply(200, encode(LatestOffsetsReply(offsets)))

    def reset(self, call: Call) -> Steps[None]:
        params: ResetRequest = call.params
        every = wants_all(params.partition_id, params.all_partitions)
        places = yield from self._consuming.reset_all(
            params, lambda: self._partitions(call, params.topic_id, params.partition_id, every)
        )
        where = [PartitionOffset(place.partition, place.next_seq - 1) for place in places]
        call.reply(200, encode(ResetReply(success=True, partitions=where)))

    def _partitions(
        self, call: Call, topic_id: str, partition: int | str | None, every: bool
    ) -> list[tuple[int, Topic]]:
        """The requested partitions, if the principal may use their topics."""
        if every:
            call.principal.check_name(topic_id, "topic_id")
            return self._consuming.partitions(topic_id)
        number = partition if isinstance(partition, int) else 0
        call.principal.check_name(partition_name(topic_id, number), "topic_id")
        return [(number, self._consuming.partition(topic_id, number))]

    def list(self, call: Call) -> Steps[None]:
        topic_id, group_id = call.text("topic_id"), call.text("group_id")
        prefixes = call.principal.prefixes

        def wanted(name: str, group: str) -> bool:
            if not name.startswith(prefixes) or (group_id is not None and group != group_id):
                return False
            return topic_id is None or split_partition(name)[0] == topic_id

        limit = max(1, min(STANDINGS_MAX, call.integer("limit", STANDINGS_MAX)))
        found = yield from self._consuming.standings(limit, wanted)
        call.reply(200, encode(GroupsReply([_standing(standing) for standing in found])))


_LIST_QUERY = (
    QueryField("topic_id", str, "Only this topic's groups."),
    QueryField("group_id", str, "Only this group."),
    QueryField("limit", int, "Entries in the reply, at most 10000.", default=STANDINGS_MAX),
)


def _standing(standing: Standing) -> GroupStanding:
    topic_id, number = split_partition(standing.topic)
    return GroupStanding(
        topic_id=topic_id,
        partition_id=number,
        group_id=standing.group,
        committed_offset=offset_of(standing.committed),
        next_offset=standing.position,
        last_offset=offset_of(standing.head_seq),
        lag=standing.lag,
        open_claims=standing.open_claims,
        expired_claims=standing.expired_claims,
        acked_ahead=standing.acked_ahead,
    )
