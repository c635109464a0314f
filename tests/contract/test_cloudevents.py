"""CloudEvents: appended in each mode of the HTTP binding, kept byte for byte, and given back as a batch."""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from tests.serving import Client, Reply, ServerProcess, serving
from topics.model.cloudevents.attributes import check_attributes
from topics.model.cloudevents.events_in import (
    EVENT_EXTRA_BYTES,
    EVENT_MEMBERS_MAX,
    decode_batch,
    decode_binary,
    decode_structured,
)
from topics.model.errors import TopicsError
from topics.model.requests.batch import META_KEYS_MAX
from topics.model.settings import Settings

EVENT, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
REQUIRED = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid"}
HEADERS = {f"ce-{name}": value for name, value in REQUIRED.items()}
MAX_META_BYTES, MAX_RECORD_BYTES = 2_000, 400_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    limits = {"max_meta_bytes": MAX_META_BYTES, "max_record_bytes": MAX_RECORD_BYTES, "max_batch_records": 3_000}
    with serving(tmp_path_factory.mktemp("data"), **limits) as server:
        yield server


def send(client: Client, topic: str, body: bytes, headers: Mapping[str, str], query: str = "") -> Reply:
    return client.post(f"/v0/topics/{topic}{query}", body=body, headers=headers)


def send_json(client: Client, topic: str, event: Any, query: str = "") -> Reply:
    kind = BATCH if isinstance(event, list) else EVENT
    return send(client, topic, json.dumps(event).encode(), {"Content-Type": kind}, query)


def read_events(client: Client, topic: str, **params: Any) -> Reply:
    reply = client.post(f"/v0/topics/{topic}/diff", params, headers={"Accept": BATCH})
    assert (reply.status, reply.headers["content-type"]) == (200, BATCH), reply
    return reply


# --- a real producer ---


def sdk_event(data: Any, **attributes: Any) -> CloudEvent:
    when = datetime(2026, 11, 17, 8, 30, tzinfo=UTC)
    named = {"id": "a-1", "source": "/shop", "type": "order.paid", "specversion": "1.0", "time": when}
    return CloudEvent(attributes={**named, **attributes}, data=data)


SDK_EVENTS = [
    sdk_event({"n": 1, "text": "ü"}, datacontenttype="application/json", subject='a "b" % ü 😀'),
    sdk_event({"n": 2}),
    sdk_event(b"\x00\xff\xfe", datacontenttype="application/octet-stream"),
    sdk_event({"list": [1, None]}, datacontenttype="application/json", traceparent="00-1-2-03", rank=7, paid=True),
]


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
@pytest.mark.parametrize("event", SDK_EVENTS, ids=["json", "no type", "bytes", "extensions"])
def test_the_sdk_sends_an_event_and_reads_the_same_one(
    client: Client, topic: str, mode: Any, event: CloudEvent
) -> None:
    message = mode(event)
    assert send(client, topic, message.body, message.headers).status == 201
    (shown,) = read_events(client, topic).json
    back = from_structured_event(HTTPMessage({"content-type": EVENT}, json.dumps(shown).encode()))
    assert back.get_data() == event.get_data()
    # A header does not tell a number from its digits.
    as_text = mode is to_binary_event
    sent = {
        name: str(value) if name in ("rank", "paid") and as_text else value
        for name, value in event.get_attributes().items()
    }
    assert back.get_attributes() == sent


def test_the_older_sdk_sends_both_modes(client: Client, topic: str) -> None:
    from cloudevents.v1 import conversion
    from cloudevents.v1.http import CloudEvent as OlderEvent

    event = OlderEvent({"type": "t", "source": "/s", "id": "x"}, {"n": 1})
    for convert in (conversion.to_binary, conversion.to_structured):
        headers, body = convert(event)
        assert send(client, topic, body, headers).status in (200, 201)
    assert [(each["id"], each["data"]) for each in read_events(client, topic).json] == [("x", {"n": 1})] * 2


# --- what a record keeps ---


