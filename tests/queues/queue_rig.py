"""A hand-driven store with the verbs of queues, each run to its end in the test's own thread."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tests.engine.rig import Rig
from topics.engine.core.listing import QueueState
from topics.engine.log.topic import Topic
from topics.engine.queues.operator.redrive import Driven
from topics.engine.queues.part import queue_of
from topics.engine.queues.queue import Queue
from topics.engine.queues.verbs import Held
from topics.model.requests.records import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    RedriveRequest,
    decode_body,
)

W = TypeVar("W", bound=msgspec.Struct)


def request_of(kind: type[W], **fields: Any) -> W:
    """As a request body would say it."""
    return decode_body(msgspec.json.Decoder(kind), msgspec.json.encode(fields))


class QueueRig(Rig):
    def __enter__(self) -> QueueRig:
        return self

    def queue(self, name: str = "q", **config: Any) -> None:
        self.configure(name, type="queue", **config)

    def jobs(self, count: int, name: str = "q") -> list[int]:
        change = self.append(name, *range(count))
        return list(range(change.first_seq, change.last_seq + 1))

    def claim(self, node: str = "w", name: str = "q", **fields: Any) -> list[dict[str, Any]]:
        """The jobs, as they would be answered."""
        request = request_of(ClaimRequest, node=node, **fields)
        _, grant = self.drive(self.store.claims.claim(name, request))
        self.finish_all()
        return msgspec.json.decode(b"[%b]" % b",".join(grant.jobs))

    def finish_all(self) -> None:
        """What a claim has set off besides its answer: dead letters on their way."""
        self.store.commit_log.flush()
        self.wait_until(lambda: not self.store.commit_log.depth)

    def claimed(self, node: str = "w", name: str = "q", **fields: Any) -> list[int]:
        return [job["$seq"] for job in self.claim(node, name, **fields)]

    def ack(self, node: str, *seqs: int, name: str = "q", **fields: Any) -> Held:
        request = request_of(AckRequest, node=node, seqs=seqs, **fields)
        return self._commit(lambda: self.store.queues.ack(name, request)).result

    def nack(self, node: str, *seqs: int, name: str = "q", **fields: Any) -> Held:
        request = request_of(NackRequest, node=node, seqs=seqs, **fields)
        return self._commit(lambda: self.store.queues.nack(name, request)).result

    def extend(self, node: str, *seqs: int, name: str = "q", **fields: Any) -> Held:
        request = request_of(ExtendRequest, node=node, seqs=seqs, **fields)
        return self._commit(lambda: self.store.queues.extend(name, request)).result

    def redrive(self, name: str, **fields: Any) -> Driven:
        request = request_of(RedriveRequest, **fields)
        return self._commit(lambda: self.store.queues.redriver.redrive(name, request, lambda _: True)).result

    def pause(self, *, paused: bool, name: str = "q") -> None:
        self._commit(lambda: self.store.queues.pause(name, paused=paused))

    def counters(self, name: str = "q") -> QueueState:
        state = self.look(name).queue
        assert state is not None
        return state

    def places(self, name: str = "q") -> tuple[int, int, int]:
        """Ready, in flight, delayed."""
        state = self.counters(name)
        return state.ready, state.in_flight, state.delayed

    def parts(self, name: str = "q") -> tuple[Topic, Queue]:
        topic = self.store.state.by_name[name]
        queue = queue_of(topic)
        assert queue is not None
        return topic, queue
