"""What is tried again, how often, and when the client rather says what is wrong."""

from __future__ import annotations

import http.client
import pickle
import socket
import ssl
import threading
import time
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.client.scripted import ScriptedServer, Seen, Step, answer, error
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess
from topics.api.errors import STATUSES
from topics.client import (
    BadAnswer,
    Closed,
    ConnectionFailed,
    InvalidRequest,
    NotReady,
    ReadOnly,
    Throttled,
    Timeout,
    TopicsError,
)
from topics.client.errors import KINDS, NotPrimary, NotReplicated
from topics.client.retrying import Retrying, is_tls_refusal

OK = answer(200, {"status": "ok", "version": "0", "uptime_ms": 1})
APPENDED = answer(
    200,
    {"topic": "t", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False, "deduped": False},
)
CLAIMED = answer(200, {"topic": "t", "claimed": [], "count": 0, "ready": 0})


@pytest.mark.parametrize(
    "step",
    [
        error(503, "not_ready", {"replay_progress": 0.5}, Retry_After=0),
        error(503, "shutting_down", Retry_After=0),
        error(429, "throttled", {"retry_after_ms": 1}, Retry_After=1),
    ],
    ids=["not ready", "shutting down", "throttled"],
)
def test_what_passes_by_itself_is_waited_for(connect: Connect, step: Step) -> None:
    with ScriptedServer(step, step, OK) as server:
        assert connect(server.url).health().status == "ok"
        assert len(server.seen) == 3


def test_a_claim_that_was_refused_for_the_moment_is_repeated(connect: Connect) -> None:
    with ScriptedServer(error(503, "not_ready", Retry_After=0), CLAIMED) as server:
        assert connect(server.url).claim("t") == []


def test_retries_have_a_limit(connect: Connect) -> None:
    with ScriptedServer(error(429, "throttled", {"retry_after_ms": 1})) as server:
        with pytest.raises(Throttled) as caught:
            connect(server.url, retries_max=3).health()
        assert len(server.seen) == 4
        assert (caught.value.status, caught.value.retry_after_s) == (429, 0.001)


def test_a_pause_that_would_end_too_late_is_not_begun(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(seconds: float) -> None:
        raise AssertionError(f"it pauses for {seconds} s")

    monkeypatch.setattr("topics.client.aio.wire.primitives.sleep", pause)
    monkeypatch.setattr("topics.client.sync.wire.primitives.sleep", pause)
    with ScriptedServer(error(503, "read_only", Retry_After=3600)) as server:
        with pytest.raises(ReadOnly):
            connect(server.url, retry_s_max=50).health()
        assert len(server.seen) == 1


@pytest.mark.parametrize("cut", [None, answer(200, b'{"top', length=50)], ids=["before", "within"])
def test_a_write_with_a_key_survives_a_cut_answer(connect: Connect, cut: Step) -> None:
    with ScriptedServer(cut, APPENDED) as server:
        assert connect(server.url).append("t", 1).seqs == [1]
        first, second = server.seen
        assert first.json["idempotency_key"] == second.json["idempotency_key"] != ""
        assert first.body == second.body


def test_a_claim_whose_answer_was_lost_is_not_asked_again(connect: Connect) -> None:
    with ScriptedServer(None, CLAIMED) as server:
        with pytest.raises(ConnectionFailed, match="broke"):
            connect(server.url).claim("t")
        assert len(server.seen) == 1


def test_nobody_there_is_tried_again_and_then_said(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"cannot reach http://127.0.0.1:{port}") as caught:
        connect(f"http://127.0.0.1:{port}", retries_max=2).claim("t")
    assert caught.value.status == 0
    assert "start a server with `topics serve`" in str(caught.value)


def test_tls_at_a_plain_port_is_not_tried_again(
    connect: Connect, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(seconds: float) -> None:
        raise AssertionError(f"it pauses for {seconds} s")

    monkeypatch.setattr("topics.client.aio.wire.primitives.sleep", pause)
    monkeypatch.setattr("topics.client.sync.wire.primitives.sleep", pause)
    with pytest.raises(ConnectionFailed, match="is reached with http://") as caught:
        connect(f"https://127.0.0.1:{server.port}").health()
    assert f"cannot reach https://127.0.0.1:{server.port}" in str(caught.value)
    assert caught.value.detail["tls"] is True


def test_a_handshake_that_was_cut_short_is_tried_again() -> None:
    cut, wrong = OSError("connect"), OSError("connect")
    cut.__cause__, wrong.__cause__ = ssl.SSLEOFError(8, "EOF"), ssl.SSLCertVerificationError(1, "self-signed")
    assert (is_tls_refusal(cut), is_tls_refusal(wrong), is_tls_refusal(OSError())) == (False, True, False)


def test_silence_is_a_timeout(connect: Connect) -> None:
    given_up = threading.Event()

    def silent(seen: Seen) -> bytes:
        assert given_up.wait(PATIENCE_S)
        return CLAIMED

    with ScriptedServer(silent) as server:
        try:
            with pytest.raises(Timeout, match=r"within 0\.1 s"):
                connect(server.url, timeout_s=0.1).claim("t")
        finally:
            given_up.set()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_page_of_html_is_no_answer(connect: Connect, status: int) -> None:
    page = answer(status, b"<html><h1>Welcome to nginx!</h1></html>", Content_Type="text/html")
    with ScriptedServer(page) as server:
        with pytest.raises(BadAnswer, match=r"Welcome to nginx.*text/html.*proxy") as caught:
            connect(server.url).health()
        assert caught.value.status == status
        assert len(server.seen) == 1


def test_a_gateway_that_lost_its_server_is_asked_again(connect: Connect) -> None:
    page = answer(502, b"<html>Bad Gateway</html>", Content_Type="text/html")
    with ScriptedServer(page, page, OK) as server:
        assert connect(server.url).health().status == "ok"
    with ScriptedServer(page, CLAIMED) as server, pytest.raises(BadAnswer, match="502"):
        connect(server.url).claim("t")


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b'{"status": 5}', b"\xff\xfe", b'{"status":"ok"}'],
)
def test_garbage_is_told_from_an_answer(connect: Connect, body: bytes) -> None:
    with ScriptedServer(answer(200, body)) as server, pytest.raises(BadAnswer, match="answered 200"):
        connect(server.url).health()


