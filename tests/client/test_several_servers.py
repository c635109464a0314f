"""A primary and its standbys: requests go to the one that is primary, and to no server that was not given."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from tests.client.conftest import Connect
from tests.client.scripted import ScriptedServer, Seen, Step, answer, error
from tests.serving import ServerProcess
from topics.client import (
    Client,
    ConnectionFailed,
    InvalidRequest,
    NotPrimary,
    ShuttingDown,
    Throttled,
    Timeout,
    TopicNotFound,
    TopicsError,
)
from topics.client.request import Options, urls_of
from topics.client.retrying import ROUND_S_MAX, Retrying
from topics.client.servers import Servers

APPENDED = answer(
    200,
    {"topic": "t", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False, "deduped": False},
)
CLAIMED = answer(200, {"topic": "t", "claimed": [], "count": 0, "ready": 0})
PRIMARY = answer(200, {"status": "ok", "version": "0", "uptime_ms": 1, "role": "primary"})
STANDBY = answer(200, {"status": "ok", "version": "0", "uptime_ms": 1, "role": "standby"}, Topics_Age_Ms=7)
A, B, C = (f"http://{name}:4000" for name in "abc")


def refusal(primary: str | None = None) -> bytes:
    """A standby's answer to a write."""
    return error(503, "not_primary", {"primary": primary, "role": "standby"}, Retry_After=3600)


