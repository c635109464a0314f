"""AWS JSON 1.0: the operation in a header, fields and results as JSON."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec

from topics.api.sqs.errors import SqsError, missing
from topics.engine.core.waiting.runner import Steps
from topics.http.request import Header, Request

TARGET: Final = b"AmazonSQS."
# Each of these is in the body once for a message or an attribute: more of them than a batch can have cost more to
# decode than to send.
COUNTED: Final = (b'"MessageBody"', b'"ReceiptHandle"', b'"DataType"')
COUNTED_MAX = 500
ESCAPE: Final = b"\\u00"
# Searched at once.
SLICE_BYTES = 128 * 1024

# A letter, escaped: no encoder writes it, but one in a name would hide the name from the count.
_escaped_letter = re.compile(rb"\\u00(?:4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa])")
_encode = msgspec.json.Encoder().encode
_missing_field = re.compile(r"missing required field `(\w+)`")


@cache
def _decoder(shape: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    # AWS takes "5" for 5.
    return msgspec.json.Decoder(shape, strict=False)


def wrong_shape(error: msgspec.ValidationError) -> SqsError:
    found = _missing_field.search(str(error))
    return missing(found[1]) if found is not None else SqsError("InvalidParameterValue", str(error))


def _check_numbers(body: bytes) -> Steps[None]:
    """A name that is spelt with escapes has at least one letter escaped, so that both together count every name."""
    names, letters = [0] * len(COUNTED), 0
    for at in range(0, len(body), SLICE_BYTES):
        if at:
            yield None
        end = at + SLICE_BYTES
        for number, name in enumerate(COUNTED):
            names[number] += body.count(name, at, end + len(name) - 1)
        if body.find(ESCAPE, at, end + len(ESCAPE) - 1) >= 0:
            letters += sum(1 for _ in _escaped_letter.finditer(body, at, end + len(ESCAPE) + 1))
        if max(names) + letters > COUNTED_MAX:
            raise SqsError("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10.")


class JsonProtocol:
    content_type = b"application/x-amz-json-1.0"

    def operation(self, request: Request) -> Steps[tuple[str, bytes]]:
        target = request.header(b"x-amz-target") or b""
        yield from _check_numbers(request.body)
        return target[len(TARGET) :].decode("latin-1"), request.body

    def decode(self, body: Any, shape: type[msgspec.Struct]) -> Any:
        try:
            return _decoder(shape).decode(body or b"{}")
        except msgspec.ValidationError as error:
            raise wrong_shape(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SqsError("SerializationException", f"The body is not valid JSON: {error}") from None

    def encode(self, operation: str, result: msgspec.Struct | None, request_id: str) -> bytes:
        del operation, request_id
        return b"{}" if result is None else _encode(result)

    def encode_error(self, error: SqsError, request_id: str) -> tuple[bytes, tuple[Header, ...]]:
        """Newer SDKs read the shape, those that replace older ones the older code."""
        del request_id
        body = _encode({"__type": f"com.amazonaws.sqs#{error.shape}", "message": error.message})
        return body, ((b"x-amzn-query-error", f"{error.query_code};{error.fault}".encode()),)