def test_no_http_at_all_is_a_broken_connection(connect: Connect) -> None:
    with (
        ScriptedServer(b"220 mail.example.org\r\n\r\n") as server,
        pytest.raises(ConnectionFailed, match="broke"),
    ):
        connect(server.url, retries_max=1).health()


def test_a_redirect_is_not_followed(connect: Connect) -> None:
    moved = answer(302, b"", Location="http://example.org/")
    with ScriptedServer(moved) as server, pytest.raises(BadAnswer, match="302"):
        connect(server.url).health()


def test_a_code_of_a_later_version_is_a_plain_error(connect: Connect) -> None:
    with ScriptedServer(error(418, "teapot", {"spout": 1})) as server:
        with pytest.raises(TopicsError, match="teapot") as caught:
            connect(server.url).health()
        assert (caught.value.code, caught.value.status, caught.value.detail) == ("teapot", 418, {"spout": 1})


def test_every_code_of_the_server_has_a_class_of_its_own() -> None:
    assert set(STATUSES) <= set(KINDS)
    assert len({KINDS[code] for code in KINDS}) == len(KINDS)


def test_an_error_travels_between_processes() -> None:
    sent = NotReady("wait", status=503, detail={"replay_progress": 0.5}, retry_after_s=1.0)
    got = pickle.loads(pickle.dumps(sent))
    assert (type(got), got.message, got.status, got.detail, got.retry_after_s) == (
        *(NotReady, "wait", 503, {"replay_progress": 0.5}, 1.0),
    )


@pytest.mark.parametrize("wrong", ["ftp://example.org", "http://[::1", "http://a:b", "http://"])
def test_a_url_that_leads_nowhere_is_refused_at_once(connect: Connect, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=r"(?i)url"):
        connect(wrong).health()


def test_a_closed_client_says_so(connect: Connect, url: str) -> None:
    client = connect(url)
    client.close()
    with pytest.raises(Closed):
        client.health()


def test_pauses_grow_are_spread_and_never_shorter_than_asked() -> None:
    retrying = Retrying(safe=True, now_s=0.0, retries_max=50, retry_s_max=1_000.0, spread=lambda: 0.0)
    pauses = [retrying.pause_s(ConnectionFailed("x"), 0.0) for _ in range(10)]
    assert pauses[:3] == [0.025, 0.05, 0.1]
    assert pauses[-1] == 1.0
    asked = retrying.pause_s(NotReady("x", status=503, retry_after_s=7.0), 0.0)
    assert asked is not None
    assert asked >= 7.0
    assert retrying.pause_s(NotReady("x", status=503, retry_after_s=7.0), 995.0) is None


def test_the_server_s_own_limits_are_named(connect: Connect, guarded_server: ServerProcess) -> None:
    client = connect(f"http://127.0.0.1:{guarded_server.port}", "full", retries_max=0)
    client.create("one")
    client.create("two")
    with pytest.raises(Throttled) as caught:
        client.create("three")
    assert caught.value.detail["limit"] == "max_topics"


