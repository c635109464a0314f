"""From arguments to requests of the engine, checked like a request body; and the warnings they cause."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET

from topics.model.requests.mistakes import mistake, nested_too_deeply
from topics.model.requests.nesting import SHALLOW_BYTES_MAX, TooDeep, is_too_deep
from topics.model.requests.records import RecordRequest, decode_body

W = TypeVar("W", bound=msgspec.Struct)
_log = logging.getLogger("topics.embedded")


def request_of(kind: type[W], **fields: object) -> W:
    """The request body with these fields; those that are None are left out."""
    return converted(kind, {name: value for name, value in fields.items() if value is not None})


def converted(kind: type[W], fields: Mapping[str, object] | msgspec.Struct) -> W:
    try:
        return msgspec.convert(fields, kind, from_attributes=isinstance(fields, msgspec.Struct))
    except msgspec.ValidationError as error:
        raise mistake(error, kind) from None


def decoded(decoder: msgspec.json.Decoder[W], body: bytes) -> W:
    """The same for JSON; its payloads are left to `check_nesting`."""
    return decode_body(decoder, body, _decode)


def _decode(decoder: msgspec.json.Decoder[W], body: bytes) -> W:
    """Decode without a lower recursion limit, which would apply to all threads of the program."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise TooDeep("") from None


def check_nesting(records: Iterable[RecordRequest], within: str = "records") -> None:
    """Refuse payloads that are nested deeper than a server accepts."""
    for number, record in enumerate(records):
        for field, payload in (("data", record.data), ("meta", record.meta)):
            if payload is not UNSET and memoryview(payload).nbytes > SHALLOW_BYTES_MAX and is_too_deep(bytes(payload)):
                raise nested_too_deeply(f"{within}[{number}].{field}")


def warn(warnings: Iterable[str]) -> None:
    """Log warnings about what was done."""
    for warning in warnings:
        _log.warning("%s", warning)
