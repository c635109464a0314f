"""The two protocols without a server: how much of a body is decoded in a turn, and what is refused before it is."""

import xml.etree.ElementTree as ET
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.auth import OpenAuthenticator
from topics.api.sqs import json_protocol, query_protocol
from topics.api.sqs.errors import SqsError
from topics.api.sqs.json_protocol import COUNTED_MAX, JsonProtocol
from topics.api.sqs.query_protocol import QueryProtocol
from topics.api.sqs.requests import QueueTags, SendMessage, SendMessageBatch
from topics.api.sqs.service import SqsFamily
from topics.http.request import Request


def form(body: bytes) -> Generator[Any, None, tuple[str, dict[str, str]]]:
    return QueryProtocol().operation(cast("Request", SimpleNamespace(body=body)))


def run(steps: Generator[Any, None, Any]) -> tuple[Any, int]:
    """The result, and the number of turns before it."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, turns
        turns += 1


@pytest.mark.parametrize("fields", [1, 100])
def test_a_large_form_is_decoded_in_slices(monkeypatch: pytest.MonkeyPatch, fields: int) -> None:
    turn, spent = 0, dict[int, int]()

    def counted(text: bytes) -> bytes:
        spent[turn] = spent.get(turn, 0) + len(text)
        return unquote_to_bytes(text)

    monkeypatch.setattr(query_protocol, "unquote_to_bytes", counted)
    escapes = 50_000 // fields
    steps = form(b"Action=SendMessage" + b"".join(b"&f%d=" % n + b"%41" * escapes for n in range(fields)))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            name, found = end.value
            break
        turn += 1
    assert (name, found) == ("SendMessage", {f"f{n}": "A" * escapes for n in range(fields)})
    assert sum(spent.values()) >= 150_000
    assert max(spent.values()) <= query_protocol.SLICE_BYTES


def test_a_small_form_is_decoded_at_once() -> None:
    assert run(form(b"Action=SendMessage&MessageBody=a+%2B%26b&&x")) == (
        ("SendMessage", {"MessageBody": "a +&b", "x": ""}),
        0,
    )


@given(st.text(alphabet="%4a1gx =+.&\r\n", max_size=60).map(str.encode), st.integers(3, 9))
def test_any_form_is_decoded_as_it_would_be_at_once(body: bytes, slice_bytes: int) -> None:
    try:
        expected = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_protocol, "SLICE_BYTES", slice_bytes)
        (name, found), _ = run(form(body))
    assert (name, found) == (expected.pop("Action", ""), expected)


@given(st.binary(max_size=60), st.integers(3, 9))
def test_bytes_are_text_or_refused(value: bytes, slice_bytes: int) -> None:
    body = b"a=" + quote_from_bytes(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_protocol, "SLICE_BYTES", slice_bytes)
        try:
            expected = value.decode()
        except UnicodeDecodeError:
            with pytest.raises(SqsError):
                run(form(body))
        else:
            assert run(form(body))[0] == ("", {"a": expected})


@pytest.mark.parametrize("body", ["a=ä".encode(), b"&" * 1_000, b"a=%ff"])
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        run(form(body))
    assert caught.value.shape == "MalformedQueryString"


# --- JSON ---


def decoded(body: bytes, shape: Any) -> Any:
    request = Request(cast("Any", None), "POST", "1.1", [(b"x-amz-target", b"AmazonSQS.SendMessage")])
    request.body = body
    protocol = JsonProtocol()
    (name, found), _ = run(protocol.operation(request))
    assert name == "SendMessage"
    return protocol.decode(found, shape)


def attributes(count: int, name: bytes) -> bytes:
    items = b",".join(b'"%d":{"%b":"String"}' % (number, name) for number in range(count))
    return b'{"MessageBody":"x","MessageAttributes":{%b}}' % items


@pytest.mark.parametrize("name", [b"DataType", b"Data\\u0054ype", b"\\u0044\\u0061taType", b"DataTyp\\u0065"])
def test_too_many_attributes_are_refused_before_they_are_decoded_however_they_are_spelt(name: bytes) -> None:
    assert len(decoded(attributes(50, name), SendMessage).message_attributes) == 50
    with pytest.raises(SqsError) as caught:
        decoded(attributes(COUNTED_MAX + 1, name), SendMessage)
    assert caught.value.shape == "TooManyEntriesInBatchRequest"


@given(st.integers(7, 60), st.sampled_from([b"DataType", b"DataTyp\\u0065"]))
def test_a_name_on_the_edge_of_a_slice_is_counted_once(slice_bytes: int, name: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_protocol, "SLICE_BYTES", slice_bytes)
        patch.setattr(json_protocol, "COUNTED_MAX", 21)
        assert len(decoded(attributes(20, name), SendMessage).message_attributes) == 20
        with pytest.raises(SqsError):
            decoded(attributes(22, name), SendMessage)


def test_spellings_are_counted_together() -> None:
    entry = b'{"Id":"a","MessageBody":"b"},{"Id":"c","M\\u0065ssageBody":"d"}'
    body = b'{"Entries":[%b]}' % b",".join([entry] * (COUNTED_MAX // 2 + 1))
    with pytest.raises(SqsError):
        decoded(body, SendMessageBatch)


@pytest.mark.parametrize("escape", [b"\\u00e4", b"\\u0060", b"\\u003c", b"\\u007f", b"\\\\"])
def test_a_body_may_have_any_number_of_the_escapes_that_encoders_write(escape: bytes) -> None:
    assert decoded(b'{"MessageBody":"%b"}' % (escape * 5_000), SendMessage).message_body


# --- XML ---

UNSENDABLE = "a\x00\x1b\ud800\ufffe\uffffb"


def test_what_xml_cannot_carry_is_replaced() -> None:
    protocol = QueryProtocol()
    reply = ET.fromstring(protocol.encode("ListQueueTags", QueueTags({UNSENDABLE: UNSENDABLE}), "id"))
    shown = [element.text for element in reply.iter() if element.tag.endswith(("}Key", "}Value"))]
    assert shown == ["a\ufffd\ufffd\ufffd\ufffd\ufffdb"] * 2
    body, _ = protocol.encode_error(SqsError("InvalidAction", UNSENDABLE), "id")
    assert "a\ufffd\ufffd\ufffd\ufffd\ufffdb" in [element.text for element in ET.fromstring(body).iter()]


# --- web pages ---


def test_without_keys_a_form_of_a_web_page_is_refused_on_any_address() -> None:
    """Browsers say nothing but the origin to a plain-http address that is not loopback."""
    open_server = OpenAuthenticator((), guarded=False)
    family = SqsFamily(open_server)
    page = {b"origin": b"http://evil.example", b"content-type": b"application/x-www-form-urlencoded"}
    for headers in (page, {**page, b"origin": b"null"}, {**page, b"x-amz-target": b"Other.SendMessage"}):
        with pytest.raises(SqsError) as caught:
            family.authenticate(headers)
        assert (caught.value.shape, caught.value.http_status) == ("AccessDenied", 403)
    # a browser asks first whether a page may send this header
    target = {b"x-amz-target": b"AmazonSQS.SendMessage"}
    assert family.authenticate({**page, **target}) is open_server.anyone
    assert family.authenticate({b"content-type": page[b"content-type"]}) is open_server.anyone
