"""Operations on messages: send, receive, delete, change visibility, one by one and in batches of ten."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from topics.api.admission import Pressure
from topics.api.auth import Scope
from topics.api.sqs.attributes import is_fifo, number_of
from topics.api.sqs.errors import SqsError, as_sqs_error, invalid_value
from topics.api.sqs.exchange import Exchange
from topics.api.sqs.messages import (
    Handle,
    Prepared,
    message_id,
    message_of,
    parse_handle,
    prepare,
    sequence_number,
    wanted_of,
)
from topics.api.sqs.operations import SENT_BYTES_MAX, After, Operation
from topics.api.sqs.requests import (
    BatchResult,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    Done,
    Failure,
    HandleEntry,
    Message,
    Messages,
    OutgoingEntry,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
    Sent,
)
from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.log.topic import Topic
from topics.engine.queues.verbs import Held
from topics.engine.queues.waiting_claims import Claims
from topics.model.clock import Clock
from topics.model.errors import TopicsError
from topics.model.requests.records import AckRequest, AppendRequest, ClaimRequest, ExtendRequest, NackRequest

# All jobs that SQS clients have received are leased to this worker: a handle is worth the same in any client.
NODE: Final = "sqs"
ENTRIES_MAX: Final = 10
BATCH_BYTES_MAX: Final = 1_048_576
VISIBILITY_S_MAX: Final = 43_200
WAIT_S_MAX: Final = 20
# Messages are made in steps above this.
STEP_BYTES: Final = 256 * 1024

_entry_id = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


class MessageOperations:
    def __init__(self, engine: Engine, claims: Claims, pressure: Pressure, clock: Clock) -> None:
        self._engine = engine
        self._claims = claims
        self._queues = claims.queues
        self._pressure = pressure
        self._clock = clock

    def table(self) -> dict[str, Operation]:
        return {
            "SendMessage": Operation(SendMessage, self.send, Scope.WRITE, SENT_BYTES_MAX),
            "SendMessageBatch": Operation(SendMessageBatch, self.send_batch, Scope.WRITE, SENT_BYTES_MAX),
            "ReceiveMessage": Operation(ReceiveMessage, self.receive, Scope.READ | Scope.WRITE),
            "DeleteMessage": Operation(DeleteMessage, self.delete, Scope.WRITE),
            "DeleteMessageBatch": Operation(DeleteMessageBatch, self.delete_batch, Scope.WRITE),
            "ChangeMessageVisibility": Operation(ChangeMessageVisibility, self.change, Scope.WRITE),
            "ChangeMessageVisibilityBatch": Operation(ChangeMessageVisibilityBatch, self.change_batch, Scope.WRITE),
        }

    def _find(self, name: str) -> Topic:
        return self._queues.find(name)[0]

    def _admit(self, exchange: Exchange, topic: Topic | None) -> None:
        priority = 0 if topic is None else self._engine.effective_priority(topic)
        if self._pressure.sheds(exchange.call, priority):
            raise self._pressure.refusal()

    def _admission(self, exchange: Exchange) -> Callable[[Topic | None], None] | None:
        return None if self._pressure.floor is None else partial(self._admit, exchange)

    # --- send ---

    def send(self, exchange: Exchange) -> Steps[After]:
        name = exchange.queue
        topic = yield from attempt(lambda: self._find(name))
        prepared = prepare(topic, exchange.params)
        change = yield from attempt(lambda: self._append(exchange, name, [prepared]))
        return After(change, lambda: _sent(topic, prepared, change.first_seq))

    def send_batch(self, exchange: Exchange) -> Steps[BatchResult]:
        """Messages of a standard queue are one write; those of a FIFO queue have a key each, and are several."""
        params: SendMessageBatch = exchange.params
        _check_entries(params.entries)
        name = exchange.queue
        topic = yield from attempt(lambda: self._find(name))
        result = BatchResult([], [])
        ready: list[tuple[str, Prepared]] = []
        for entry in params.entries:
            try:
                ready.append((entry.id, prepare(topic, entry)))
            except SqsError as error:
                result.failed.append(_failure(entry.id, error))
        if sum(prepared.size for _, prepared in ready) > BATCH_BYTES_MAX:
            raise SqsError("BatchRequestTooLong", f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes.")
        batches = [[one] for one in ready] if is_fifo(name) else [ready] if ready else []
        exchange.call.must_now_finish()
        pending: list[tuple[list[tuple[str, Prepared]], PendingChange]] = []
        for batch in batches:
            try:
                records = [prepared for _, prepared in batch]
                pending.append((batch, (yield from attempt(partial(self._append, exchange, name, records)))))
            except TopicsError as error:
                result.failed += [_failure(entry_id, error) for entry_id, _ in batch]
        for batch, change in pending:
            try:
                yield from published(change)
            except TopicsError as error:
                result.failed += [_failure(entry_id, error) for entry_id, _ in batch]
            else:
                for number, (entry_id, prepared) in enumerate(batch):
                    sent = _sent(topic, prepared, change.first_seq + number)
                    sent.id = entry_id
                    result.successful.append(sent)
        return result

    def _append(self, exchange: Exchange, name: str, messages: Sequence[Prepared]) -> PendingChange:
        request = AppendRequest(
            [message.record for message in messages], create=False, idempotency_key=messages[0].dedupe_key
        )
        return self._engine.append(name, request, self._admission(exchange))

    # --- receive ---

    def receive(self, exchange: Exchange) -> Steps[Messages | After]:
        params: ReceiveMessage = exchange.params
        name = exchange.queue
        topic = yield from attempt(lambda: self._find(name))
        request = _claim_of(params, number_of(topic.config, "ReceiveMessageWaitTimeSeconds"))
        asked = yield from attempt(lambda: self._claims.ask(name, request, self._admission(exchange)))
        grant = asked.grant or (yield from self._claims.wait(asked, request.wait_ms))
        wanted = wanted_of(
            [*(params.attribute_names or ()), *(params.message_system_attribute_names or ())],
            params.message_attribute_names or (),
        )
        made: list[Message] = []
        spent = 0
        now_ms = self._clock.now_ms()
        for job in grant.jobs:
            made.append(message_of(topic, job, wanted, now_ms, exchange.arn_of))
            spent += len(job)
            if spent > STEP_BYTES:
                spent = 0
                yield None
        messages = Messages(made) if made else Messages()
        return messages if grant.change is None else After(grant.change, lambda: messages)

    # --- delete ---

    def delete(self, exchange: Exchange) -> Steps[After]:
        """A message that is gone, or was received again, stays as it is: its handle was not the newest."""
        name, receipt_handle = exchange.queue, exchange.params.receipt_handle
        topic = yield from attempt(lambda: self._find(name))
        handle = parse_handle(topic, receipt_handle)
        change = yield from attempt(lambda: self._ack(name, [handle]))

        def done() -> None:
            held: Held = change.result
            if held.skipped and is_fifo(name):
                raise _expired(receipt_handle)

        return After(change, done)

    def delete_batch(self, exchange: Exchange) -> Steps[BatchResult]:
        params: DeleteMessageBatch = exchange.params
        _check_entries(params.entries)
        topic = yield from attempt(lambda: self._find(exchange.queue))
        result, handles = _handles(topic, params.entries)
        skipped: frozenset[int] = frozenset()
        if handles:
            change = yield from attempt(lambda: self._ack(topic.name, list(handles.values())))
            held: Held = (yield from published(change)).result
            skipped = frozenset(held.skipped)
        for entry in params.entries:
            handle = handles.get(entry.id)
            if handle is None:
                continue
            if handle.seq in skipped and is_fifo(topic.name):
                result.failed.append(_failure(entry.id, _expired(entry.receipt_handle)))
            else:
                result.successful.append(Done(entry.id))
        return result

    def _ack(self, name: str, handles: Sequence[Handle]) -> PendingChange:
        """`result` is a Held."""
        return self._queues.ack(name, AckRequest(NODE, *_by_seq(handles)))

    # --- visibility ---

    def change(self, exchange: Exchange) -> Steps[After]:
        params: ChangeMessageVisibility = exchange.params
        topic = yield from attempt(lambda: self._find(exchange.queue))
        handle = parse_handle(topic, params.receipt_handle)
        _check_visibility(params.visibility_timeout)
        change = yield from attempt(lambda: self._change(topic.name, handle, params.visibility_timeout))
        return After(change, lambda: _check_held(change))

    def change_batch(self, exchange: Exchange) -> Steps[BatchResult]:
        params: ChangeMessageVisibilityBatch = exchange.params
        _check_entries(params.entries)
        topic = yield from attempt(lambda: self._find(exchange.queue))
        result, handles = _handles(topic, params.entries)
        for entry in params.entries:
            handle = handles.get(entry.id)
            if handle is None:
                continue
            try:
                _check_visibility(entry.visibility_timeout)
                change = yield from attempt(partial(self._change, topic.name, handle, entry.visibility_timeout))
                _check_held((yield from published(change)))
            except TopicsError as error:
                result.failed.append(_failure(entry.id, error))
            else:
                result.successful.append(Done(entry.id))
        return result

    def _change(self, name: str, handle: Handle, timeout_s: int) -> PendingChange:
        """A new deadline from now on; 0 gives the message back. `result` is a Held."""
        seqs, lease_ids = [handle.seq], [handle.lease_id]
        if timeout_s:
            return self._queues.extend(name, ExtendRequest(NODE, seqs, timeout_s * 1000, lease_ids))
        return self._queues.nack(name, NackRequest(NODE, seqs, lease_ids, delay_ms=0))


def _sent(topic: Topic, prepared: Prepared, seq: int) -> Sent:
    sent = Sent(message_id=message_id(topic, seq), body_md5=prepared.body_md5)
    if prepared.attributes_md5 is not None:
        sent.attributes_md5 = prepared.attributes_md5
    if prepared.system_md5 is not None:
        sent.system_attributes_md5 = prepared.system_md5
    if is_fifo(topic.name):
        sent.sequence_number = sequence_number(seq)
    return sent


def _failure(entry_id: str, error: TopicsError) -> Failure:
    shown = as_sqs_error(error)
    return Failure(entry_id, shown.fault == "Sender", shown.query_code, shown.message)


def _claim_of(params: ReceiveMessage, wait_s: int) -> ClaimRequest:
    count, timeout_s = params.max_number_of_messages, params.visibility_timeout
    if count is None:
        count = 1
    if not 1 <= count <= ENTRIES_MAX:
        raise invalid_value(count, "MaxNumberOfMessages", f"Must be between 1 and {ENTRIES_MAX}, if provided.")
    if params.wait_time_seconds is not None:
        wait_s = params.wait_time_seconds
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {WAIT_S_MAX}, if provided.")
    request = ClaimRequest(NODE, count, wait_ms=wait_s * 1000)
    if timeout_s is not None:
        _check_visibility(timeout_s)
        request.lease_ms = timeout_s * 1000
    return request


def _check_visibility(timeout_s: int) -> None:
    if not 0 <= timeout_s <= VISIBILITY_S_MAX:
        raise invalid_value(timeout_s, "VisibilityTimeout", f"Must be between 0 and {VISIBILITY_S_MAX}.")


def _check_entries(entries: Sequence[HandleEntry] | Sequence[OutgoingEntry]) -> None:
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > ENTRIES_MAX:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    ids = [entry.id for entry in entries]
    if any(_entry_id.fullmatch(entry_id) is None for entry_id in ids):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
            "letters long.",
        )
    if len(set(ids)) < len(ids):
        raise SqsError("BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id.")


def _handles(topic: Topic, entries: Sequence[HandleEntry]) -> tuple[BatchResult, dict[str, Handle]]:
    """The handles of a batch by entry; those that are not valid have failed."""
    result = BatchResult([], [])
    handles: dict[str, Handle] = {}
    for entry in entries:
        try:
            handles[entry.id] = parse_handle(topic, entry.receipt_handle)
        except SqsError as error:
            result.failed.append(_failure(entry.id, error))
    return result, handles


def _by_seq(handles: Sequence[Handle]) -> tuple[list[int], list[str]]:
    """Ascending, each once: the jobs of one claim are then found together."""
    ordered = sorted(set(handles))
    return [handle.seq for handle in ordered], [handle.lease_id for handle in ordered]


def _expired(handle: str) -> SqsError:
    return invalid_value(handle[:64], "ReceiptHandle", "The receipt handle has expired.")


def _check_held(change: PendingChange) -> None:
    held: Held = change.result
    if held.skipped:
        raise SqsError("MessageNotInflight", "The specified message isn't in flight.")
