"""Jobs for one worker as they become ready, up to `max_in_flight` at a time, released when it ends."""

from __future__ import annotations

from collections import deque
from types import TracebackType

import msgspec

from topics.client.jobs import Job
from topics.embedded.host import Host
from topics.engine.queues.claims import PUSHED_PER_PASS_MAX, Claim, Grant, pushed_claim
from topics.engine.queues.waiting_claims import Claimers
from topics.model.errors import Throttled, TopicsError
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import ClaimRequest

_job = msgspec.json.Decoder(Job)


class Work:
    """Iterate to get jobs, at most `max` of them unacked; ack them with `ack` as usual.

    When it is closed, its unacked jobs go back to the queue at once.
    """

    def __init__(self, host: Host, name: str, request: ClaimRequest) -> None:
        self._host = host
        self._name = name
        self._request = request
        self._closed = False
        # from the first job on
        self._claim: Claim | None = None
        self._claimers: Claimers | None = None
        self._number = 0
        self._jobs: deque[bytes] = deque()
        self._error: TopicsError | None = None
        # how often it was opened: there is no connection to lose and open again
        self.connections = 0

    def __iter__(self) -> Work:
        return self

    def __next__(self) -> Job:
        if not self.connections and not self._closed:
            self._host.look(self._begin)
        host = self._host
        host.wait_until(lambda: bool(self._jobs) or self._error is not None or self._closed)
        with host.lock:
            if self._jobs and not self._closed:
                return decode_deep(_job.decode, self._jobs.popleft())
        self.close()
        if self._error is not None:
            host.fail(self._error)
        raise StopIteration

    def _begin(self) -> None:
        host = self._host
        queues = host.store.queues
        claim = queues.read_claim(self._request)
        topic, queue, _ = queues.find(self._name)
        self._claimers = host.store.claims.claimers(topic, queue)
        self._number = queues.open_stream(queue)
        self._claim = claim._replace(stream=self._number)
        self.connections = 1
        host.at_close[self._end] = None
        self._claimers.add(self)
        self._claimers.moved()

    # --- as a claimer ---

    def claim(self) -> Claim | None:
        claimers = self._claimers
        if self._closed or self._claim is None or claimers is None:
            return None
        return pushed_claim(self._claim, len(claimers.queue.streams[self._number]), claimers.topic.config)

    def granted(self, grant: Grant) -> bool:
        if grant.change is None:
            self._push(grant)
        else:
            grant.change.then(lambda done: self._push(grant) if done.error is None else None)
        return True

    def _push(self, grant: Grant) -> None:
        self._jobs.extend(grant.jobs)
        self._host.moved.notify_all()
        if len(grant.seqs) == PUSHED_PER_PASS_MAX and self._claimers is not None:
            self._host.engine.waiters.moved(self._claimers.topic)

    def failed(self, error: TopicsError) -> bool:
        if isinstance(error, Throttled):
            # The next pass tries again.
            return True
        self._error = error
        self._host.moved.notify_all()
        return False

    # --- the end ---

    def close(self) -> None:
        """Return unacked jobs to the queue. May be called during the iteration."""
        with self._host.lock:
            self._end()

    def _end(self) -> None:
        host = self._host
        self._closed = True
        self._jobs.clear()
        claimers, self._claimers = self._claimers, None
        if claimers is not None:
            host.at_close.pop(self._end, None)
            host.store.queues.close_stream(claimers.topic, claimers.queue, self._number)
            claimers.discard(self)
            host.end_turn()
        host.moved.notify_all()

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
