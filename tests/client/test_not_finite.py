"""NaN, infinities and lone surrogates: JSON has none of them, so every way into a topic refuses them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.client import InvalidRequest, Json, Outgoing
from topics.model import errors

NUMBERS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("number", NUMBERS)
def test_an_append_refuses_them_and_says_where_they_are(client: Any, topic: str, number: float) -> None:
    with pytest.raises(InvalidRequest, match=rf"^records\[0\]\.data\.readings\[1\] is {number}, which is not a JSON"):
        client.append(topic, {"readings": [1.5, number], "note": None})
    with pytest.raises(InvalidRequest, match=r"records\[0\]\.meta\.load is"):
        client.append(topic, 1, meta={"load": number})
    with pytest.raises(InvalidRequest, match=r"records\[2\]\.data is"):
        client.append_many(topic, [None, Outgoing({"a": None}), number])
    assert [item.topic for item in client.list(topic)] == [], "nothing was sent"


def test_a_producer_refuses_the_record_and_keeps_its_neighbours(client: Any, topic: str) -> None:
    producer = client.producer(topic)
    producer.append(1)
    with pytest.raises(InvalidRequest, match=r"^data\.t is nan"):
        producer.append({"t": math.nan})
    producer.append(None)
    producer.close()
    assert [record.data for record in client.diff(topic).records] == [1, None]


@pytest.mark.needs_server("a WebSocket")
def test_a_socket_and_a_transaction_refuse_them(client: Any, topic: str) -> None:
    with client.socket() as socket, pytest.raises(InvalidRequest, match=r"records\[0\]\.data is inf"):
        socket.publish(topic, math.inf)
    with pytest.raises(InvalidRequest, match="is nan"):
        client.stage(f"{topic}-app", 1, "one", 0, [Outgoing(math.nan, topic=topic)])


def test_finite_numbers_null_and_ready_made_json_pass(client: Any, topic: str) -> None:
    client.append_many(topic, [None, {"n": 1e308, "null": [None, -0.0]}, Json(b'{"a":null}'), "NaN"])
    assert [record.data for record in client.diff(topic).records] == [
        None,
        {"n": 1e308, "null": [None, -0.0]},
        {"a": None},
        "NaN",
    ]


def test_an_embedded_database_refuses_them(tmp_path: Path) -> None:
    with topics.open(str(tmp_path / "db")) as database:
        with pytest.raises(errors.InvalidRequest, match=r"^records\[0\]\.data\.a\[0\] is nan"):
            database.append("t", {"a": [math.nan]})
        with pytest.raises(errors.InvalidRequest, match=r"^records\[0\]\.meta\.x is inf"):
            database.append("t", 1, meta={"x": math.inf})
        database.append("t", None)
        assert [record.data for record in database.diff("t").records] == [None]


# --- half of a character ---


def test_a_lone_surrogate_is_refused_and_the_error_says_where_it_is(client: Any, topic: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^records\[1\]\.data\.name\[0\] has a lone surrogate") as caught:
        client.append_many(topic, ["é", {"name": ["\ud800"]}])
    assert caught.value.detail == {"field": "records"}
    with pytest.raises(InvalidRequest, match=r"^a name in records\[0\]\.data has a lone surrogate"):
        client.append(topic, {"\udfff": 1})
    with pytest.raises(InvalidRequest, match=r"^records\[0\]\.meta\.x has a lone surrogate"):
        client.append(topic, 1, meta={"x": "a\udc00"})
    assert [item.topic for item in client.list(topic)] == [], "nothing was sent"
    client.append(topic, "\U0001f600")
