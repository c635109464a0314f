"""Operations on queues: create, remove, find, list, attributes, tags, purge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from topics.api.auth import Scope
from topics.api.sqs.attributes import (
    COUNTS,
    FIFO,
    FIFO_WINDOW_MS,
    FIXED,
    KNOWN,
    NUMBERS,
    Asked,
    allows_source,
    differing,
    is_fifo,
    kept_with,
    read_attributes,
    shown_attributes,
    unknown_attribute,
    wrong_value,
)
from topics.api.sqs.errors import SqsError, invalid_value, no_such_queue
from topics.api.sqs.exchange import Exchange
from topics.api.sqs.messages import forbidden
from topics.api.sqs.operations import Operation
from topics.api.sqs.requests import (
    CreateQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListQueues,
    ListSources,
    OfQueue,
    QueueAttributes,
    QueueTags,
    QueueUrl,
    QueueUrls,
    SetQueueAttributes,
    SourceUrls,
    TagQueue,
    UntagQueue,
)
from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.topic_search import TopicQuery, search
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.log.topic import Topic
from topics.engine.queues.part import queue_of
from topics.engine.queues.verbs import Queues
from topics.model.clock import Clock
from topics.model.cursors import page_cursor, place_of
from topics.model.errors import InvalidRequest
from topics.model.requests.config import UNSET, ConfigPatch, ConfigRequest, SqsRequest, resolve
from topics.model.requests.records import DeleteRequest

NAME_CHARS_MAX: Final = 80
RESULTS_MAX: Final = 1_000
TAGS_MAX: Final = 50
TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX = 128, 256
NAMES_PER_STEP: Final = 2_000

# As topics are named: SQS itself has neither dots (but that of .fifo) nor colons.
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)


class NamePlace(msgspec.Struct):
    """The place in a list of queues."""

    name: str


class QueueOperations:
    def __init__(self, engine: Engine, queues: Queues, clock: Clock) -> None:
        self._engine = engine
        self._queues = queues
        self._clock = clock

    def table(self) -> dict[str, Operation]:
        return {
            "CreateQueue": Operation(CreateQueue, self.create, Scope.NONE),
            "DeleteQueue": Operation(OfQueue, self.delete, Scope.DELETE),
            "GetQueueUrl": Operation(GetQueueUrl, self.url, Scope.NONE),
            "ListQueues": Operation(ListQueues, self.list, Scope.READ),
            "ListDeadLetterSourceQueues": Operation(ListSources, self.sources, Scope.READ),
            "GetQueueAttributes": Operation(GetQueueAttributes, self.attributes, Scope.READ),
            "SetQueueAttributes": Operation(SetQueueAttributes, self.set_attributes, Scope.ADMIN),
            "PurgeQueue": Operation(OfQueue, self.purge, Scope.DELETE),
            "TagQueue": Operation(TagQueue, self.tag, Scope.ADMIN),
            "UntagQueue": Operation(UntagQueue, self.untag, Scope.ADMIN),
            "ListQueueTags": Operation(OfQueue, self.tags, Scope.READ),
            "AddPermission": Operation(OfQueue, self.refuse_permission, Scope.NONE),
            "RemovePermission": Operation(OfQueue, self.refuse_permission, Scope.NONE),
        }

    def find(self, name: str) -> Topic:
        """May raise Busy."""
        return self._queues.find(name)[0]

    # --- create, delete ---

    def create(self, exchange: Exchange) -> Steps[QueueUrl]:
        """A queue that exists as requested is confirmed; only making one needs the scope admin."""
        params: CreateQueue = exchange.params
        name, given = exchange.allowed(_checked_name(params.queue_name), "QueueName"), params.attributes or {}
        _check_fifo(name, given)
        asked = read_attributes(name, given, self._target_of(exchange, name))
        tags = params.tags or {}
        _check_tags(tags)
        change = yield from attempt(lambda: self._create(exchange, name, asked, tags))
        yield from published(change)
        return QueueUrl(exchange.url_of(name))

    def _create(self, exchange: Exchange, name: str, asked: Asked, tags: dict[str, str]) -> PendingChange:
        topic = self._engine.find_to_write(name)
        if topic is None:
            exchange.call.principal.check_scopes(Scope.ADMIN)
            return self._engine.create(name, resolve(self._config(name, asked, tags), name))
        differs = "type" if queue_of(topic) is None else differing(asked, topic.config)
        if differs is not None:
            raise SqsError(
                "QueueNameExists", f"A queue already exists with the same name and a different value for {differs}"
            )
        return settled(topic.id)

    def _config(self, name: str, asked: Asked, tags: dict[str, str]) -> ConfigRequest:
        """With the defaults of SQS, and leases that last over restarts, as the invisibility of a message does."""
        kept = kept_with(None, asked.kept, self._clock.now_ms())
        fields: dict[str, Any] = {
            "lease_ms": 1000 * NUMBERS["VisibilityTimeout"].default,
            "ttl_ms": 1000 * NUMBERS["MessageRetentionPeriod"].default,
            **asked.fields,
        }
        if is_fifo(name):
            fields |= {"idempotency_window_ms": FIFO_WINDOW_MS, "max_in_flight_per_tag": 1}
        sqs = SqsRequest(kept.attributes, tags, kept.modified_ts)
        return ConfigRequest(type="queue", leases_durable=True, sqs=sqs, **fields)

    def _target_of(self, exchange: Exchange, source: str) -> Callable[[str], str]:
        def target_of(arn: str) -> str:
            name = exchange.name_of(arn, "RedrivePolicy")
            topic = self._engine.state.by_name.get(name)
            if topic is None or queue_of(topic) is None:
                raise wrong_value("RedrivePolicy", arn, "Dead letter target does not exist.")
            if not allows_source(topic.config, exchange.arn_of(source)):
                raise wrong_value("RedrivePolicy", arn, "its RedriveAllowPolicy does not allow this queue")
            return name

        return target_of

    def delete(self, exchange: Exchange) -> Steps[None]:
        name = exchange.queue

        def drop() -> PendingChange:
            self.find(name)
            return self._engine.drop(name)

        change = yield from attempt(drop)
        yield from published(change)

    def purge(self, exchange: Exchange) -> Steps[None]:
        """Everything goes, also what is delayed or in flight."""
        name = exchange.queue
        topic = yield from attempt(lambda: self.find(name))
        everything = DeleteRequest(before_seq=topic.assigned_seq + 1)
        change = yield from self._engine.delete(name, everything, exchange.call.must_now_finish)
        yield from published(change)

    # --- find, list ---

    def url(self, exchange: Exchange) -> Steps[QueueUrl]:
        name = exchange.allowed(exchange.params.queue_name, "QueueName")
        try:
            yield from attempt(lambda: self.find(name))
        except InvalidRequest:
            raise no_such_queue() from None
        return QueueUrl(exchange.url_of(name))

    def list(self, exchange: Exchange) -> Steps[QueueUrls]:
        params: ListQueues = exchange.params
        limit = _results(params.max_results)
        query = TopicQuery(params.queue_name_prefix or "", "", "queue", exchange.call.principal.prefixes)
        try:
            topics, cursor = yield from search(self._engine.state, query, "name", params.next_token, limit)
        except InvalidRequest:
            raise _wrong_token() from None
        found = QueueUrls([exchange.url_of(topic.name) for topic in topics])
        if cursor is not None and params.max_results is not None:
            found.next_token = cursor
        return found

    def sources(self, exchange: Exchange) -> Steps[SourceUrls]:
        """Queues whose dead letters come here."""
        params: ListSources = exchange.params
        limit, prefixes = _results(params.max_results), exchange.call.principal.prefixes
        topic = yield from attempt(lambda: self.find(exchange.queue))
        try:
            after = "" if params.next_token is None else place_of(params.next_token, NamePlace).name
        except InvalidRequest:
            raise _wrong_token() from None
        names: list[str] = []
        for number, name in enumerate(tuple(self._engine.state.names)):
            if number % NAMES_PER_STEP == NAMES_PER_STEP - 1:
                yield None
            other = self._engine.state.by_name.get(name) if name > after else None
            if other is not None and other.config.dead_letter == topic.name and name.startswith(prefixes):
                names.append(name)
                if len(names) > limit:
                    break
        found = SourceUrls([exchange.url_of(name) for name in names[:limit]])
        if len(names) > limit:
            found.next_token = page_cursor(NamePlace(names[limit - 1]))
        return found

    # --- attributes ---

    def attributes(self, exchange: Exchange) -> Steps[QueueAttributes]:
        params: GetQueueAttributes = exchange.params
        name, wanted = exchange.queue, params.attribute_names or []
        for attribute in wanted:
            if attribute != "All" and attribute not in KNOWN:
                raise unknown_attribute(attribute)
        topic, queue, _ = yield from attempt(lambda: self._queues.find(name))
        shown = shown_attributes(topic, queue, exchange.arn_of)
        everything = "All" in wanted
        return QueueAttributes({key: text for key, text in shown.items() if everything or key in wanted})

    def set_attributes(self, exchange: Exchange) -> Steps[None]:
        name, given = exchange.queue, exchange.params.attributes
        for attribute in (*COUNTS, *FIXED):
            if attribute in given:
                raise SqsError("InvalidAttributeName", f"{attribute} cannot be changed.")
        asked = read_attributes(name, given, self._target_of(exchange, name))

        def change() -> PendingChange:
            topic = self.find(name)
            patch = ConfigPatch(sqs=kept_with(topic.config, asked.kept, self._clock.now_ms()), **asked.fields)
            return self._engine.configuration.edit(name, patch)

        yield from published((yield from attempt(change)))

    # --- tags ---

    def tags(self, exchange: Exchange) -> Steps[QueueTags]:
        topic = yield from attempt(lambda: self.find(exchange.queue))
        return QueueTags(_tags_of(topic))

    def tag(self, exchange: Exchange) -> Steps[None]:
        given: dict[str, str] = exchange.params.tags
        yield from self._retag(exchange, lambda tags: {**tags, **given})

    def untag(self, exchange: Exchange) -> Steps[None]:
        gone: list[str] = exchange.params.tag_keys
        yield from self._retag(exchange, lambda tags: {key: tags[key] for key in tags if key not in gone})

    def _retag(self, exchange: Exchange, changed: Callable[[dict[str, str]], dict[str, str]]) -> Steps[None]:
        name = exchange.queue

        def change() -> PendingChange:
            topic = self.find(name)
            tags = changed(_tags_of(topic))
            _check_tags(tags)
            kept = kept_with(topic.config, {}, self._clock.now_ms())
            patch = ConfigPatch(sqs=SqsRequest(kept.attributes, tags, kept.modified_ts))
            return self._engine.configuration.edit(name, patch)

        yield from published((yield from attempt(change)))

    def refuse_permission(self, exchange: Exchange) -> Steps[None]:
        del exchange
        raise SqsError(
            "UnsupportedOperation", "The scopes and prefixes of API keys decide who may use a queue: see the server."
        )
        yield


def _tags_of(topic: Topic) -> dict[str, str]:
    return {} if topic.config.sqs is UNSET else dict(topic.config.sqs.tags)


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise SqsError("InvalidParameterValue", f"Too many tags: a queue can have {TAGS_MAX}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or len(value) > TAG_VALUE_CHARS_MAX:
            raise SqsError(
                "InvalidParameterValue",
                f"The key of a tag must be 1 to {TAG_KEY_CHARS_MAX} characters long, its value at most "
                f"{TAG_VALUE_CHARS_MAX}.",
            )
        if forbidden.search(key) is not None or forbidden.search(value) is not None:
            raise SqsError("InvalidParameterValue", "A tag contains characters that SQS does not allow.")


def _checked_name(name: str) -> str:
    if len(name) > NAME_CHARS_MAX or _name.fullmatch(name) is None:
        raise invalid_value(
            name[:NAME_CHARS_MAX],
            "QueueName",
            "Can only include alphanumeric characters, hyphens, underscores, dots or colons, and must start with an "
            f"alphanumeric one. 1 to {NAME_CHARS_MAX} in length",
        )
    return name


def _check_fifo(name: str, given: Mapping[str, str]) -> None:
    asked = given.get("FifoQueue", "false")
    if asked not in ("true", "false"):
        raise wrong_value("FifoQueue", asked, "must be true or false")
    if (asked == "true") != is_fifo(name):
        raise SqsError(
            "InvalidParameterValue",
            f"The name of a FIFO queue must end with {FIFO}, and a queue with that name must have FifoQueue=true.",
        )


def _results(asked: int | None) -> int:
    if asked is not None and not 1 <= asked <= RESULTS_MAX:
        raise invalid_value(asked, "MaxResults", f"must be between 1 and {RESULTS_MAX}")
    return asked or RESULTS_MAX


def _wrong_token() -> SqsError:
    return SqsError("InvalidParameterValue", "Invalid or expired next token.")