def test_keys_come_from_the_environment_unless_given(
    connect: Connect, guarded_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", f"127.0.0.1:{guarded_server.port}/")
    monkeypatch.setenv("TOPICS_API_KEY", "full")
    client = connect(None)
    head_seq = client.append("one", 1).last_seq
    with pytest.raises(KINDS["forbidden"]):
        connect(None, "reader").append("one", 1)
    with pytest.raises(KINDS["unauthorized"]):
        connect(None, "bad").append("one", 1)
    with client.watch({"one": head_seq - 1}) as watch:
        assert next(watch).records[0].data == 1


def test_the_server_of_this_machine_is_found_by_its_port(
    connect: Connect, guarded_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOPICS_URL", raising=False)
    monkeypatch.setenv("TOPICS_PORT", str(guarded_server.port))
    assert connect(None, "full").url == f"http://127.0.0.1:{guarded_server.port}"
    monkeypatch.setenv("TOPICS_URL", "http://127.0.0.1:1")
    assert connect(None, "full").url == "http://127.0.0.1:1"
    monkeypatch.setenv("TOPICS_URL", "")
    monkeypatch.setenv("TOPICS_PORT", "4000x")
    with pytest.raises(KINDS["invalid_request"], match="TOPICS_PORT must be a port from 1 to 65535, not '4000x'"):
        connect(None, "full")


# --- a write that got through, though its answer did not ---


def forwarded(port: int, seen: Seen) -> None:
    """Carry a request to the real server, and see its answer through."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(seen.method, seen.path, seen.body, {"Content-Type": "application/json"})
    assert connection.getresponse().read()
    connection.close()


def passed_on(port: int, seen: Seen) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(seen.method, seen.path, seen.body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return answer(reply.status, body)


def test_a_write_that_got_through_is_not_repeated_by_a_retry(connect: Connect, server: ServerProcess) -> None:
    topic = f"retried-{time.monotonic_ns()}"

    def lost(seen: Seen) -> None:
        forwarded(server.port, seen)

    with ScriptedServer(lost, lost, lambda seen: passed_on(server.port, seen)) as proxy:
        appended = connect(proxy.url).append_many(topic, [1, 2])
    assert appended.deduped
    assert appended.seqs == [1, 2]
    assert server.client().payloads(topic) == [1, 2]


@pytest.mark.slow
def test_a_retry_after_a_kill_never_doubles(connect: Connect, tmp_path: Any) -> None:
    """The server takes the write, dies, comes back; the client has only seen its connection break."""
    servers: list[ServerProcess] = [ServerProcess(tmp_path).ready()]

    def killed(seen: Seen) -> None:
        forwarded(servers[-1].port, seen)
        servers[-1].kill()
        servers.append(ServerProcess(tmp_path).ready())

    try:
        with ScriptedServer(killed, killed, lambda seen: passed_on(servers[-1].port, seen)) as proxy:
            client = connect(proxy.url)
            assert client.append("t", "once").deduped
        assert servers[-1].client().payloads("t") == ["once"]
        assert len(servers) == 3
    finally:
        servers[-1].kill()


@pytest.mark.usefixtures("no_pauses")
def test_who_waits_for_a_server_that_is_gone_is_told_once(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConnectionFailed):
        connect(url, retries_max=3).health()
    assert not caplog.records, "a short absence is nothing to speak of"
    with pytest.raises(ConnectionFailed):
        connect(url, retries_max=10).health()
    (told,) = (record for record in caplog.records if record.name == "topics.client")
    assert told.getMessage().startswith(f"cannot reach {url}: ")
    assert told.getMessage().endswith("; trying again for up to 60 s")


@pytest.mark.usefixtures("no_pauses")
def test_who_waits_for_the_bucket_of_the_server_is_told_at_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer(error(503, "not_replicated")) as server, pytest.raises(NotReplicated):
        connect(server.url, retries_max=1).append("t", 1)
    (told,) = (record for record in caplog.records if record.name == "topics.client")
    assert told.getMessage().endswith("; trying again for up to 60 s")


def test_what_the_next_primary_may_have_is_repeated_only_if_that_is_safe() -> None:
    under_way, at_once = NotPrimary("another server", detail={"written": True}), NotPrimary("a standby")
    assert Retrying(safe=False, now_s=0.0).pause_s(under_way, 0.0) is None
    assert Retrying(safe=True, now_s=0.0).pause_s(under_way, 0.0) is not None
    assert Retrying(safe=False, now_s=0.0).pause_s(at_once, 0.0) is not None