def test_attributes_are_meta_and_data_is_untouched(client: Client, topic: str) -> None:
    data = b'{ "b" : 1.0,\n "a":[ ], "u": "\\u00fc" }'
    send(client, topic, b"  %b\n" % data, {**HEADERS, "ce-subject": "o%2F1", "Content-Type": "application/json"})
    send(client, topic, data, {**HEADERS, "Content-Type": "application/vnd.shop+json; charset=UTF-8"})
    event = b'{"specversion":"1.0","id":"2","source":"/shop","type":"t","n":-5,"ok":true,"no":null,"data": %b }' % data
    send(client, topic, event, {"Content-Type": f"{EVENT}; charset=UTF-8"})
    send(client, topic, b" [ %b , %b ] " % (event, event), {"Content-Type": BATCH})
    reply = client.post(f"/v0/topics/{topic}/diff", {})
    assert reply.body.count(b'"data":%b' % data) == 5
    first, _, second, *_ = reply.json["records"]
    assert first["meta"] == {**REQUIRED, "subject": "o/1", "datacontenttype": "application/json"}
    assert second["meta"] == {**REQUIRED, "id": "2", "type": "t", "n": -5, "ok": True}
    assert read_events(client, topic).body.count(b'"data":%b' % data) == 5


def test_data_that_is_not_json_is_kept_as_base64(client: Client, topic: str) -> None:
    send(client, topic, b"<a>\xfc</a>", {**HEADERS, "Content-Type": "text/xml; charset=latin-1"})
    send(client, topic, '"ü"'.encode("utf-16"), {**HEADERS, "Content-Type": "application/json; charset=utf-16"})
    send_json(client, topic, {**REQUIRED, "data_base64": "AAH/"})
    records = client.diff(topic)["records"]
    assert {record["meta"]["data_encoding"] for record in records} == {"base64"}
    bodies = [base64.b64decode(event["data_base64"]) for event in read_events(client, topic).json]
    assert bodies == [b"<a>\xfc</a>", '"ü"'.encode("utf-16"), b"\x00\x01\xff"]


def test_no_data_differs_from_null(client: Client, topic: str) -> None:
    send(client, topic, b"", HEADERS)
    send_json(client, topic, [REQUIRED, {**REQUIRED, "data": None}, {**REQUIRED, "data": "", "data_base64": None}])
    shown = read_events(client, topic).json
    assert [event.get("data", "absent") for event in shown] == ["absent", "absent", None, ""]
    assert client.payloads(topic) == [None, None, None, ""]


def test_members_that_cannot_be_attributes_are_ignored(client: Client, topic: str) -> None:
    assert send_json(client, topic, {**REQUIRED, "myExt": 1, "my_ext": {"a": 1}, "data": 1}).status == 201
    assert send(client, topic, b"2", {**HEADERS, "ce-my-ext": "x", "ce-MyExt": "kept"}).status == 200
    first, second = client.diff(topic)["records"]
    assert first["meta"] == REQUIRED
    assert second["meta"] == {**REQUIRED, "myext": "kept"}


def test_a_content_type_of_events_takes_precedence_over_headers(client: Client, topic: str) -> None:
    body = json.dumps({**REQUIRED, "id": "body", "data": 1}).encode()
    assert send(client, topic, body, {**HEADERS, "ce-id": "header", "Content-Type": EVENT}).status == 201
    assert client.diff(topic)["records"][0]["meta"]["id"] == "body"


def test_the_query_says_what_holds_for_the_request(client: Client, topic: str) -> None:
    absent = send_json(client, topic, REQUIRED, "?create=false")
    assert (absent.status, absent.code) == (404, "topic_not_found")
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    assert send_json(client, topic, [REQUIRED] * 2, "?tag=x&node=eu&delay_ms=60000").status == 200
    assert client.state(topic)["queue"]["delayed"] == 2
    unknown = send_json(client, topic, REQUIRED, "?tga=x")
    assert (unknown.status, unknown.detail["nearest"]) == (400, "tag")