@pytest.fixture
def nobody() -> str:
    """The URL of a server that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def scripted(*scripts: Step) -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedServer(script)) for script in scripts]


# --- naming them ---


def test_several_servers_are_a_list_or_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "a:4000, https://b/topics/,")
    assert Options.resolve(None, None, node=None, timeout_s=1.0).urls == ("http://a:4000", "https://b/topics")
    assert urls_of([A, f"{B}/", A]) == urls_of(f"{A},{B}") == (A, B)
    with Client([A, B]) as client, Client(client.url) as same:
        assert client.url == same.url == f"{A},{B}"


@pytest.mark.parametrize("wrong", [f"{A},ftp://b", [A, "http://"], f"{A},http://b:c"])
def test_each_of_them_must_be_a_url(connect: Connect, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"(?i)url"):
        connect(wrong)


# --- finding the primary ---


def test_a_standby_names_the_primary_which_is_asked_at_once_and_from_then_on(connect: Connect) -> None:
    with scripted(APPENDED, APPENDED) as (third, primary), ScriptedServer(refusal(f"{primary.url}/")) as standby:
        client = connect([standby.url, third.url, primary.url])
        assert client.append("t", 1).seqs == client.append("t", 2).seqs == [1]
        assert [len(server.seen) for server in (standby, third, primary)] == [1, 0, 2]


def test_a_server_that_was_not_given_gets_neither_a_request_nor_the_key(connect: Connect) -> None:
    with scripted(APPENDED, APPENDED) as (stranger, primary), ScriptedServer(refusal(stranger.url)) as standby:
        assert connect([standby.url, primary.url], "secret").append("t", 1).seqs == [1]
        assert stranger.seen == []
        assert primary.seen[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "step",
    [
        refusal(),
        None,
        error(503, "shutting_down", Retry_After=3600),
        error(503, "not_ready", Retry_After=3600),
        answer(502, b"<html>Bad Gateway</html>", Content_Type="text/html"),
    ],
    ids=["standby", "cut", "shutting down", "not ready", "gateway"],
)
def test_a_write_goes_to_the_next_server_under_the_same_key(connect: Connect, step: Step) -> None:
    with scripted(step, APPENDED) as (first, second):
        client = connect([first.url, second.url])
        assert client.append("t", 1).seqs == [1]
        (there,), (here,) = first.seen, second.seen
        assert there.json["idempotency_key"] == here.json["idempotency_key"]
        client.append("t", 2)
        assert len(first.seen) == 1, "it stays with the one that answered"


def test_a_server_that_is_gone_is_left_for_one_that_is_there(connect: Connect, nobody: str) -> None:
    with ScriptedServer(CLAIMED) as server:
        assert connect([nobody, server.url]).claim("t") == []


def test_a_server_that_is_silent_is_left(connect: Connect) -> None:
    given_up = threading.Event()

    def silent(seen: Seen) -> bytes:
        given_up.wait()
        return APPENDED

    with scripted(silent, APPENDED) as (first, second):
        client = connect([first.url, second.url], timeout_s=0.2)
        try:
            assert client.append("t", 1).seqs == [1]
        finally:
            given_up.set()


def test_a_claim_whose_answer_was_lost_is_not_sent_elsewhere_but_the_next_one_is(connect: Connect) -> None:
    with scripted(None, CLAIMED) as (first, second):
        client = connect([first.url, second.url])
        with pytest.raises(ConnectionFailed, match="broke"):
            client.claim("t")
        assert second.seen == []
        assert client.claim("t") == []
        assert (len(first.seen), len(second.seen)) == (1, 1)


def test_a_claim_that_a_standby_refused_goes_to_the_primary(connect: Connect) -> None:
    with scripted(refusal(), CLAIMED) as (standby, primary):
        assert connect([standby.url, primary.url]).claim("t") == []


def test_without_a_primary_the_servers_are_asked_in_rounds(connect: Connect) -> None:
    with scripted(refusal(), refusal()) as (one, other):
        with pytest.raises(NotPrimary) as caught:
            connect([one.url, other.url], retries_max=2).append("t", 1)
        assert (len(one.seen), len(other.seen)) == (3, 3)
        assert (caught.value.status, caught.value.detail["role"]) == (503, "standby")


def test_two_standbys_that_name_each_other_are_not_asked_without_end(connect: Connect) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(ScriptedServer(lambda seen: refusals.pop(0))) for _ in range(2))
        refusals = [refusal(other.url), refusal(one.url)] * 2
        with pytest.raises(NotPrimary):
            connect([one.url, other.url], retries_max=1).append("t", 1)
        assert (len(one.seen), len(other.seen)) == (2, 2)


@pytest.mark.usefixtures("no_pauses")
def test_who_waits_for_a_primary_is_told_once(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with scripted(refusal(), refusal()) as (one, other), pytest.raises(NotPrimary):
        connect([one.url, other.url], retries_max=10).append("t", 1)
    (told,) = (record.getMessage() for record in caplog.records if record.name == "topics.client")
    assert told == f"no primary at {one.url},{other.url} yet: not_primary by script; trying again for up to 60 s"


def test_what_is_wrong_with_the_request_is_said_once(connect: Connect) -> None:
    with scripted(error(404, "topic_not_found"), APPENDED) as (primary, other):
        with pytest.raises(TopicNotFound):
            connect([primary.url, other.url]).append("t", 1)
        assert other.seen == []


def test_one_standby_alone_is_waited_for(connect: Connect) -> None:
    now = error(503, "not_primary", {"primary": None, "role": "standby"}, Retry_After=0)
    with ScriptedServer(now, now, APPENDED) as server:
        assert connect(server.url).append("t", 1).seqs == [1]


# --- reading ---


def test_reads_go_to_the_primary(connect: Connect) -> None:
    with scripted(STANDBY, PRIMARY) as (standby, primary):
        client = connect([standby.url, primary.url])
        assert client.health().role == "primary"
        assert client.metrics() == PRIMARY.partition(b"\r\n\r\n")[2].decode()
        assert (len(standby.seen), len(primary.seen)) == (1, 2)


def test_a_stream_of_a_standby_is_left_too(connect: Connect) -> None:
    end = answer(200, b'{"end":{"next_from_seq":0,"head_seq":0,"epoch":1}}\n', Content_Type="application/x-ndjson")
    aged = end.replace(b"\r\n", b"\r\nTopics-Age-Ms: 7\r\n", 1)
    with scripted(aged, end) as (standby, primary):
        assert list(connect([standby.url, primary.url]).export("t")) == []
        assert (len(standby.seen), len(primary.seen)) == (1, 1)


def test_what_a_standby_has_not_got_yet_is_asked_of_the_primary(connect: Connect) -> None:
    missing = error(404, "topic_not_found", Topics_Age_Ms=7)
    with scripted(missing, PRIMARY) as (standby, primary):
        assert connect([standby.url, primary.url]).health().role == "primary"


def test_a_standby_that_is_named_alone_is_read_from(connect: Connect) -> None:
    with ScriptedServer(STANDBY) as standby:
        assert connect(standby.url).health().role == "standby"


# --- taking over by hand ---


def test_roles_are_those_of_each_server(connect: Connect, nobody: str) -> None:
    with scripted(STANDBY, PRIMARY) as (standby, primary):
        roles = connect([standby.url, nobody, primary.url]).roles()
        assert roles == {standby.url: "standby", nobody: None, primary.url: "primary"}


def test_the_standby_is_promoted_and_asked_from_then_on(connect: Connect, nobody: str) -> None:
    promoted = answer(200, {"role": "primary", "term": 4})
    with ScriptedServer(STANDBY, promoted, APPENDED) as standby:
        client = connect([nobody, standby.url], "boss")
        assert client.promote(force=True).term == 4
        client.append("t", 1)
        asked = standby.seen[1]
        assert (asked.path, asked.json, asked.headers["authorization"]) == (
            *("/v0/promote", {"force": True}, "Bearer boss"),
        )
    with ScriptedServer(promoted) as standby:
        assert connect(standby.url).promote().role == "primary"
        assert standby.seen[0].json == {}


def test_of_several_standbys_one_must_be_named(connect: Connect) -> None:
    with (
        scripted(STANDBY, STANDBY) as (one, other),
        pytest.raises(InvalidRequest, match=f"the one standby .*{one.url} is standby, {other.url} is standby"),
    ):
        connect([one.url, other.url]).promote()


# --- the WebSocket ---


@contextmanager
def standby_socket(age: str | None) -> Iterator[str]:
    """A standby that takes WebSockets; it says its age, or refuses the commands."""

    def refuse(connection: ServerConnection) -> None:
        for text in connection:
            frame = {"op": "error", "request_id": json.loads(text)["request_id"], "code": "not_primary"}
            connection.send(json.dumps(frame))

    def head(connection: ServerConnection, request: Any, response: Any) -> Any:
        if age is not None:
            response.headers["Topics-Age-Ms"] = age
        return response

    with serve(refuse, "127.0.0.1", 0, process_response=head) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("age", [None, "7"], ids=["refuses", "says its age"])
def test_a_websocket_looks_for_the_primary(
    connect: Connect, server: ServerProcess, nobody: str, topic: str, age: str | None
) -> None:
    with standby_socket(age) as standby:
        client = connect([nobody, standby, f"http://127.0.0.1:{server.port}"])
        with client.socket() as socket:
            assert socket.publish(topic, 1).seqs == [1]
            assert socket.publish(topic, 2).seqs == [2]


def test_a_websocket_of_one_standby_says_that_it_is_one(connect: Connect) -> None:
    with standby_socket(None) as standby, connect(standby).socket() as socket, pytest.raises(NotPrimary):
        socket.publish("t", 1)


# --- the decisions ---


@pytest.mark.parametrize(
    ("failure", "then"),
    [
        (NotPrimary("x", primary=C), C),
        (NotPrimary("x", primary="HTTP://C:4000/"), C),
        (NotPrimary("x", primary="http://elsewhere:4000"), B),
        (NotPrimary("x", primary=A), B),
        (NotPrimary("x", primary=None), B),
        (ConnectionFailed("x"), B),
        (ConnectionFailed("x", detail={"tls": True}), A),
        (Timeout("x"), B),
        (ShuttingDown("x"), B),
        (Throttled("x"), A),
        (TopicNotFound("t"), A),
    ],
)
def test_which_server_is_next(failure: TopicsError, then: str) -> None:
    servers = Servers((A, B, C))
    assert servers.failed(A, failure) is failure
    assert servers.current == then
    alone = Servers((A,))
    alone.failed(A, failure)
    assert alone.current == A


def test_threads_that_one_server_fails_leave_it_once() -> None:
    servers = Servers((A, B, C))
    servers.failed(A, ConnectionFailed("of the first thread"))
    servers.failed(B, ConnectionFailed("of the first thread"))
    servers.failed(A, ConnectionFailed("of the second one, sent before the first left it"))
    assert servers.current == C


def test_a_round_has_no_pauses_and_the_next_one_comes_soon() -> None:
    retrying = Retrying(safe=True, now_s=0.0, retry_s_max=10.0, others=2, spread=lambda: 1.0)
    failure = NotPrimary("x", retry_after_s=1.0)
    pauses = [retrying.pause_s(failure, 0.0) for _ in range(30)]
    assert pauses[:6] == [0.0, 0.0, 0.05, 0.0, 0.0, 0.1]
    assert pauses[-3:] == [0.0, 0.0, ROUND_S_MAX]
    assert retrying.pause_s(failure, 11.0) is None, "the time is up"
    throttled = retrying.pause_s(Throttled("x", retry_after_s=3.0), 0.0)
    assert throttled is not None
    assert throttled > 3.0, "what no other server can do better is waited for as long as it asks"
