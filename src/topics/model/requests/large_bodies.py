"""Bodies too large to decode at once: their records are decoded piece by piece, and too many are refused early.

    {"node":"a","records":[ {…},{…},{…}, {…},{…}, … {…} ],"idempotency_key":"k"}
    └──── envelope ───────┘ └─ piece ──┘ └ piece ┘   └──────── rest ──────────┘

The end of a piece is guessed: a comma between two objects, the second of which begins like a record. Decoding shows
whether the guess was right, because a piece that ends inside a payload is not a JSON list. After some wrong guesses the
end of the next record is found bracket by bracket, which is slow but always right.

A body for several topics has a list for each; the decoder finds the end of a list by refusing what comes after it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from types import GenericAlias
from typing import Any, Final, TypeVar

import msgspec

from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.model.requests.batch import BatchLimits, checking_metas
from topics.model.requests.mistakes import BODY, mistake, nested_too_deeply
from topics.model.requests.multi_append import MultiAppendRequest, TopicBatchRequest, within
from topics.model.requests.nesting import TooDeep, decode_limited
from topics.model.requests.records import decode_body

W = TypeVar("W")

LARGE_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
# Bytes of a record besides `data` and `meta`: its other fields, escapes in them, white space.
RECORD_EXTRA_BYTES: Final = 64 * 1024
GUESSES_MAX: Final = 4
SLICE_TOKENS: Final = 2_000

_START = re.compile(rb'"records"\s*+:\s*+\[')
_BETWEEN = re.compile(rb'\}(\s*+,)\s*+\{\s*+"(?:data|tag|node|meta|delay_ms|unique_key|job_priority|group|topic)"\s*+:')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_COMMA = re.compile(rb"\s*+,")
_COMMA_OR_END = re.compile(rb"\s*+(?:,|(?=\]))")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NUMBER = re.compile(r"(?:records)?\[(\d+)\]")


def decode_large(decoder: msgspec.json.Decoder[W], body: bytes, limits: BatchLimits) -> Generator[None, None, W]:
    """Decode a body whose records are in a field `records`; pauses after about each millisecond of work."""
    start = _START.search(body, 0, LARGE_BYTES)
    if start is None:
        raise InvalidRequest(f"records must begin within the first {LARGE_BYTES} bytes of the body", field="records")
    pieces = _Pieces(body, start.end(), decoder.type, limits)
    yield from pieces.decode()
    rest = body[: start.end()] + body[pieces.at :]
    if _START.search(rest, start.end()) is not None:
        yield from pieces.check_given_once()
    try:
        envelope: Any = decode_body(decoder, rest)
    except InvalidRequest as error:
        raise pieces.numbered(error) from None
    if pieces.records and not envelope.records:
        raise pieces.missing()
    pieces.check_count(len(envelope.records))
    envelope.records = pieces.records + envelope.records
    yield from checking_metas(envelope.records, limits)
    return envelope


def decode_large_topics(
    decoder: msgspec.json.Decoder[MultiAppendRequest], body: bytes, limits: BatchLimits
) -> Generator[None, None, MultiAppendRequest]:
    """Decode a body with a list of records for each of several topics; pauses like `decode_large`."""
    envelope: list[bytes] = []
    lists: list[list[Any]] = []
    at = size = count = 0
    while (start := _START.search(body, at, at + LARGE_BYTES)) is not None:
        pieces = _Pieces(body, start.end(), TopicBatchRequest, limits)
        try:
            yield from pieces.decode_list()
        except (InvalidRequest, RecordTooLarge) as error:
            raise _of_some_topic(error) from None
        yield
        envelope.append(body[at : start.end()])
        size += start.end() - at
        at = pieces.at
        lists.append(pieces.records)
        count += len(pieces.records)
        if count > limits.max_batch_records:
            most = limits.max_batch_records
            raise BatchTooLarge(
                f"topics hold more than {most} records; at most {most} fit one write, split it",
                field="topics",
                max=most,
            )
        if size > LARGE_BYTES:
            break
    if size + len(body) - at > LARGE_BYTES:
        raise InvalidRequest(f"fields other than records must be at most {LARGE_BYTES} bytes in all", field="topics")
    request = decode_body(decoder, b"".join((*envelope, body[at:])))
    if len(lists) != len(request.topics):
        raise InvalidRequest("topics must name each topic once, with one list of records", field="topics")
    for (name, part), records in zip(request.topics.items(), lists, strict=True):
        part.records = records
        try:
            yield from checking_metas(records, limits)
        except InvalidRequest as error:
            raise within(name, error) from None
    return request


def _of_some_topic(error: TopicsError) -> TopicsError:
    """The error of decoding at once, which does not name the topic either."""
    field = str(error.detail["field"])
    if field == BODY:
        return error
    return type(error)(f"topics[...].{error.message}", detail={**error.detail, "field": f"topics[...].{field}"})


class _Pieces:
    """The records up to `at`, where a record starts."""

    def __init__(self, body: bytes, at: int, envelope: Any, limits: BatchLimits) -> None:
        self._body = body
        self._decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(
            GenericAlias(list, _record_type(envelope))
        )
        self._limits = limits
        self._record_bytes_max = limits.max_record_bytes + RECORD_EXTRA_BYTES
        self.at = at
        self.records: list[Any] = []

    def decode(self) -> Generator[None, None, None]:
        """Decode pieces until the rest is smaller than one."""
        while len(self._body) - self.at > self._record_bytes_max + PIECE_BYTES:
            yield from self._next_piece()

    def decode_list(self) -> Generator[None, None, None]:
        """Decode pieces up to the end of this list, whatever comes after it."""
        while (end := self._list_end()) is None:
            yield from self._next_piece(_COMMA_OR_END)
            yield
        if self._body[self.at : end].strip():
            if not self._take(end, end):
                raise self._too_long()
        elif self.records and self._body[self.at - 1 : self.at] == b",":
            raise self.missing()

    def _list_end(self) -> int | None:
        """Where the list is closed; None if that is not within the next piece."""
        stop = self.at + PIECE_BYTES
        try:
            decode_limited(self._decoder, b"[" + self._body[self.at : stop])
        except msgspec.ValidationError as error:
            raise self.numbered(mistake(error, self._decoder.type)) from None
        except TooDeep as error:
            raise self.numbered(nested_too_deeply(error.field or BODY)) from None
        except msgspec.DecodeError as error:
            found = _TRAILING.search(str(error))
            if found is None:
                return None
            # counted from the bracket put before it, and after the first byte that is not part of the list
            stop = self.at + int(found[1]) - 2
        return self._body.rindex(b"]", self.at, stop)

    def check_count(self, more: int = 0) -> None:
        most = self._limits.max_batch_records
        if len(self.records) + more > most:
            message = f"records holds more than {most} records; at most {most} fit one write, split the batch"
            raise BatchTooLarge(message, field="records", max=most)

    def check_given_once(self) -> Generator[None, None, None]:
        """Check that there is only one such list: a second one would replace it."""
        position = self.at
        while (end := (yield from self._record_end(position))) is not None:
            position = end
        if _START.search(self._body, position) is not None:
            raise InvalidRequest("records is given twice", field="records")

    def _next_piece(self, following: re.Pattern[bytes] = _COMMA) -> Generator[None, None, None]:
        guess_at = self.at + PIECE_BYTES
        for _ in range(GUESSES_MAX):
            found = _BETWEEN.search(self._body, guess_at, self.at + PIECE_BYTES + self._record_bytes_max)
            if found is None:
                break
            if self._take(found.start() + 1, found.end(1)):
                yield
                return
            guess_at = found.end()
            yield
        end = yield from self._record_end(self.at)
        after = None if end is None else following.match(self._body, end)
        if end is None or after is None or not self._take(end, after.end()):
            raise self._too_long()

    def _take(self, end: int, following: int) -> bool:
        """Decode the piece up to `end`, if it is one."""
        piece = b"[" + self._body[self.at : end] + b"]"
        try:
            if piece.isascii():
                records = decode_limited(self._decoder, piece)
            else:
                records = decode_body(self._decoder, piece)
            self.records += records
        except (msgspec.ValidationError, TooDeep):
            self._report(piece)
        except msgspec.DecodeError:
            return False
        except InvalidRequest as error:
            raise self.numbered(error) from None
        self.at = following
        self.check_count()
        return True

    def _report(self, piece: bytes) -> None:
        """The piece is JSON but has the wrong type: the mistake is in one of its records."""
        try:
            decode_body(self._decoder, piece)
        except InvalidRequest as error:
            raise self.numbered(error) from None

    def numbered(self, error: InvalidRequest) -> InvalidRequest:
        """The same mistake, with the record's number in the whole body."""
        field = str(error.detail["field"])
        found = _NUMBER.match(field)
        if found is None:
            aside = f" (counted from records[{len(self.records)}])" if field == BODY else ""
            return InvalidRequest(error.message + aside, **error.detail)
        name = f"records[{len(self.records) + int(found[1])}]"
        detail = {**error.detail, "field": name + field[found.end() :]}
        return InvalidRequest(name + error.message.removeprefix(found[0]), detail=detail)

    def _record_end(self, start: int) -> Generator[None, None, int | None]:
        """Where the next object after `start` ends; None if the list ends before one, or if it is too long."""
        depth = tokens = 0
        position, stop = start, start + self._record_bytes_max
        while token := _TOKEN.search(self._body, position, stop):
            position = token.end()
            if token[0] in (b"[", b"{"):
                depth += 1
            elif token[0] in (b"]", b"}"):
                depth -= 1
                if depth <= 0:
                    return position if not depth else None
            tokens += 1
            if not tokens % SLICE_TOKENS:
                yield
        return None

    def missing(self) -> InvalidRequest:
        """A piece ends with a comma: another record must come after it."""
        number = len(self.records)
        return InvalidRequest(f"records[{number}] is missing after a comma", field=f"records[{number}]")

    def _too_long(self) -> Exception:
        number, most = len(self.records), self._limits.max_record_bytes
        message = f"records[{number}] is too large: at most {most} bytes of data and meta (max_record_bytes)"
        if self._body[self.at : self.at + self._record_bytes_max].lstrip()[:1] != b"{":
            return InvalidRequest(f"records[{number}] must be an object", field=f"records[{number}]")
        if len(self._body) - self.at <= self._record_bytes_max:
            return InvalidRequest(f"records[{number}] is not valid JSON", field=f"records[{number}]")
        return RecordTooLarge(message, field=f"records[{number}]", max=most)


def _record_type(envelope: Any) -> Any:
    field = next(field for field in msgspec.structs.fields(envelope) if field.name == "records")
    found = msgspec.inspect.type_info(field.type)
    if isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    assert isinstance(found, msgspec.inspect.ListType) and isinstance(found.item_type, msgspec.inspect.StructType)
    return found.item_type.cls
