"""Consumer groups by API key: how far they are, what is claimed, and putting one elsewhere, with a preview."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import page_params, page_query
from topics.api.replies import encode, performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance
from topics.engine.core.waiting.runner import Steps
from topics.engine.groups.verbs import Consuming, GroupState
from topics.engine.log.topic import Topic
from topics.model.cursors import page_cursor, place_of
from topics.model.requests.groups import GroupResetRequest, offset_of, partition_name, split_partition


class GroupClaimItem(msgspec.Struct):
    """`member` is the consumer that holds the range: the name it gave, or its user; null if it has neither."""

    from_offset: int
    to_offset: int
    deadline: int
    member: str | None


class GroupItem(msgspec.Struct):
    """`claims` lists what consumers hold now, at most 100 ranges."""

    topic: str
    partition: int
    group: str
    committed_offset: int | None
    next_offset: int
    last_offset: int | None
    lag: int
    open_claims: int
    expired_claims: int
    acked_ahead: int
    claims: list[GroupClaimItem]


class GroupList(msgspec.Struct):
    groups: list[GroupItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class ResetItem(msgspec.Struct):
    """`lag`: how many records the group has left to read from there."""

    partition: int
    offset_before: int
    next_offset: int
    lag_before: int
    lag: int


class GroupResetReply(msgspec.Struct):
    topic: str
    group: str
    partitions: list[ResetItem]
    dry_run: bool
    performance: Performance


class GroupPlace(msgspec.Struct):
    """The place in a list of groups."""

    name: str
    group: str


class KeyedGroups:
    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/groups",
                handler=self.show,
                summary="Consumer groups by topic and partition: progress, lag, claims.",
                scopes=Scope.READ,
                query=(
                    QueryField("topic", str, "Only this topic's groups."),
                    QueryField("group", str, "Only this group."),
                    QueryField("lag_min", int, "Only groups with at least this lag, in records.", default=0),
                    *page_query("Groups"),
                ),
                replies={200: GroupList},
            ),
            Route(
                method="POST",
                path="/v0/groups/reset",
                handler=self.reset,
                summary="Put a group elsewhere, or forget it; a dry run tells what that would do.",
                scopes=Scope.ADMIN,
                body=GroupResetRequest,
                replies={200: GroupResetReply},
                errors=("topic_not_found", "throttled"),
            ),
        ]

    def show(self, call: Call) -> Steps[None]:
        topic, group, (_, cursor, page_size) = call.text("topic"), call.text("group"), page_params(call)
        place = GroupPlace("", "") if cursor is None else place_of(cursor, GroupPlace)
        prefixes = call.principal.prefixes

        def wanted(name: str, group_id: str) -> bool:
            return (
                name.startswith(prefixes)
                and group in (None, group_id)
                and (topic is None or split_partition(name)[0] == topic)
            )

        lag_min = call.integer("lag_min", 0)
        found = yield from self._consuming.groups_after((place.name, place.group), page_size + 1, wanted, lag_min)
        shown = found[:page_size]
        reply = GroupList(groups=[_item(state) for state in shown], performance=performance(call))
        if len(found) > page_size:
            last = shown[-1].standing
            reply.next_cursor = page_cursor(GroupPlace(last.topic, last.group))
        call.reply(200, encode(reply))

    def reset(self, call: Call) -> Steps[None]:
        params: GroupResetRequest = call.params
        places = yield from self._consuming.reset_all(params.plain(), lambda: self._partitions(call, params))
        reply = GroupResetReply(
            topic=params.topic,
            group=params.group,
            partitions=[
                ResetItem(place.partition, place.seq_before - 1, place.next_seq - 1, place.lag_before, place.lag)
                for place in places
            ],
            dry_run=bool(params.dry_run),
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def _partitions(self, call: Call, params: GroupResetRequest) -> list[tuple[int, Topic]]:
        if params.partition is None:
            call.principal.check_name(params.topic, "topic")
            return self._consuming.partitions(params.topic)
        call.principal.check_name(partition_name(params.topic, params.partition), "topic")
        return [(params.partition, self._consuming.partition(params.topic, params.partition))]


def _item(state: GroupState) -> GroupItem:
    standing = state.standing
    topic, number = split_partition(standing.topic)
    return GroupItem(
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
        claims=[
            GroupClaimItem(claim.from_seq - 1, claim.to_seq - 1, claim.deadline, claim.member or None)
            for claim in state.claims
        ],
    )
