"""Bodies, digests and handles: what is sent comes back as it was, and what another wrote can be received."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from topics.api.sqs.errors import SqsError
from topics.api.sqs.messages import attributes_md5, body_of, data_of, handle_of, message_id, parse_handle
from topics.api.sqs.requests import AttributeValue
from topics.engine.log.topic import Topic
from topics.model.requests.config import TopicConfig

SENDABLE = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\t\n\r")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text(SENDABLE, min_size=1))
def test_any_body_comes_back_as_it_was_sent(body: str) -> None:
    assert body_of(data_of(body, body.encode())) == body


@given(VALUES, st.sampled_from([None, 1]))
def test_a_body_of_json_comes_back_to_the_byte_and_objects_are_stored_as_such(
    value: object, indent: int | None
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        body.encode()
    except UnicodeEncodeError:
        return
    data = data_of(body, body.encode())
    assert body_of(data) == body
    if isinstance(value, dict | list):
        assert bytes(data) == body.encode()


@pytest.mark.parametrize(
    "body", ['{"a":1} ', "{a}", "[1,]", "[" * 300 + "]" * 300, '"text"', "5", "{}}", '{"a":"\t"}', "null"]
)
def test_what_only_looks_like_an_object_is_a_string(body: str) -> None:
    data = data_of(body, body.encode())
    assert json.loads(bytes(data)) == body
    assert body_of(data) == body


@given(VALUES)
def test_what_another_wrote_is_received_as_text(value: object) -> None:
    written = json.dumps(value).encode()
    body = body_of(Raw(written))
    assert body
    if isinstance(value, str) and body == value:
        return
    assert body.encode() == written


def test_a_string_that_sqs_cannot_carry_is_received_as_json() -> None:
    assert body_of(Raw(b'"a\\u0000b"')) == '"a\\u0000b"'
    assert body_of(Raw(b'""')) == '""'


def test_the_digest_of_attributes_is_the_one_that_sdks_compute() -> None:
    attributes = {
        "Number": AttributeValue("Number", "12"),
        "Text": AttributeValue("String.label", "äh"),
        "Bytes": AttributeValue("Binary", binary_value="AAEC"),
    }
    # computed by boto3's predecessor of this check, with the same attributes
    import hashlib
    import struct

    expected = hashlib.md5()
    for name, kind, mark, value in (
        (b"Bytes", b"Binary", b"\2", b"\0\1\2"),
        (b"Number", b"Number", b"\1", b"12"),
        (b"Text", b"String.label", b"\1", "äh".encode()),
    ):
        for part in (name, kind):
            expected.update(struct.pack("!I", len(part)) + part)
        expected.update(mark + struct.pack("!I", len(value)) + value)
    assert attributes_md5(attributes) == expected.hexdigest()


def a_topic(epoch: int = 7 << 40) -> Topic:
    return Topic(1, "jobs", epoch, TopicConfig(type="queue"), 0)


@given(st.integers(1, 2**63), st.integers(1, 2**63))
def test_a_handle_says_which_lease_of_which_message(seq: int, lease: int) -> None:
    handle = parse_handle(a_topic(), handle_of(a_topic(), seq, f"lease_{lease:x}"))
    assert handle == (seq, f"lease_{lease:x}")


@given(st.integers(0, 39), st.sampled_from("AB-_9"))
def test_a_changed_handle_is_refused(place: int, letter: str) -> None:
    handle = handle_of(a_topic(), 5, "lease_abc")
    changed = handle[:place] + letter + handle[place + 1 :]
    if changed == handle:
        return
    with pytest.raises(SqsError) as caught:
        parse_handle(a_topic(), changed)
    assert caught.value.shape == "ReceiptHandleIsInvalid"


@given(st.text(max_size=60))
def test_garbage_is_not_a_handle(text: str) -> None:
    with pytest.raises(SqsError):
        parse_handle(a_topic(), text)


def test_a_handle_is_for_one_queue_and_an_id_for_one_message() -> None:
    handle = handle_of(a_topic(), 5, "lease_abc")
    with pytest.raises(SqsError):
        parse_handle(a_topic(8 << 40), handle)
    ids = {message_id(a_topic(epoch << 40), seq) for epoch in (7, 8) for seq in (1, 2)}
    assert len(ids) == 4
    assert all(len(one) == 36 for one in ids)