def test_an_event_is_appended_once_if_asked(client: Client, topic: str) -> None:
    def seqs(event: dict[str, Any], query: str) -> tuple[list[int], bool]:
        answer = send_json(client, topic, event, query).json
        return answer["seqs"], answer["deduped"]

    other = {**REQUIRED, "source": "/other"}
    assert seqs(REQUIRED, "?dedupe=true") == ([1], False)
    assert seqs({**REQUIRED, "type": "again"}, "?dedupe=true") == ([1], True)
    assert send(client, topic, b"", HEADERS, "?dedupe=true").json["deduped"]
    assert seqs(other, "?dedupe=true") == ([2], False)
    assert seqs(REQUIRED, "") == ([3], False)
    batch = send_json(client, topic, [REQUIRED, other], "?dedupe=true")
    assert (batch.status, batch.detail["field"]) == (400, "dedupe")


def test_a_claimed_job_has_the_attributes(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    send_json(client, topic, {**REQUIRED, "data": {"n": 1}})
    (job,) = client.post(f"/v0/topics/{topic}/claim", {"node": "w"}).json["claimed"]
    assert (job["data"], job["meta"]) == ({"n": 1}, REQUIRED)


def test_events_survive_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/t", {"durability": "fsync"})
        assert send_json(client, "t", {**REQUIRED, "data_base64": "AAE=", "ext": "x"}, "?dedupe=true").status == 200
        before = read_events(client, "t")
        server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert read_events(client, "t").body == before.body
        assert send_json(client, "t", REQUIRED, "?dedupe=true").json["deduped"]


# --- reading ---


def test_a_page_of_events_says_where_to_go_on(client: Client, topic: str) -> None:
    send_json(client, topic, [{**REQUIRED, "id": str(number)} for number in range(5)])
    page = read_events(client, topic, limit=2)
    assert [event["id"] for event in page.json] == ["0", "1"]
    named = {name: page.headers[f"topics-{name}"] for name in ("next-from-seq", "head-seq", "earliest-seq")}
    assert named == {"next-from-seq": "2", "head-seq": "5", "earliest-seq": "1"}
    assert page.headers["topics-epoch"] == str(client.state(topic)["epoch"])
    assert "topics-tombstone" not in page.headers
    assert read_events(client, topic, from_seq=5).json == []
    client.put(f"/v0/topics/{topic}", {"cap_records": 1})
    client.append(topic, 1)
    gap = json.loads(read_events(client, topic, from_seq=1).headers["topics-tombstone"])
    assert (gap["gap_from"], gap["gap_to"]) == (2, 5)


def test_a_waiting_reader_gets_events(client: Client, server: ServerProcess, topic: str) -> None:
    client.put(f"/v0/topics/{topic}")
    assert read_events(client, topic, wait_ms=1).json == []
    other = server.client()
    other._connection.request(
        "POST", f"/v0/topics/{topic}/diff", b'{"wait_ms":30000}', {"Content-Type": "application/json", "Accept": BATCH}
    )
    server.settle()
    send_json(client, topic, REQUIRED)
    assert other.end().json == [REQUIRED]


def test_other_records_are_events_of_their_topic(client: Client, topic: str) -> None:
    meta = {"traceparent": "00-1-2-03", "n": 7, "big": 1 << 40, "id": "no", "Odd": 1, "deep": {"a": 1}, "f": 1.5}
    client.post(f"/v0/topics/{topic}", {"records": [{"data": {"a": 1}, "meta": meta, "tag": "t", "node": "n"}]})
    (record,) = client.diff(topic, include_meta=False)["records"]
    (event,) = read_events(client, topic, include_meta=False, include_tags=True).json
    when = datetime.fromisoformat(event.pop("time"))
    assert when == datetime.fromtimestamp(record["$ts"] / 1000, UTC)
    assert event == {
        "specversion": "1.0",
        "id": f"{client.state(topic)['epoch']}-1",
        "source": f"/v0/topics/{topic}",
        "type": "topics.record",
        "datacontenttype": "application/json",
        "traceparent": "00-1-2-03",
        "n": 7,
        "data": {"a": 1},
    }


def test_a_record_with_the_attributes_in_its_meta_is_an_event(client: Client, topic: str) -> None:
    client.post(f"/v0/topics/{topic}", {"records": [{"data": [1], "meta": {**REQUIRED, "$stamp": 1}}]})
    assert read_events(client, topic).json == [{**REQUIRED, "data": [1]}]


# --- refusals ---


@pytest.mark.parametrize("name", list(REQUIRED))
def test_a_missing_attribute_is_named(client: Client, topic: str, name: str) -> None:
    for value in ({}, {name: None}):
        event = {**{key: each for key, each in REQUIRED.items() if key != name}, **value}
        reply = send_json(client, topic, event)
        assert (reply.status, reply.detail["field"]) == (400, name)
        reply = send_json(client, topic, [REQUIRED, event])
        assert (reply.status, reply.detail["field"]) == (400, f"events[1].{name}")
    headers = {key: each for key, each in HEADERS.items() if key != f"ce-{name}"}
    reply = send(client, topic, b"1", {**headers, "Content-Type": "application/json"})
    assert (reply.status, reply.detail["field"]) == (400, f"ce-{name}")
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": 1}, "specversion"),
        ({"id": ""}, "id"),
        ({"source": ["/a"]}, "source"),
        ({"subject": ""}, "subject"),
        ({"subject": "a\u0000b"}, "subject"),
        ({"time": "yesterday"}, "time"),
        ({"datacontenttype": "json"}, "datacontenttype"),
        ({"ext": {"a": 1}}, "ext"),
        ({"ext": 1.5}, "ext"),
        ({"ext": 1 << 31}, "ext"),
        ({"data_base64": "not base64!"}, "data_base64"),
        ({"data_base64": 5}, "data_base64"),
        ({"data_base64": "AAE=", "data": 1}, "data_base64"),
        ({"ext": "x" * MAX_META_BYTES}, "ext"),
        ({f"e{number}": 1 for number in range(META_KEYS_MAX)}, "attributes"),
    ],
)
def test_a_wrong_attribute_is_named(client: Client, topic: str, attributes: dict[str, Any], field: str) -> None:
    reply = send_json(client, topic, {**REQUIRED, **attributes})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)
    in_batch = send_json(client, topic, [REQUIRED, {**REQUIRED, **attributes}])
    assert in_batch.status == 400
    assert in_batch.detail["field"].endswith(field)
    if len(str(attributes)) > 500:
        assert str(reply.detail["max"]) in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ce-subject", "%C0%A0", "UTF-8"),
        ("ce-subject", "%ff", "UTF-8"),
        ("ce-subject", "\u00fc", "percent-encoded"),
        ("ce-subject", "%0a", "control character"),
        ("ce-subject", "", "empty"),
        ("ce-subject", '""', "empty"),
        ("ce-datacontenttype", "application/json", "Content-Type"),
        ("ce-data", "1", "body"),
        ("ce-time", "noon", "RFC 3339"),
        ("ce-ext", "x" * MAX_META_BYTES, str(MAX_META_BYTES)),
    ],
)
def test_a_wrong_header_is_named(client: Client, topic: str, name: str, value: str, why: str) -> None:
    reply = send(client, topic, b"1", {**HEADERS, name: value, "Content-Type": "application/json"})
    assert (reply.status, reply.detail["field"]) == (400, name)
    assert why in reply.json["error"]["message"]


