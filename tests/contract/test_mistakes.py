"""What is wrong with a body, in words: every wrong type and value names its field, and no type of this program."""

import re
from typing import Any

import pytest

from tests.contract.test_unknown_fields import bodies, filled
from tests.serving import Client, serving

JARGON = re.compile(r"`|\| null|\bNoneType\b|\bstr\b|\bbool\b|\bint\b|\bdict\b|msgspec|Struct")


def test_no_wrong_value_of_any_field_of_any_body_is_reported_in_types_of_the_program(client: Client) -> None:
    tried = 0
    for method, path, schema, schemas in bodies(client):
        if not path.startswith("/v0/"):
            continue
        fields = schemas[schema["$ref"].rpartition("/")[2]].get("properties", {})
        for name in fields:
            for wrong in (-1, 1.5, "no such value", True, [], {}, [{}], {"x": 1}, None):
                reply = client.request(method, filled(path), {name: wrong})
                if reply.status == 400 and reply.code == "invalid_request":
                    error = reply.json["error"]
                    assert error["detail"]["field"], error
                    assert not JARGON.search(error["message"].replace(name, "")), error
                    tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    ("path", "body", "allowed"),
    [
        ("/v0/topics/{}", {"durability": "fsnyc"}, ("ephemeral", "memory", "disk", "fsync")),
        ("/v0/topics/{}", {"discard": "oldest"}, ("old", "reject")),
        ("/v0/topics/{}", {"type": "stream"}, ("log", "queue")),
        ("/v0/routers/{}", {"source": "a", "dest": "b", "guarantee": "once"}, ("at_least_once", "exactly_once")),
    ],
)
def test_a_value_that_is_not_one_of_a_few_is_told_with_all_of_them(
    client: Client, topic: str, path: str, body: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    reply = client.put(path.format(topic), body)
    field, value = list(body.items())[-1]
    assert (reply.status, reply.detail["field"]) == (400, field)
    message = reply.json["error"]["message"]
    assert all(f'"{each}"' in message for each in (*allowed, value))


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b"", "records", "missing"),
        (b"{}", "records", 'records is missing; the form is {"records": [{"data": …}, …]}'),
        (b'{"records":[{}]}', "records[0].data", 'records[0].data is missing; a record is {"data": …}'),
        (b'{"records":[1]}', "records[0]", 'must be an object, not a number; a record is {"data": …}'),
        (b"[]", "body", "must be an object, not a list"),
        (b"{", "body", "not valid JSON"),
        (b"\xff{}", "body", "not valid UTF-8 at byte 0"),
        (b'{"records":[{"data":1,"tag":"\\ud800"}]}', "body", "lone surrogate"),
        (b'{"records":[{"data":1,"tag":"a\\uDC00b"}]}', "body", "lone surrogate"),
        (b'{"records":[{"data":1}],"node":"\\ud83d"}', "body", "lone surrogate"),
        (b'{"records":[{"data":1,"tag":5}]}', "records[0].tag", "must be a string, not a number"),
        (b'{"records":[{"data":1,"delay_ms":-5}]}', "records[0].delay_ms", "a whole number of at least 0"),
        (b'{"records":{}}', "records", "must be a list, not an object"),
    ],
)
def test_the_place_and_the_reason_are_named(client: Client, topic: str, body: bytes, field: str, words: str) -> None:
    reply = client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.detail["field"]) == (400, field)
    assert words in reply.json["error"]["message"]


def test_a_pair_of_surrogates_is_a_character(client: Client, topic: str) -> None:
    body = b'{"records":[{"data":1,"tag":"\\ud83d\\ude00"}]}'
    reply = client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    assert reply.status == 201
    assert client.diff(topic, include_tags=True)["records"][0]["$tag"] == "\N{GRINNING FACE}"


def test_what_is_too_large_is_told_with_the_most_there_may_be(tmp_path: Any) -> None:
    with serving(tmp_path, max_body_bytes=2_000, max_record_bytes=500, max_batch_records=3) as server:
        client = server.client()
        for reply, status, most in (
            (client.append("a", "x" * 3_000), 413, 2_000),
            (client.append("a", "x" * 600), 400, 500),
            (client.append("a", 1, 2, 3, 4), 400, 3),
            (client.get("/v0/topics/" + "x" * 70_000), 414, None),
        ):
            assert reply.status == status
            assert reply.detail["max"] == (most or reply.detail["max"])
