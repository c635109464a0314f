"""Consumer groups: log in, consume, commit, and list how far groups are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.messages import (
    Committed,
    Consumed,
    GroupList,
    GroupStanding,
    LatestOffset,
    LatestOffsets,
    Partition,
    Reset,
    Start,
    start_json,
)
from topics.client.request import Request, body_of, with_query
from topics.client.tokens import LoggedIn

T = TypeVar("T")
_consumed = msgspec.json.Decoder(Consumed)
_committed = msgspec.json.Decoder(Committed)
_latest = msgspec.json.Decoder(LatestOffsets)
_groups = msgspec.json.Decoder(GroupList)
_reset = msgspec.json.Decoder(Reset)


class AsyncGroups:
    _transport: AsyncTransport

    async def login(self, user: str | None = None, password: str | None = None) -> LoggedIn:
        """Get tokens for a user, by default for the user of the client. The calls below do this by themselves."""
        tokens = self._transport.tokens
        if user is not None or password is not None:
            tokens.know(user, password)
        logged_in = await self._transport.call(tokens.login())
        tokens.take(logged_in)
        return logged_in

    async def consume(
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
        `"all"`. With `timeout_s` the reply waits for a message: 80% of that time, and at most 20 s. `member` names
        this consumer, shown with what it holds.
        """
        body = body_of(
            topic_id=topic,
            group_id=group,
            partition_id=partition,
            start=start_json(start),
            limit=limit,
            timeout_seconds=timeout_s,
            member=member,
        )
        # With a group, a batch whose reply is lost is delivered again later; a retry would get the next one.
        return await self._post("/consume", body, _consumed, safe=group is None, wait_ms=int(timeout_s * 1000))

    async def commit(
        self, topic: str, group: str, upto_offset: int, partition: int = 0, *, from_offset: int | None = None
    ) -> Committed:
        """Commit everything up to and including this offset, whichever consumer received it.

        With `from_offset`, only that range: the committed offset moves once everything below it is done as well.
        """
        body = body_of(
            topic_id=topic,
            group_id=group,
            upto_offset=upto_offset,
            partition_id=partition,
            from_offset=from_offset,
        )
        return await self._post("/ack", body, _committed)

    async def commit_batch(self, topic: str, group: str, batch: Consumed) -> dict[int, Committed]:
        """Commit the messages of this batch and nothing else: messages of other consumers stay theirs."""
        return {
            partition: await self.commit(topic, group, done.to_offset, partition, from_offset=done.from_offset)
            for partition, done in batch.ranges().items()
        }

    async def groups(
        self, topic: str | None = None, group: str | None = None, *, limit: int | None = None
    ) -> list[GroupStanding]:
        """How far groups are, in each partition that they have read."""
        path = with_query("/v1/api/topics/groups", {"topic_id": topic, "group_id": group, "limit": limit})
        request = Request(method="GET", path=path, decoder=_groups, safe=True, by_token=True)
        return (await self._transport.call(request)).groups

    async def reset_group(
        self,
        topic: str,
        group: str,
        start: Start | None = None,
        *,
        partition: Partition = "all",
        forget: bool = False,
        dry_run: bool = False,
    ) -> dict[int, int]:
        """Put a group elsewhere, or forget it; the next offset of each partition. Needs role `dba` or `system`.

        A dry run changes nothing.
        """
        body = body_of(
            topic_id=topic,
            group_id=group,
            start=start_json(start),
            partition_id=partition,
            forget=forget or None,
            dry_run=dry_run or None,
        )
        reset = await self._post("/groups/reset", body, _reset)
        return {place.partition: place.next_offset for place in reset.partitions}

    async def latest_offsets(self, partitions: str | Iterable[tuple[str, int]]) -> list[LatestOffset]:
        """The ends of partitions: of those given, or of partition 0 of one topic."""
        asked = [(partitions, 0)] if isinstance(partitions, str) else partitions
        body = body_of(partitions=[{"topic_id": topic, "partition_id": number} for topic, number in asked])
        return (await self._post("/latest-offsets", body, _latest)).offsets

    async def _post(
        self, verb: str, body: bytes, decoder: msgspec.json.Decoder[T], *, safe: bool = True, wait_ms: int = 0
    ) -> T:
        return await self._transport.call(
            Request(
                method="POST",
                path=f"/v1/api/topics{verb}",
                decoder=decoder,
                body=body,
                safe=safe,
                wait_ms=wait_ms,
                by_token=True,
            )
        )
