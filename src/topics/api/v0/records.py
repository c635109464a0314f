"""Records: append, read what comes after a cursor (now or when there is something), delete."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from topics.api.admission import Pressure, Reply
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import appended, difference, encode, write_performance
from topics.api.routes import BodyForm, QueryField, Route
from topics.api.schema import AppendReply, DeletedReply, DiffReply
from topics.api.v0.events import BATCH, CloudEvent, Envelope, EventBodies, reply_events, wants_events
from topics.api.v0.topics import check_config_names
from topics.api.waiting import answering
from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.long_poll import long_poll
from topics.engine.core.waiting.runner import Runner, Steps
from topics.engine.log.reading import Diff
from topics.engine.log.topic import Topic
from topics.model.errors import InvalidRequest, Throttled, TopicNotFound
from topics.model.requests.batch import DRAFTED_PER_STEP, Draft, check_batch, utf8_bytes
from topics.model.requests.lines import decode_lines
from topics.model.requests.records import AppendRequest, DeleteRequest, DiffRequest, check_u64
from topics.model.requests.warnings import match_warnings

# The query, headers and errors of every append, to one topic or to several.
RETURN_SEQS: Final = QueryField("return_seqs", bool, "Whether the reply lists every seq.", default=True)
IDEMPOTENCY_KEY: Final = QueryField(
    "Idempotency-Key", str, "Same as idempotency_key in the body, which takes precedence."
)
LINES: Final[Mapping[str, Any]] = {"type": "string", "description": "One payload per line."}
APPEND_ERRORS: Final = (
    "batch_too_large",
    "record_too_large",
    "topic_not_found",
    "job_group_conflict",
    "topic_full",
    "throttled",
    "storage_full",
)


class Records:
    def __init__(self, engine: Engine, pressure: Pressure, runner: Runner) -> None:
        self._engine = engine
        self._pressure = pressure
        self._runner = runner
        self._events = EventBodies(engine.settings, self._envelope)

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
                other_bodies={"application/x-ndjson": BodyForm(self._decode_lines, LINES), **self._events.forms()},
                decode_event=self._events.binary,
                query=(
                    RETURN_SEQS,
                    QueryField("tag", str, "For lines and events: the tag of every record."),
                    QueryField("node", str, "For lines and events: the origin node of every record."),
                    QueryField("delay_ms", int, "For lines and events, in a queue: the delay of every job.", default=0),
                    QueryField("create", bool, "For lines and events: create the topic if absent.", default=True),
                    QueryField("disable_backpressure", bool, "For lines and events: same as in JSON.", default=False),
                    QueryField("dedupe", bool, "For one event: append it once, by its source and id.", default=False),
                ),
                headers=(IDEMPOTENCY_KEY,),
                replies={200: AppendReply, 201: AppendReply},
                errors=APPEND_ERRORS,
            ),
            Route(
                method="POST",
                path="/v0/topics/{topic}/diff",
                changes=False,
                handler=self.diff,
                summary="Records after a cursor.",
                scopes=Scope.READ,
                body=DiffRequest,
                checks_slot=True,
                replies={200: DiffReply},
                other_forms={BATCH: list[CloudEvent]},
                errors=("topic_not_found", "throttled"),
            ),
            Route(
                method="POST",
                path="/v0/topics/{topic}/delete",
                handler=self.delete,
                summary="Delete records by seq, by tag, or both.",
                scopes=Scope.DELETE,
                body=DeleteRequest,
                replies={200: DeletedReply},
                errors=("topic_not_found",),
            ),
        ]

    # --- append ---

    def _envelope(self, call: Call) -> Envelope:
        """For lines and events, the query has the fields that a JSON body has for the whole batch."""
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
        return Envelope(params, tag, delay_ms)

    def _decode_lines(self, call: Call) -> Generator[None, None, AppendRequest]:
        params, tag, delay_ms = self._envelope(call)
        params.records = yield from decode_lines(call.request.body, self._engine.settings, tag, delay_ms)
        return params

    def append(self, call: Call) -> Steps[None] | None:
        params: AppendRequest = call.params
        answer = self._appended
        if call.request.query and not call.flag("return_seqs", True):
            answer = self._appended_without_seqs
        if params.idempotency_key is None and b"idempotency-key" in call.headers:
            params.idempotency_key = key_of_header(call)
        if params.config is not None:
            self._check_config(call, params)
        if not call.principal.sees_all_names and any(record.group is not None for record in params.records):
            check_batch(params, self._engine.settings, metas_checked=call.sliced)
            call.principal.check_notified(params.records)
        if len(params.records) > DRAFTED_PER_STEP:
            return self._append_large(call, answer)
        try:
            self._submit(call).answer(answering(call, answer))
        except Throttled as error:
            again, opted_out = partial(self._submit, call), bool(params.disable_backpressure)
            return self._pressure.submit_later(call, error, again, answer, opted_out=opted_out)
        return None

    def _append_large(self, call: Call, answer: Reply) -> Steps[None]:
        draft = yield from self._engine.drafting(call.params, metas_checked=call.sliced)
        opted_out = bool(call.params.disable_backpressure)
        yield from self._pressure.submit_drafted(call, partial(self._submit, call, draft), answer, opted_out=opted_out)

    def _submit(self, call: Call, draft: Draft | None = None) -> PendingChange:
        admit = None
        if self._pressure.floor is not None or call.crowded:
            admit = partial(self._admit, call)
        return self._engine.append(call.name, call.params, admit, draft=draft)

    def _appended(self, call: Call, change: PendingChange) -> None:
        call.reply(201 if change.created else 200, appended(call, change, return_seqs=True))

    def _appended_without_seqs(self, call: Call, change: PendingChange) -> None:
        call.reply(201 if change.created else 200, appended(call, change, return_seqs=False))

    def _check_config(self, call: Call, params: AppendRequest) -> None:
        """A configuration that takes effect needs the scope admin; one that is ignored does not."""
        assert params.config is not None
        check_batch(params, self._engine.settings, metas_checked=call.sliced)
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

    def diff(self, call: Call) -> Steps[None] | None:
        params: DiffRequest = call.params
        as_events = wants_events(call)
        if as_events:
            # Attributes are in meta.
            params.include_meta, params.include_tags = True, False
        topic = self._engine.state.by_name.get(call.name)
        if topic is not None and (self._pressure.floor is not None or call.crowded):
            check_u64(params.from_seq, "from_seq")
            self._admit(call, topic)
        diff = self._engine.diff(call.name, params)
        if diff.count or diff.tombstone is not None or not params.wait_ms:
            if as_events:
                return reply_events(call, diff)
            call.reply(200, difference(call, diff, diff.scanned))
            return None
        return self._poll(call, diff, as_events=as_events)

    def _poll(self, call: Call, diff: Diff, *, as_events: bool) -> Steps[None]:
        diff = yield from long_poll(self._engine, self._runner, call.name, call.params, diff)
        if as_events:
            yield from reply_events(call, diff)
        else:
            call.reply(200, difference(call, diff, diff.scanned))

    # --- delete ---

    def delete(self, call: Call) -> Steps[None]:
        change = yield from self._engine.delete(call.name, call.params, call.must_now_finish)
        change.answer(answering(call, self._deleted))

    def _deleted(self, call: Call, change: PendingChange) -> None:
        # No read of the topic, which might have to wait for the disk: expiry was applied when the delete was decided.
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
            dry_run=True if call.params.dry_run else UNSET,
        )
        call.reply(200, encode(reply))


def key_of_header(call: Call) -> str | None:
    """The idempotency key in the headers; one in the body takes precedence."""
    key = call.headers.get(b"idempotency-key")
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the Idempotency-Key header is not UTF-8", field="idempotency_key") from None