def test_a_header_that_is_given_twice_is_refused(client: Client, topic: str) -> None:
    connection = client._connection
    connection.putrequest("POST", f"/v0/topics/{topic}")
    for name, value in [*HEADERS.items(), ("CE-Id", "2"), ("Content-Length", "0")]:
        connection.putheader(name, value)
    connection.endheaders()
    reply = client.end()
    assert (reply.status, reply.detail["field"]) == (400, "ce-id")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Euro%20%E2%82%AC%20%f0%9f%98%80", "Euro € 😀"),
        ('"quoted \\"text\\" %41"', 'quoted "text" A'),
        ("100% of %zz", "100% of %zz"),
        ("a b, c;d=e", "a b, c;d=e"),
    ],
)
def test_headers_are_decoded_once(client: Client, topic: str, value: str, text: str) -> None:
    assert send(client, topic, b"1", {**HEADERS, "ce-subject": value}).status == 201
    assert client.diff(topic)["records"][0]["meta"]["subject"] == text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{}", "body"),
        (b"[]", "body"),
        (b"[1]", "events[0]"),
        (b"[%b", "body"),
        (b"[%b,]", "events[1]"),
        (b"[%b%b]", "body"),
        (b"[%b] x", "body"),
        (b"[%b,{]", "events[1]"),
        (b'[%b,{"a":"\xff"}]', "events[1]"),
        (b"[%b,{'a':1}]", "events[1]"),
        (b'[%b,{"id":"\\ud800"}]', "events[1]"),
    ],
)
def test_a_broken_batch_is_refused_as_a_whole(client: Client, topic: str, body: bytes, field: str) -> None:
    whole = json.dumps(REQUIRED).encode()
    reply = send(client, topic, body.replace(b"%b", whole), {"Content-Type": BATCH})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field), reply
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_data_is_nested_at_most_as_deep_as_in_any_record(client: Client, topic: str) -> None:
    deep = b"[" * 257 + b"]" * 257
    event = json.dumps(REQUIRED).encode()[:-1] + b',"data":%b}' % deep
    kinds = [(event, {"Content-Type": EVENT}), (b"[%b]" % event, {"Content-Type": BATCH}), (deep, HEADERS)]
    kinds.append((b"[%b]" % event.replace(deep, b"[" * 5_000 + b"]" * 5_000), {"Content-Type": BATCH}))
    for body, headers in kinds:
        reply = send(client, topic, body, headers)
        assert (reply.status, reply.code) == (400, "invalid_request")
        assert "nested too deeply" in reply.json["error"]["message"]


