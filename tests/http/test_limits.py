"""Bounds on what a client may make the server keep: refused as early as it can be known, before the bytes are kept."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.http.wire import Client, Server, chunked, echo, get, park, post, serving
from topics.http.http1.reader import PARTS_MAX
from topics.http.limits import HttpLimits
from topics.http.refusal import Refusal
from topics.http.request import Request
from topics.http.service import Service

LIMITS = HttpLimits(
    body_bytes_max=10_000,
    large_body_bytes=4_000,
    large_bodies_bytes_max=10_000,
    header_bytes_max=2_000,
    header_count_max=20,
    uri_bytes_max=300,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(echo, LIMITS) as server:
        yield server


def assert_refused(server: Server, data: bytes, status: int, code: str) -> None:
    with server.connect() as client:
        reply = client.request(data)
        assert (reply.status, reply.error_code, reply.interim) == (status, code, [])
        assert reply.headers["connection"] == "close"
        assert client.is_closed_by_server()
    assert server.requests.empty()


# bodies


def test_a_body_announced_too_large_is_413_before_it_is_sent(server: Server) -> None:
    assert_refused(server, get(b"/x", b"Content-Length: 10001"), 413, "payload_too_large")


def test_a_body_in_chunks_is_413_as_soon_as_it_is_too_large(server: Server) -> None:
    endless = chunked(*[b"x" * 1000] * 11).removesuffix(b"0\r\n\r\n")
    assert_refused(server, endless, 413, "payload_too_large")


def test_a_body_of_exactly_the_limit_is_taken(server: Server) -> None:
    with server.connect() as client:
        assert client.request(post(b"x" * 10_000)).body == b"POST|x|" + b"x" * 10_000
        assert client.request(chunked(b"x" * 10_000)).body == b"POST|x|" + b"x" * 10_000
    for _ in range(2):
        server.next_request()


def test_413_names_the_limit(server: Server) -> None:
    with server.connect() as client:
        reply = client.request(get(b"/x", b"Content-Length: 99999"))
    assert json.loads(reply.body)["error"]["detail"] == {"max": 10_000}


def test_a_client_that_sends_its_large_body_anyway_can_read_the_413(server: Server) -> None:
    with server.connect() as client:
        client.send(post(b"x" * 1_000_000))
        assert client.read_reply().status == 413
    assert server.requests.empty()


# Expect: 100-continue


def test_continue_is_sent_when_the_limits_allow_the_body(server: Server) -> None:
    with server.connect() as client:
        client.send(get(b"/x", b"Content-Length: 5", b"Expect: 100-continue"))
        assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.request(b"hello").body == b"GET|x|hello"
        assert client.request(get()).body == b"GET|x|"
    for _ in range(2):
        server.next_request()


def test_a_body_too_large_gets_413_and_no_continue(server: Server) -> None:
    assert_refused(server, get(b"/x", b"Content-Length: 10001", b"Expect: 100-continue"), 413, "payload_too_large")


def test_a_client_that_does_not_wait_gets_its_answer(server: Server) -> None:
    with server.connect() as client:
        assert client.request(post(b"hello", b"Expect: 100-continue")).body == b"POST|x|hello"
    server.next_request()


def test_http_1_0_is_never_told_to_continue(server: Server) -> None:
    with server.connect() as client:
        client.send(b"POST /x HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        server.settle()
        reply = client.request(b"hi")
        assert (reply.body, reply.interim) == (b"POST|x|hi", [])
    server.next_request()


def test_continue_waits_for_the_replies_before_it() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get(b"/first") + get(b"/second", b"Content-Length: 2", b"Expect: 100-continue"))
        first = server.next_request()
        server.settle()
        server.run(lambda: first.reply(200, b"1"))
        reply = client.read_reply()
        assert (reply.body, reply.interim) == (b"1", [])
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        client.send(b"hi")
        second = server.next_request()
        server.run(lambda: second.reply(200, second.body))
        assert client.read_reply().body == b"hi"


# heads


def test_a_target_too_long_is_414(server: Server) -> None:
    assert_refused(server, get(b"/" + b"a" * 300), 414, "uri_too_long")


def test_an_endless_target_is_414_before_it_ends(server: Server) -> None:
    assert_refused(server, b"GET /" + b"a" * 100_000, 414, "uri_too_long")


def test_too_many_headers_are_431(server: Server) -> None:
    assert_refused(server, get(b"/x", *[b"X: y"] * 20), 431, "headers_too_large")


def test_headers_too_large_are_431(server: Server) -> None:
    assert_refused(server, get(b"/x", *[b"X: " + b"y" * 500] * 5), 431, "headers_too_large")


def test_an_endless_header_is_431_before_it_ends(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000, 431, "headers_too_large")


def test_endless_headers_are_431_before_they_end(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20_000, 431, "headers_too_large")


def test_an_endless_trailer_is_431(server: Server) -> None:
    start = chunked(b"a").removesuffix(b"\r\n")
    assert_refused(server, start + b"X: " + b"y" * 100_000, 431, "headers_too_large")


def test_an_endless_chunk_extension_is_431(server: Server) -> None:
    start = chunked().removesuffix(b"0\r\n\r\n")
    assert_refused(server, start + b"5;a=" + b"y" * 100_000, 431, "headers_too_large")


def test_a_head_sent_byte_by_byte_is_as_good_as_any(server: Server) -> None:
    with server.connect() as client:
        for byte in get(b"/slow", b"X: y"):
            client.send(bytes([byte]))
            server.settle()
        assert client.read_reply().body == b"GET|slow|"
    server.next_request()


# the server's say on a head


def refuse_strangers(request: Request) -> None:
    if request.header(b"authorization") is None:
        request.reply_error(401, "unauthorized", "no key")


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 10001",),
        (b"Content-Length: 5000",),
        (b"Content-Length: 5", b"Expect: 100-continue"),
    ],
    ids=["too large", "large", "expecting"],
)
def test_a_head_may_be_refused_before_413_and_before_continue(lines: tuple[bytes, ...]) -> None:
    with serving(echo, LIMITS, on_head=refuse_strangers) as server:
        with server.connect() as client:
            reply = client.request(get(b"/x", *lines))
            assert (reply.status, reply.error_code, reply.interim) == (401, "unauthorized", [])
            assert reply.headers["connection"] == "close"
            assert client.is_closed_by_server()
        assert server.requests.empty()


def test_a_body_in_chunks_may_be_refused_by_its_head_when_it_grows_large() -> None:
    with serving(echo, LIMITS, on_head=refuse_strangers) as server, server.connect() as client:
        client.send(get(b"/first") + chunked(b"x" * 5000))
        assert client.read_reply().status == 200
        assert client.read_reply().status == 401
        assert client.is_closed_by_server()


def test_every_head_is_judged_once() -> None:
    judged: list[bytes] = []

    def note(request: Request) -> None:
        judged.append(request.raw_path)

    with serving(echo, LIMITS, on_head=note) as server, server.connect() as client:
        client.request(chunked(b"x" * 3000, b"x" * 3000, lines=(b"Expect: 100-continue",)))
        client.request(post(b"x" * 5000, path=b"/large"))
        client.request(post(b"x" * 5000, b"Expect: 100-continue", path=b"/both"))
        client.request(post(b"small", path=b"/small"))
    assert judged == [b"/x", b"/large", b"/both"]


def test_a_head_that_passes_is_treated_as_usual() -> None:
    key = b"Authorization: k"
    with serving(echo, LIMITS, on_head=refuse_strangers) as server:
        with server.connect() as client:
            assert client.request(get(b"/x", b"Content-Length: 10001", key)).status == 413
        with server.connect() as client:
            assert client.request(post(b"x" * 5000, key)).status == 200
            assert client.request(post(b"x" * 5, key, b"Expect: 100-continue")).status == 200


@pytest.mark.parametrize("way", [post, chunked])
def test_only_a_large_body_is_joined_by_a_thread(
    way: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []
    in_thread = Service.in_thread

    def noting(service: Service, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        def measured() -> bytes:
            body = work()
            joined.append(len(body))
            return body

        in_thread(service, measured, done)

    monkeypatch.setattr(Service, "in_thread", noting)
    body = bytes(range(200)) * 40
    with serving(echo, LIMITS) as server, server.connect() as client:
        assert client.request(way(b"small")).body == b"POST|x|small"
        client.send(way(body)[:6_000])
        server.settle()
        client.send(way(body)[6_000:] + way(b"next"))
        assert client.read_reply().body == b"POST|x|" + body
        assert client.read_reply().body == b"POST|x|next"
    assert joined == [len(body)]


def test_a_client_may_vanish_while_its_large_body_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joining: list[Callable[[], None]] = []

    def never(service: Service, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        joining.append(lambda: done(work()))

    monkeypatch.setattr(Service, "in_thread", never)
    with serving(echo, LIMITS) as server:
        with server.connect() as client:
            client.send(post(b"x" * 9_000))
            server.until(lambda: bool(joining))
            client.reset()
        server.run(joining[0])
        server.until(lambda: server.listener._service.budget.free_bytes == 10_000)


@pytest.mark.parametrize("bytes_each", [1, 3])
def test_a_body_in_many_tiny_chunks_is_whole(server: Server, bytes_each: int) -> None:
    chunks = [bytes([number % 256]) * bytes_each for number in range(3 * PARTS_MAX // 2)]
    with server.connect() as client:
        assert client.request(chunked(*chunks)).body == b"POST|x|" + b"".join(chunks)
    server.next_request()


# the budget of large bodies


def test_a_large_body_waits_until_there_is_memory_for_it() -> None:
    with serving(park, LIMITS) as server, server.connect() as one, server.connect() as two, server.connect() as three:
        one.send(post(b"1" * 9000))
        first = server.next_request()
        two.send(post(b"2" * 9000))
        server.settle()
        assert server.requests.empty()
        three.send(post(b"small"))
        small = server.next_request()
        server.run(lambda: small.reply(200))
        assert three.read_reply().status == 200
        server.run(lambda: first.reply(200))
        second = server.next_request()
        assert second.body == b"2" * 9000
        server.run(lambda: second.reply(200))
        assert two.read_reply().status == 200


def test_memory_for_a_large_body_comes_back_when_its_client_vanishes() -> None:
    with (
        serving(park, LIMITS) as server,
        server.connect() as half_sent,
        server.connect() as waiting,
        server.connect() as third,
    ):
        half_sent.send(post(b"1" * 9000)[:5000])
        server.settle()
        waiting.send(post(b"2" * 9000))
        third.send(chunked(b"3" * 9000))
        server.settle()
        assert server.requests.empty()
        half_sent.reset()
        assert server.next_request().body == b"2" * 9000
        server.settle()
        assert server.requests.empty()
        waiting.reset()
        assert server.next_request().body == b"3" * 9000


def test_heads_that_come_before_their_bodies_are_counted_for_one_request_only(server: Server) -> None:
    head, body = post(b"hello").split(b"\r\n\r\n")
    requests = 3 + LIMITS.header_bytes_max // len(head)
    with server.connect() as client:
        for _ in range(requests):
            client.send(head + b"\r\n\r\n")
            server.settle()
            assert client.request(body).status == 200
            server.next_request()


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "body", [post(b"2" * 9000), post(gzip.compress(bytes(9000)), b"Content-Encoding: gzip")], ids=["plain", "gzip"]
)
def test_a_client_that_leaves_while_its_body_waits_for_memory_is_noticed(
    body: bytes, leave: Callable[[Client], None]
) -> None:
    with serving(park, replace(LIMITS, gzip_inline_bytes_max=1000)) as server, server.connect() as one:
        one.send(post(b"1" * 9000))
        first = server.next_request()
        waiting = server.connect()
        waiting.send(body)
        server.settle()
        server.pass_time(60)
        assert server.connections_open == 2, "it may wait for as long as it likes"
        leave(waiting)
        server.pass_time(1)
        server.until(lambda: server.listener.connections_open == 1)
        server.run(lambda: first.reply(200))
        assert one.read_reply().status == 200
        assert server.requests.empty()
        assert server.run(lambda: server.listener.budget.free_bytes) == LIMITS.large_bodies_bytes_max
