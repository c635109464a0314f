"""Work streams: jobs pushed to a connection, up to `max_in_flight` at a time, released when it ends."""

from __future__ import annotations

from collections.abc import Callable

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.errors import status_of
from topics.api.live.sse import EventStream, EventStreams, check_accepts_events, error_frame
from topics.api.routes import QueryField, Route
from topics.engine.core.engine import Engine
from topics.engine.log.topic import Topic
from topics.engine.queues.claims import PUSHED_PER_PASS_MAX, Claim, Grant, pushed_claim
from topics.engine.queues.verbs import Queues
from topics.engine.queues.waiting_claims import Claimers, Claims
from topics.model.errors import InvalidRequest, Throttled, TopicsError
from topics.model.requests.records import ClaimRequest
from topics.model.requests.watch import HEARTBEAT_MS_DEFAULT


class Work:
    def __init__(
        self, engine: Engine, pressure: Pressure, claims: Claims, streams: EventStreams, wake: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._pressure = pressure
        self._claims = claims
        self._wake = wake
        self._streams = streams
        self._open: dict[WorkStream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/topics/{topic}/work",
                changes=True,
                handler=self.work,
                summary="Jobs pushed as events, up to max in flight on this connection.",
                scopes=Scope.READ | Scope.WRITE,
                query=(
                    QueryField("node", str, "The worker that the jobs are leased to.", required=True),
                    QueryField("max", int, "Jobs in flight on this connection, 1 to 1000.", default=1),
                    QueryField("lease_ms", int, "How long a lease lasts; the queue's lease_ms if absent."),
                    QueryField("token", str, "The key, for browsers."),
                ),
                replies={200: str},
                errors=("topic_not_found", "not_a_queue", "not_acceptable", "throttled"),
                key_in_query=True,
                long_lived=True,
                media_type="text/event-stream",
            )
        ]

    def work(self, call: Call) -> None:
        queues = self._claims.queues
        node = call.text("node")
        if node is None:
            raise InvalidRequest("node must name the worker that takes the jobs", field="node")
        params = ClaimRequest(node, _whole(call, "max", 1))
        if call.text("lease_ms") is not None:
            params.lease_ms = _whole(call, "lease_ms", 0)
        claim = queues.read_claim(params)
        topic, queue, _ = queues.find(call.name)
        check_accepts_events(call.request)
        if self._pressure.floor is not None and self._pressure.sheds(call, self._engine.effective_priority(topic)):
            raise self._pressure.refusal()
        stream = self._streams.open(call, HEARTBEAT_MS_DEFAULT)
        stream.beat()
        claimers = self._claims.claimers(topic, queue)
        work = WorkStream(self, claimers, stream, claim)
        self._open[work] = None
        if stream.closed:
            work.end()
            return
        claimers.add(work)
        claimers.moved()

    def paced_ms(self, topic: Topic) -> int:
        """For how long this topic's streams get nothing; 0 if the topic is not shed."""
        floor = self._pressure.floor
        if floor is None or self._engine.effective_priority(topic) >= floor:
            return 0
        return self._pressure.retry_ms

    def why_gone(self, name: str) -> str:
        """What happened to a queue that was deleted while its streams were open."""
        successor = self._engine.state.by_name.get(name)
        if successor is None:
            return f'queue "{name}" was deleted'
        again = f'queue "{name}" was deleted and created again as a {successor.config.type}'
        return f"{again}; open a new stream" if successor.config.type == "queue" else again

    def ended(self, work: WorkStream) -> None:
        self._open.pop(work, None)
        self._wake()

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def queues(self) -> Queues:
        return self._claims.queues

    def drain(self) -> None:
        """The server is shutting down: every stream releases its jobs, and its client reconnects."""
        for work in list(self._open):
            work.fail(503, "the server is shutting down")


class WorkStream:
    """One connection, a claimer that stays."""

    __slots__ = ("_claim", "_claimers", "_ended", "_number", "_paced", "_stream", "_topic_field", "_work")

    def __init__(self, work: Work, claimers: Claimers, stream: EventStream, claim: Claim) -> None:
        self._work = work
        self._claimers = claimers
        self._stream = stream
        self._number = work.queues.open_stream(claimers.queue)
        self._claim = claim._replace(stream=self._number)
        self._topic_field = b'{"topic":"%b",' % claimers.topic.name.encode()
        self._ended = False
        self._paced = False
        stream.on_close = self.end
        stream.on_room = self._has_room

    # --- as a claimer ---

    def claim(self) -> Claim | None:
        if not self._stream.has_room or self._stream.closed or self._is_paced():
            return None
        held = len(self._claimers.queue.streams[self._number])
        return pushed_claim(self._claim, held, self._claimers.topic.config)

    def _is_paced(self) -> bool:
        """Under pressure a stream is notified once, gets nothing for a while, and is then checked again."""
        retry_ms = self._work.paced_ms(self._claimers.topic)
        if not retry_ms:
            self._paced = False
            return False
        if not self._paced:
            self._paced = True
            self._stream.write(error_frame(429, "work is throttled under pressure", retry_after_ms=retry_ms))
        self._claimers.look_again_in(retry_ms)
        return True

    def granted(self, grant: Grant) -> bool:
        if grant.change is None:
            self._push(grant)
        else:
            grant.change.then(lambda done: self._push(grant) if done.error is None else None)
        return True

    def _push(self, grant: Grant) -> None:
        if not grant.seqs or self._stream.closed:
            return
        frames = [
            b"id: %d\nevent: job\ndata: %b%b\n\n" % (seq, self._topic_field, _one_line(job[1:]))
            for seq, job in zip(grant.seqs, grant.jobs, strict=True)
        ]
        self._stream.write(b"".join(frames))
        if len(grant.seqs) == PUSHED_PER_PASS_MAX:
            self._work.engine.waiters.moved(self._claimers.topic)

    def failed(self, error: TopicsError) -> bool:
        if isinstance(error, Throttled):
            # Advisory: the stream stays, the next pass tries again.
            retry_ms = error.detail.get("retry_after_ms", 1_000)
            self._stream.write(error_frame(429, error.message, retry_after_ms=retry_ms))
            return True
        if error.code == "topic_not_found":
            self.fail(409, self._work.why_gone(self._claimers.topic.name))
        else:
            self.fail(status_of(error.code), error.message)
        return False

    # --- the connection ---

    def _has_room(self, paused_s: float) -> None:
        del paused_s
        self._claimers.moved()

    def fail(self, code: int, message: str) -> None:
        self._stream.fail(code, message)
        self.end()

    def end(self) -> None:
        """The connection ended, for any reason: the jobs it holds are claimable at once."""
        if self._ended:
            return
        self._ended = True
        self._work.queues.close_stream(self._claimers.topic, self._claimers.queue, self._number)
        self._claimers.discard(self)
        self._work.ended(self)


def _whole(call: Call, name: str, default: int) -> int:
    number = call.integer(name, default)
    if number < 0:
        raise InvalidRequest(f"{name} must not be negative", field=name)
    return number


def _one_line(job: bytes) -> bytes:
    """A raw newline can be between the tokens of a payload, but not in an event."""
    if b"\n" in job or b"\r" in job:
        return job.replace(b"\n", b" ").replace(b"\r", b" ")
    return job