def test_limits_are_those_of_records(client: Client, topic: str) -> None:
    large = {**REQUIRED, "data": "x" * MAX_RECORD_BYTES}
    for body in (large, [REQUIRED, large]):
        reply = send_json(client, topic, body)
        assert (reply.status, reply.code, reply.detail["max"]) == (400, "record_too_large", MAX_RECORD_BYTES), reply
    reply = send(client, topic, b"\x00" * MAX_RECORD_BYTES, {**HEADERS, "Content-Type": "application/octet-stream"})
    assert (reply.status, reply.code) == (400, "record_too_large")
    much = send_json(client, topic, {**REQUIRED, "data": "x" * (4 * MAX_RECORD_BYTES)})
    assert (much.status, much.code) == (400, "record_too_large")
    reply = send_json(client, topic, [REQUIRED] * 3_001)
    assert (reply.status, reply.code, reply.detail["max"]) == (400, "batch_too_large", 3_000)


def test_a_large_body_is_refused_before_it_is_converted(client: Client, topic: str) -> None:
    """Each of these held the loop for a tenth of a second or more."""
    body = b"x" * (2 * MAX_RECORD_BYTES)
    for kind in ("text/plain", "application/json"):
        # As JSON it is not even valid: nobody has looked.
        reply = send(client, topic, body, {**HEADERS, "Content-Type": kind})
        assert (reply.status, reply.json["error"]["code"]) == (400, "record_too_large"), reply


@pytest.mark.parametrize("body", [b"%b[]", b"[%b]", b"[%%b,%b%%b]", b"[%%b]%b"])
def test_white_space_without_end_is_refused(client: Client, topic: str, body: bytes) -> None:
    body = (body % (b" " * EVENT_EXTRA_BYTES)).replace(b"%b", json.dumps(REQUIRED).encode())
    reply = send(client, topic, body, {"Content-Type": BATCH})
    assert (reply.status, reply.json["error"]["message"]) == (
        400,
        f"the list of events has {EVENT_EXTRA_BYTES} bytes of white space in a row, or more",
    )


