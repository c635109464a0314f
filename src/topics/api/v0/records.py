"""Records: append, read what comes after a cursor (now or when there is something), delete."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec import UNSET

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import appended, difference, encode, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import AppendReply, DeletedReply, DiffReply
from topics.api.v0.topics import check_config_names
from topics.api.waiting import Turns, answering
from topics.engine.core.deadlines import Deadlines
from topics.engine.core.engine import Engine
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.log.reading import Diff
from topics.engine.log.topic import Topic
from topics.model.errors import InvalidRequest, Throttled, TopicNotFound
from topics.model.requests.batch import check_batch, utf8_bytes
from topics.model.requests.lines import decode_lines
from topics.model.requests.records import AppendRequest, DeleteRequest, DiffRequest, check_u64
from topics.model.requests.warnings import match_warnings

WAIT_MS_MAX = 30_000


class Records:
    def __init__(self, engine: Engine, pressure: Pressure, turns: Turns, deadlines: Deadlines) -> None:
        self._engine = engine
        self._pressure = pressure
        self._turns = turns
        self._deadlines = deadlines

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/topics/{topic}",
                handler=self.append,
                summary="Append records.",
                scopes=Scope.WRITE,
                body=AppendRequest,
                checks_slot=True,
                decode_lines=self._decode_lines,
                query=(
                    QueryField("return_seqs", bool, "Whether the answer lists every seq.", default=True),
                    QueryField("tag", str, "Of a body of lines: the tag of every record."),
                    QueryField("node", str, "Of a body of lines: the origin node of every record."),
                    QueryField("delay_ms", int, "Of a body of lines, for a queue: the delay of every job.", default=0),
                    QueryField("create", bool, "Of a body of lines: create the topic if absent.", default=True),
                    QueryField("disable_backpressure", bool, "Of a body of lines: as in JSON.", default=False),
                ),
                headers=(QueryField("Idempotency-Key", str, "As idempotency_key in the body, which wins."),),
                replies={200: AppendReply, 201: AppendReply},
                errors=(
                    "batch_too_large",
                    "record_too_large",
                    "topic_not_found",
                    "topic_full",
                    "throttled",
                    "storage_full",
                ),
            ),
            Route(
                method="POST",
                path="/v0/topics/{topic}/diff",
                handler=self.diff,
                summary="Records after a cursor.",
                scopes=Scope.READ,
                body=DiffRequest,
                checks_slot=True,
                replies={200: DiffReply},
                errors=("topic_not_found", "throttled"),
            ),
            Route(
                method="POST",
                path="/v0/topics/{topic}/delete",
                handler=self.delete,
                summary="Delete records by seq and/or tag.",
                scopes=Scope.DELETE,
                body=DeleteRequest,
                replies={200: DeletedReply},
                errors=("topic_not_found",),
            ),
        ]

    # --- append ---

    def _decode_lines(self, call: Call) -> Generator[None, None, AppendRequest]:
        """What a JSON body says about the whole batch, the query says here."""
        call.check_query()
        tag, tag_bytes_max = call.text("tag"), self._engine.settings.max_tag_bytes
        if tag is not None and utf8_bytes(tag, "tag") > tag_bytes_max:
            raise InvalidRequest(f"tag must be at most {tag_bytes_max} bytes", field="tag", max=tag_bytes_max)
        delay_ms = call.integer("delay_ms", 0)
        if delay_ms < 0:
            raise InvalidRequest("delay_ms must not be negative", field="delay_ms")
        params = AppendRequest(
            [],
            node=call.text("node"),
            create=call.flag("create", True),
            disable_backpressure=call.flag("disable_backpressure", False),
        )
        params.records = yield from decode_lines(call.request.body, self._engine.settings, tag, delay_ms)
        return params

    def append(self, call: Call) -> None:
        params: AppendRequest = call.params
        if call.request.query:
            call.started = call.flag("return_seqs", True)
        if params.idempotency_key is None and b"idempotency-key" in call.headers:
            params.idempotency_key = key_of_header(call)
        if params.config is not None:
            self._check_config(call, params)
        try:
            admit = None
            if self._pressure.floor is not None or call.crowded:
                admit = partial(self._admit, call)
            change = self._engine.append(call.name, params, admit)
        except Throttled as error:
            # A cap stands until somebody makes room; pressure passes, so a writer may choose to wait for that.
            if not params.disable_backpressure or "retry_after_ms" not in error.detail:
                raise
            self._pressure.park(call)
            return
        change.then(answering(call, self._appended))

    def _appended(self, call: Call, change: PendingChange) -> None:
        body = appended(call, change, return_seqs=call.started is not False)
        call.reply(201 if change.created else 200, body)

    def _check_config(self, call: Call, params: AppendRequest) -> None:
        """A configuration that takes effect is an administrator's business; one that is ignored is not."""
        assert params.config is not None
        check_batch(params, self._engine.settings)
        check_config_names(call, params.config)
        if params.create is not False and call.name not in self._engine.state.by_name:
            call.principal.check_scopes(Scope.ADMIN)

    def _admit(self, call: Call, topic: Topic | None) -> None:
        call.check_slot()
        self._check_pressure(call, topic)

    def _check_pressure(self, call: Call, topic: Topic | None) -> None:
        priority = self._engine.effective_priority(topic) if topic is not None else 0
        if self._pressure.sheds(call, priority):
            raise self._pressure.refusal()

    # --- diff ---

    def diff(self, call: Call) -> None:
        params: DiffRequest = call.params
        poll: LongPoll | None = call.started
        topic = self._engine.state.by_name.get(call.name)
        if poll is None and topic is not None and (self._pressure.floor is not None or call.crowded):
            check_u64(params.from_seq, "from_seq")
            self._admit(call, topic)
        diff = self._engine.diff(call.name, params)
        if diff.count or diff.tombstone is not None or not params.wait_ms or (poll is not None and poll.expired):
            call.reply(200, difference(call, diff, diff.scanned + (poll.scanned if poll is not None else 0)))
            return
        if poll is None:
            poll = LongPoll(call, self._engine, self._turns, self._deadlines)
        poll.wait_behind(diff)

    # --- delete ---

    def delete(self, call: Call) -> None:
        steps = call.started or self._engine.delete(call.name, call.params)
        call.started = steps
        try:
            miss = next(steps)
        except StopIteration as end:
            change: PendingChange = end.value
            change.then(answering(call, self._deleted))
        except Busy:
            call.started = None
            raise
        else:
            if miss is not None:
                raise miss
            call.must_finish = True
            self._turns.again(call)

    def _deleted(self, call: Call, change: PendingChange) -> None:
        # Not a look at the topic, which might have to wait for the disk: expiry was judged when the delete was decided.
        state = self._engine.state.by_id.get(change.topic_id)
        if state is None:
            raise TopicNotFound(call.name)
        deleted, _ = change.result
        reply = DeletedReply(
            topic=call.name,
            deleted=deleted,
            earliest_seq=state.earliest_seq,
            head_seq=state.head_seq,
            count=state.count,
            bytes=state.bytes,
            performance=write_performance(call, change),
            warnings=match_warnings(call.params.match, "match") or UNSET,
        )
        call.reply(200, encode(reply))


