"""The older query protocol: fields as a form, numbered lists in their names, results as XML.

Attribute.1.Name=DelaySeconds&Attribute.1.Value=5   is   {"Attributes": {"DelaySeconds": "5"}} in JSON
TagKey.1=a&TagKey.2=b                               is   {"TagKeys": ["a", "b"]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from topics.api.sqs.errors import SqsError
from topics.api.sqs.json_protocol import wrong_shape
from topics.engine.core.waiting.runner import Steps
from topics.http.request import Header, Request

NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
# More than a batch of ten messages with ten attributes each has.
FIELDS_MAX = 1_000
ITEMS_MAX = 256
# Unquoted at once, which takes some 2 ms if all of it is escaped.
SLICE_BYTES = 8 * 1024
# Fields deeper than the deepest known one are ignored, as unknown ones are.
DOTS_MAX = 8


class Renamed(NamedTuple):
    """A list or map under its name in JSON; a map has the names of its keys and values."""

    name: str
    key: str = ""
    value: str = ""


INPUTS: Final[Mapping[str, Renamed]] = {
    "Attribute": Renamed("Attributes", "Name", "Value"),
    "AttributeName": Renamed("AttributeNames"),
    "ChangeMessageVisibilityBatchRequestEntry": Renamed("Entries"),
    "DeleteMessageBatchRequestEntry": Renamed("Entries"),
    "MessageAttribute": Renamed("MessageAttributes", "Name", "Value"),
    "MessageAttributeName": Renamed("MessageAttributeNames"),
    "MessageSystemAttribute": Renamed("MessageSystemAttributes", "Name", "Value"),
    "MessageSystemAttributeName": Renamed("MessageSystemAttributeNames"),
    "SendMessageBatchRequestEntry": Renamed("Entries"),
    "Tag": Renamed("Tags", "Key", "Value"),
    "TagKey": Renamed("TagKeys"),
}
OUTPUTS: Final[Mapping[str, Renamed]] = {
    "Attributes": Renamed("Attribute", "Name", "Value"),
    "Failed": Renamed("BatchResultErrorEntry"),
    "MessageAttributes": Renamed("MessageAttribute", "Name", "Value"),
    "Messages": Renamed("Message"),
    "QueueUrls": Renamed("QueueUrl"),
    "queueUrls": Renamed("QueueUrl"),
    "Results": Renamed("ListMessageMoveTasksResultEntry"),
    "Tags": Renamed("Tag", "Key", "Value"),
}

_number = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
# XML cannot carry control characters and half characters. Its parsers turn a carriage return into a line feed unless
# it is escaped.
_ESCAPES: Final = {
    **dict.fromkeys((*range(0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("\r"): "&#xD;",
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
}

Tree = dict[str, "Tree | str"]


class QueryProtocol:
    content_type = b"text/xml"

    def operation(self, request: Request) -> Steps[tuple[str, dict[str, str]]]:
        """Pauses after each slice."""
        body = request.body
        if not body.isascii() or body.count(b"&") >= FIELDS_MAX:
            raise _malformed()
        fields: dict[str, str] = {}
        spent = 0
        for pair in body.replace(b"+", b" ").split(b"&"):
            if not pair:
                continue
            name, _, value = pair.partition(b"=")
            texts: list[str] = []
            for quoted in (name, value):
                parts: list[bytes] = []
                for piece in _slices(quoted):
                    spent += len(piece)
                    if spent > SLICE_BYTES:
                        spent = len(piece)
                        yield None
                    parts.append(unquote_to_bytes(piece))
                try:
                    texts.append(b"".join(parts).decode())
                except UnicodeDecodeError:
                    raise _malformed() from None
            fields[texts[0]] = texts[1]
        return fields.pop("Action", ""), fields

    def decode(self, body: Any, shape: type[msgspec.Struct]) -> Any:
        tree: Tree = {}
        for name, value in cast("dict[str, str]", body).items():
            if name.count(".") > DOTS_MAX:
                continue
            _plant(tree, name.split("."), value)
        fields = _fields(tree)
        if "tags" in shape.__struct_encode_fields__ and "Tags" in fields:
            fields["tags"] = fields.pop("Tags")
        try:
            return msgspec.convert(fields, shape, strict=False)
        except msgspec.ValidationError as error:
            raise wrong_shape(error) from None

    def encode(self, operation: str, result: msgspec.Struct | None, request_id: str) -> bytes:
        parts = [f'<?xml version="1.0"?>\n<{operation}Response xmlns="{NAMESPACE}">']
        if result is not None:
            parts.append(f"<{operation}Result>")
            _write_fields(parts, msgspec.to_builtins(result), operation)
            parts.append(f"</{operation}Result>")
        parts.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>")
        return "".join(parts).encode()

    def encode_error(self, error: SqsError, request_id: str) -> tuple[bytes, tuple[Header, ...]]:
        body = (
            f'<?xml version="1.0"?>\n<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{error.fault}</Type>'
            f"<Code>{error.query_code}</Code><Message>{error.message.translate(_ESCAPES)}</Message><Detail/></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return body.encode(), ()


# --- fields ---


def _malformed() -> SqsError:
    return SqsError("MalformedQueryString", f"The body is not a form of at most {FIELDS_MAX} fields in UTF-8")


def _slices(quoted: bytes) -> Iterator[bytes]:
    """Cut so that no escape is in two of them."""
    at = 0
    while at < len(quoted):
        end = at + SLICE_BYTES
        if end < len(quoted) and (cut := quoted.rfind(b"%", end - 2, end)) >= 0:
            end = cut
        yield quoted[at:end]
        at = end


def _plant(tree: Tree, path: list[str], value: str) -> None:
    for name in path[:-1]:
        branch = tree.setdefault(name, {})
        if isinstance(branch, str):
            return
        tree = branch
    tree.setdefault(path[-1], value)


def _fields(tree: Tree) -> dict[str, Any]:
    """The fields of one object, as JSON has them."""
    fields: dict[str, Any] = {}
    for name, branch in tree.items():
        renamed = INPUTS.get(name)
        if isinstance(branch, str):
            fields[name] = branch
        elif renamed is None:
            fields[name] = _fields(branch)
        elif renamed.key:
            fields[renamed.name] = dict(_pairs(_items(branch), renamed))
        else:
            fields[renamed.name] = _items(branch)
    return fields


def _pairs(items: list[Any], renamed: Renamed) -> Iterator[tuple[str, Any]]:
    for item in items:
        pair = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        key = pair.get(renamed.key)
        if isinstance(key, str):
            yield key, pair.get(renamed.value, "")


def _items(branch: Tree) -> list[Any]:
    """The items of a list, by their numbers."""
    numbers = sorted((int(name), name) for name in branch if _number.fullmatch(name) is not None)[:ITEMS_MAX]
    found = [branch[name] for _, name in numbers]
    return [item if isinstance(item, str) else _fields(item) for item in found]


# --- results ---


def _write_fields(parts: list[str], fields: Mapping[str, Any], operation: str) -> None:
    for name, value in fields.items():
        renamed = Renamed(f"{operation}ResultEntry") if name == "Successful" else OUTPUTS.get(name)
        if renamed is None:
            _write(parts, name, value, operation)
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                parts.append(f"<{renamed.name}>")
                _write_fields(parts, {renamed.key: key, renamed.value: item}, operation)
                parts.append(f"</{renamed.name}>")
        else:
            for item in value:
                _write(parts, renamed.name, item, operation)


def _write(parts: list[str], name: str, value: Any, operation: str) -> None:
    parts.append(f"<{name}>")
    if isinstance(value, dict):
        _write_fields(parts, cast("dict[str, Any]", value), operation)
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    else:
        parts.append(str(value).translate(_ESCAPES))
    parts.append(f"</{name}>")