@pytest.mark.parametrize("name", ["a{}", "A{}"])
def test_an_event_of_thousands_of_members_is_refused_before_they_are_looked_at(
    client: Client, topic: str, name: str
) -> None:
    event = {**REQUIRED, **{name.format(number): 1 for number in range(EVENT_MEMBERS_MAX)}}
    for body, whole in ((event, "the event"), ([event], "events[0]")):
        reply = send_json(client, topic, body)
        members = EVENT_MEMBERS_MAX + len(REQUIRED)
        assert (reply.status, reply.json["error"]["message"]) == (
            400,
            f"{whole} has {members} members; at most {EVENT_MEMBERS_MAX} are allowed",
        )


def test_a_large_batch_is_appended_in_order(client: Client, topic: str) -> None:
    events = [{**REQUIRED, "id": str(number), "data": {"pad": "ü" * 300, "n": number}} for number in range(3_000)]
    assert send_json(client, topic, events).json["count"] == 3_000
    shown: list[Any] = []
    while len(shown) < len(events):
        page = read_events(client, topic, from_seq=len(shown), limit=1_000)
        shown += page.json
        assert page.headers["topics-next-from-seq"] == str(len(shown))
    assert shown == events


def test_an_unknown_format_of_events_is_415(client: Client, topic: str) -> None:
    reply = send(client, topic, b"x", {"Content-Type": "application/cloudevents+avro", **HEADERS})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    assert EVENT in reply.detail["accepted"]
    reply = send(client, topic, b"{}", {"Content-Type": f"{EVENT}; charset=latin-1"})
    assert reply.status == 415


def test_events_are_only_for_appends(client: Client, topic: str) -> None:
    reply = client.put(f"/v0/topics/{topic}", body=b"{}", headers={**HEADERS, "Content-Type": EVENT})
    assert (reply.status, reply.detail["accepted"]) == (415, ["application/json"])


def test_a_key_needs_the_scope_and_the_name(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="pen:write:a.,eye:read:a.") as server:
        writer, reader = server.client("pen"), server.client("eye")
        assert send_json(writer, "a.t", REQUIRED).status == 201
        assert (send_json(writer, "b.t", REQUIRED).code, send_json(reader, "a.t", REQUIRED).code) == ("forbidden",) * 2
        assert read_events(reader, "a.t").json == [REQUIRED]
        assert writer.post("/v0/topics/a.t/diff", {}, headers={"Accept": BATCH}).code == "forbidden"


# --- any bytes ---

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
members = st.dictionaries(
    st.sampled_from(["specversion", "id", "source", "type", "time", "ext", "data", "Bad"]), anything
)
LIMITS = Settings()


@given(
    st.lists(members | st.fixed_dictionaries({name: st.just(value) for name, value in REQUIRED.items()}), max_size=4)
)
def test_any_json_is_refused_or_kept(events: list[dict[str, Any]]) -> None:
    decoding = decode_batch(json.dumps(events).encode(), LIMITS)
    try:
        while True:
            next(decoding)
    except StopIteration as end:
        for event, record in zip(events, end.value, strict=True):
            assert json.loads(bytes(record.data)) == event.get("data")
            meta = json.loads(bytes(record.meta))
            assert {name: meta[name] for name in REQUIRED} == {name: event[name] for name in REQUIRED}
    except TopicsError:
        pass


@given(
    st.binary(max_size=200), st.binary(max_size=60), st.sampled_from([b"", b"text/plain", b"application/json", b"\xff"])
)
def test_any_bytes_are_refused_by_an_error_of_the_api(body: bytes, value: bytes, kind: bytes) -> None:
    headers = [(name.encode(), each.encode()) for name, each in HEADERS.items()]
    headers += [(b"ce-x", value), (b"content-type", kind)]
    refused: list[TopicsError] = []
    for decode in (
        lambda: decode_binary(headers, body, LIMITS),
        lambda: decode_structured(body, LIMITS),
        lambda: list(decode_batch(b"[" + body, LIMITS)),
        lambda: check_attributes({"id": b'"1"'}, ""),
    ):
        try:
            decode()
        except TopicsError as error:
            refused.append(error)
    assert all(error.detail["field"] for error in refused)
