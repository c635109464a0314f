"""The server as the source sees it: an address without a server is given up soon, and a pattern is one request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import free_port, serving
from topics.client import Client
from topics_spark.errors import ServerFailed
from topics_spark.options import SourceOptions, Subscription
from topics_spark.pipelines.checkpoints.places import home
from topics_spark.sink.data_sink import SinkOptions
from topics_spark.source.server import Server

# A minute, which it took, less what a busy machine may add to two seconds.
SOON_S = 40.0


def server(url: str, **options: str) -> Server:
    return Server(SourceOptions.parse({"url": url, "subscribe": "-", **options}))


def test_an_address_where_nobody_listens_is_given_up_after_the_timeout() -> None:
    begun_s = time.monotonic()
    with pytest.raises(ServerFailed):
        server(f"http://127.0.0.1:{free_port()}", timeoutseconds="2").heads(Subscription(("orders",)))
    assert time.monotonic() - begun_s < SOON_S


def test_the_topics_of_a_pattern_are_found_by_their_list_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as served, Client(f"http://127.0.0.1:{served.port}") as client:
        for number in range(30):
            client.append(f"many.{number}", number)
        client.append("other", 1)
        epochs = {item.topic: item.epoch for item in client.list("many.")}
        assert epochs == {name: client.state(name).epoch for name in epochs}

        def refuse(*_given: Any, **_more: Any) -> Any:
            raise AssertionError("a request for a single topic")

        monkeypatch.setattr(Client, "state", refuse)
        heads = server(client.url).heads(Subscription(pattern=r"many\..*"))
        assert {name: head.epoch for name, head in heads.items()} == epochs
        assert {head.head_seq for head in heads.values()} == {1}


def test_the_server_that_is_there_is_asked_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as served, Client(f"http://127.0.0.1:{served.port}") as client:
        client.append("orders", 1)
        urls = f"http://127.0.0.1:{free_port()}/,{client.url}/"
        assert server(urls).heads(Subscription(("orders",)))["orders"].head_seq == 1
        sink = SinkOptions.parse({"url": urls, "topic": "orders"})
        assert sink.client().append("orders", 2).last_seq == 2
        monkeypatch.setenv("TOPICS_URL", urls)
        assert SourceOptions.parse({"subscribe": "orders"}).url == urls.rstrip("/")


def test_checkpoints_of_several_servers_are_in_no_server_s_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "data") as served:
        with Client(f"http://127.0.0.1:{served.port}") as client:
            assert home(client) == tmp_path / "data" / "pipelines"
        with Client(f"http://127.0.0.1:{served.port},http://127.0.0.1:{free_port()}") as client:
            assert home(client) == tmp_path / "states" / "topics" / "pipelines" / f"127.0.0.1-{served.port}"
