"""Decided and not yet published: each reservation belongs to the change that made it.

    submit ─▶ take: seqs and bytes of topics, names of topics that are created, and anything else by a key
                │
    published, or forgotten after a failed write ─▶ released, by the change and nothing else

One table has everything that is busy, and with which change:

    ("topic", name)            created, configured or dropped
    ("writers", topic id)      a commit prepares records for the topic
    ("seqs", topic id)         more seqs are being reserved
    ("key", topic id, digest)  a write with this idempotency key
    …                          a feature's own, see its verbs

Reservations that come in thousands are members of one key, in bulk:

    ("unique keys", topic id)  digests of the unique keys of jobs
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING

from topics.engine.core.pending import Busy, PendingChange

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic

# What is busy: its kind, and which one of that kind.
Key = tuple[Hashable, ...]


class InFlight:
    """Owned by the commit log; verbs query it."""

    def __init__(self) -> None:
        self.busy: dict[Key, PendingChange] = {}
        # By how much all topics together will grow, and how many more there will be.
        self.bytes = 0
        self.topics = 0
        self.members: dict[Key, dict[bytes, PendingChange]] = {}
        self._made: dict[PendingChange, int] = {}

    def with_what(self, key: Key) -> PendingChange | None:
        """The change that this is busy with."""
        return self.busy.get(key)

    def check(self, *keys: Key) -> None:
        """Raises Busy with the change that one of these is busy with."""
        for key in keys:
            change = self.busy.get(key)
            if change is not None:
                raise Busy(change)

    def hold(self, change: PendingChange, *keys: Key) -> PendingChange:
        """Until it is done, these are busy with this change, and after it with what they were busy with before."""
        if not change.done:
            change.owner = self
            if change.keys is None:
                change.keys = {}
            for key in keys:
                before = self.busy.get(key)
                if before is not change:
                    change.keys[key] = before
                    self.busy[key] = change
        return change

    def check_members(self, key: Key, members: Collection[bytes]) -> None:
        """Raises Busy with the change that holds one of these."""
        held = self.members.get(key)
        if held is not None and not held.keys().isdisjoint(members):
            raise Busy(next(held[member] for member in members if member in held))

    def hold_members(self, change: PendingChange, key: Key, members: Collection[bytes]) -> None:
        """Until the change is done, it holds these, which no other change holds."""
        self.hold(change)
        change.members = (*change.members, (key, members))
        self.members.setdefault(key, {}).update(dict.fromkeys(members, change))

    def reserve(
        self, change: PendingChange, topic: Topic | None, seqs: int, records: int, size: int, grows: int
    ) -> None:
        """Seqs and bytes. A topic that is not created yet has no count: until then its name is busy."""
        change.reserved += ((topic, seqs, records, size, grows),)
        self.bytes += grows
        if topic is not None:
            topic.pending_seqs += seqs
            topic.pending_count += records
            topic.pending_bytes += size

    def make(self, change: PendingChange, names: tuple[str, ...]) -> None:
        """Topics of these names will be created."""
        self._made[change] = len(names)
        self.topics += len(names)
        self.hold(change, *(("topic", name) for name in names))

    def release(self, change: PendingChange) -> None:
        """All reservations of a submitted change: it is published, or forgotten."""
        for topic, seqs, records, size, grows in change.reserved:
            self.bytes -= grows
            if topic is not None:
                topic.pending_seqs -= seqs
                topic.pending_count -= records
                topic.pending_bytes -= size
        if change.owner is not None:
            self.let_go(change)

    def let_go(self, change: PendingChange) -> None:
        """Release what is busy with the change. Reservations that a later change has taken over stay."""
        assert change.keys is not None
        change.owner = None
        self.topics -= self._made.pop(change, 0)
        for key, before in change.keys.items():
            if self.busy.get(key) is not change:
                continue
            if before is not None and before.owner is not None:
                self.busy[key] = before
            else:
                del self.busy[key]
        change.keys = None
        for key, members in change.members:
            self._let_go_of(key, members)
        change.members = ()

    def _let_go_of(self, key: Key, members: Collection[bytes]) -> None:
        held = self.members[key]
        if len(held) == len(members):
            del self.members[key]
        else:
            for member in members:
                del held[member]