class LongPoll:
    """A diff that waits: run again when its topic moves, answered if that gave it something or its time is up."""

    __slots__ = ("_call", "_deadline", "_deadlines", "_turns", "_waiter", "_waiters", "expired", "scanned")

    def __init__(self, call: Call, engine: Engine, turns: Turns, deadlines: Deadlines) -> None:
        self._call = call
        self._turns = turns
        self._deadlines = deadlines
        self._waiters = engine.waiters
        self.expired = False
        self.scanned = 0
        self._waiter = engine.waiters.add(engine.state.by_name[call.name], self._look_again)
        self._deadline = deadlines.add(min(call.params.wait_ms, WAIT_MS_MAX), self._expire)
        call.started = self
        call.on_end = self._leave
        call.may_be_abandoned()

    def wait_behind(self, diff: Diff) -> None:
        """Nothing here for this reader so far: the next look starts where this one ended."""
        self.scanned += diff.scanned
        self._call.params.from_seq = diff.next_from_seq
        if not diff.caught_up:
            self._turns.again(self._call)

    def _look_again(self) -> None:
        if self._call.open:
            self._turns.again(self._call)

    def _expire(self) -> None:
        self.expired = True
        self._look_again()

    def _leave(self) -> None:
        self._waiters.remove(self._waiter)
        self._deadlines.remove(self._deadline)
        # Both hold this poll by their callbacks.
        del self._waiter, self._deadline


def key_of_header(call: Call) -> str | None:
    """The idempotency key that the headers carry; one in the body wins over it."""
    key = call.headers.get(b"idempotency-key")
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the Idempotency-Key header is not UTF-8", field="idempotency_key") from None
