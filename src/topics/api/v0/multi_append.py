"""Append to several topics in one request: to all of them or to none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import encode, write_performance
from topics.api.routes import Route
from topics.api.schema import Performance, Warnings
from topics.api.v0.records import APPEND_ERRORS, IDEMPOTENCY_KEY, RETURN_SEQS, key_of_header
from topics.api.waiting import answering
from topics.engine.core.engine import Engine
from topics.engine.core.multi_append import Landed
from topics.engine.core.multi_append import MultiAppend as Verb
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.log.topic import Topic
from topics.model.errors import Throttled
from topics.model.requests.batch import DRAFTED_PER_STEP
from topics.model.requests.config import resolve
from topics.model.requests.large_bodies import decode_large_topics
from topics.model.requests.multi_append import MultiAppendRequest, TopicBatch
from topics.model.requests.warnings import config_warnings


class AppendedItem(msgspec.Struct):
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    seqs: list[int] | UnsetType = UNSET


class MultiAppendReply(msgspec.Struct):
    """`deduped`: nothing was added, because the key was used for these topics before, or all jobs are pending."""

    topics: dict[str, AppendedItem]
    deduped: bool
    performance: Performance
    warnings: Warnings = UNSET


class MultiAppend:
    def __init__(self, verb: Verb, engine: Engine, pressure: Pressure) -> None:
        self._verb = verb
        self._engine = engine
        self._pressure = pressure

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/append",
                handler=self.append,
                summary="Append records to several topics, to all of them or to none.",
                scopes=Scope.WRITE,
                body=MultiAppendRequest,
                decode_large=decode_large_topics,
                checks_slot=True,
                query=(RETURN_SEQS,),
                headers=(IDEMPOTENCY_KEY,),
                replies={200: MultiAppendReply, 201: MultiAppendReply},
                errors=(*APPEND_ERRORS, "topic_exists_incompatible"),
            )
        ]

    def append(self, call: Call) -> Steps[None] | None:
        params: MultiAppendRequest = call.params
        call.flag("return_seqs", True)
        if params.idempotency_key is None:
            params.idempotency_key = key_of_header(call)
        if sum([len(part.records) for part in params.topics.values()]) > DRAFTED_PER_STEP:
            return self._append_large(call)
        try:
            self._submit(call).answer(answering(call, self._appended))
        except Throttled as error:
            again, opted_out = partial(self._submit, call), bool(params.disable_backpressure)
            return self._pressure.submit_later(call, error, again, self._appended, opted_out=opted_out)
        return None

    def _append_large(self, call: Call) -> Steps[None]:
        drafted = yield from self._verb.drafting(call.params, metas_checked=call.sliced)
        submit, opted_out = partial(self._submit, call, drafted), bool(call.params.disable_backpressure)
        yield from self._pressure.submit_drafted(call, submit, self._appended, opted_out=opted_out)

    def _submit(self, call: Call, drafted: list[TopicBatch] | None = None) -> PendingChange:
        names, admit = partial(self._check_names, call), partial(self._admit, call)
        return self._verb.append(call.params, names, admit, drafted=drafted)

    def _check_names(self, call: Call) -> None:
        """Every topic, and those that a configuration names. One that takes effect needs the scope admin."""
        params: MultiAppendRequest = call.params
        for name in params.topics:
            call.principal.check_name(name, f"topics.{name}")
        for name, part in params.topics.items():
            if not call.principal.sees_all_names:
                call.principal.check_notified(part.records, f"topics.{name}.records")
            if part.config is None:
                continue
            if part.config.dead_letter is not None:
                call.principal.check_name(part.config.dead_letter, f"topics.{name}.config.dead_letter")
            if part.create is not False and name not in self._engine.state.by_name:
                call.principal.check_scopes(Scope.ADMIN)

    def _admit(self, call: Call, topics: Sequence[Topic | None]) -> None:
        call.check_slot()
        if self._pressure.floor is not None:
            priority = min(0 if topic is None else self._engine.effective_priority(topic) for topic in topics)
            if self._pressure.sheds(call, priority):
                raise self._pressure.refusal()

    def _appended(self, call: Call, change: PendingChange) -> None:
        with_seqs = call.flag("return_seqs", True)
        created = change.created and not change.deduped
        reply = MultiAppendReply(
            topics={name: _item(landed, change, with_seqs=with_seqs) for name, landed in change.result.items()},
            deduped=change.deduped,
            performance=write_performance(call, change),
            warnings=_warnings(call.params, change) or UNSET,
        )
        call.reply(201 if created else 200, encode(reply))


def _warnings(params: MultiAppendRequest, change: PendingChange) -> list[str]:
    """About the topics that were created with their `config`."""
    made: dict[str, Landed] = {} if change.deduped else change.result
    return [
        f'topic "{name}": {warning}'
        for name, landed in made.items()
        if landed.created and (config := params.topics[name].config) is not None
        for warning in config_warnings(resolve(config, name), config)
    ]


def _item(landed: Landed, change: PendingChange, *, with_seqs: bool) -> AppendedItem:
    return AppendedItem(
        first_seq=landed.first_seq,
        last_seq=landed.last_seq,
        head_seq=landed.head_seq,
        # A repeated write created nothing.
        created=landed.created and not change.deduped,
        seqs=landed.all_seqs() if with_seqs else UNSET,
    )
