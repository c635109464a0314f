"""gzip both ways: what counts is the unpacked size; large work runs on a thread and order is kept."""

import gzip
import logging
import zlib
from collections.abc import Iterator

import pytest

from tests.http.wire import Server, chunked, echo, get, park, post, serving
from tests.http.wire2 import Client2
from topics.http.content_coding import MEMBERS_MAX, accepts_gzip
from topics.http.limits import HttpLimits
from topics.http.request import Request

LIMITS = HttpLimits(body_bytes_max=1_000_000, large_body_bytes=200_000, large_bodies_bytes_max=1_000_000)
GZIP = b"Content-Encoding: gzip"
ACCEPT = b"Accept-Encoding: gzip"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(lambda request: request.reply(200, b"%d" % zlib.crc32(request.body)), LIMITS) as server:
        yield server


def crc(body: bytes) -> bytes:
    return b"%d" % zlib.crc32(body)


# requests


@pytest.mark.parametrize("size", [0, 1, 1_000, 65_536, 65_537, 300_000, 1_000_000])
def test_a_packed_body_is_unpacked_whatever_its_size(server: Server, size: int) -> None:
    body = bytes(range(250)) * 4000
    with server.connect() as client:
        assert client.request(post(gzip.compress(body[:size]), GZIP)).body == crc(body[:size])
        assert client.request(chunked(gzip.compress(body[:size]), lines=(GZIP,))).body == crc(body[:size])


@pytest.mark.parametrize("coding", [b"GZIP", b"x-gzip", b" gzip "])
def test_the_name_of_the_coding_is_matched_loosely(server: Server, coding: bytes) -> None:
    with server.connect() as client:
        assert client.request(post(gzip.compress(b"a"), b"Content-Encoding:" + coding)).body == crc(b"a")


def test_identity_is_no_coding(server: Server) -> None:
    with server.connect() as client:
        assert client.request(post(b"a", b"Content-Encoding: identity")).body == crc(b"a")


def test_several_members_are_one_body(server: Server) -> None:
    with server.connect() as client:
        assert client.request(post(gzip.compress(b"a") + gzip.compress(b"b"), GZIP)).body == crc(b"ab")


@pytest.mark.parametrize("size", [1_000_001, 100_000_000])
def test_a_bomb_is_413_and_the_connection_stays(server: Server, size: int) -> None:
    with server.connect() as client:
        reply = client.request(post(gzip.compress(bytes(size)), GZIP))
        assert (reply.status, reply.error_code) == (413, "payload_too_large")
        assert client.request(post(b"a")).body == crc(b"a")


GOOD = gzip.compress(b"hello" * 1000)


@pytest.mark.parametrize(
    "packed",
    [
        b"hello",
        GOOD[:-1],
        GOOD[:20],
        GOOD[:-4] + b"\0\0\0\0",
        GOOD + b"rubbish",
        zlib.compress(b"a"),
        gzip.compress(bytes(range(256)) * 1000)[:-3],
        gzip.compress(b"") * (MEMBERS_MAX + 1),
    ],
    ids=["none", "cut", "cut short", "bad length", "rubbish after", "zlib", "cut after 64 KiB", "too many members"],
)
def test_bad_gzip_is_400_and_the_connection_stays(server: Server, packed: bytes) -> None:
    with server.connect() as client:
        reply = client.request(post(packed, GZIP))
        assert (reply.status, reply.error_code) == (400, "invalid_request")
        assert client.request(post(b"a")).body == crc(b"a")


@pytest.mark.parametrize("coding", [b"br", b"deflate", b"gzip, gzip"])
def test_another_coding_is_415(server: Server, coding: bytes) -> None:
    with server.connect() as client:
        reply = client.request(post(b"a", b"Content-Encoding: " + coding))
    assert (reply.status, reply.error_code) == (415, "unsupported_media_type")


def test_unpacking_takes_its_share_of_the_memory_for_large_bodies() -> None:
    packed = gzip.compress(bytes(500_000))
    with serving(park, LIMITS) as server, server.connect() as one, server.connect() as two:
        one.send(post(packed, GZIP))
        first = server.next_request()
        two.send(post(packed, GZIP))
        server.settle()
        assert server.requests.empty()
        server.run(lambda: first.reply(200))
        assert len(server.next_request().body) == 500_000


def test_a_client_that_vanishes_while_its_body_is_unpacked_frees_its_share() -> None:
    packed = gzip.compress(bytes(900_000))
    with serving(lambda request: request.reply(200, b"%d" % len(request.body)), LIMITS) as server:
        for _ in range(5):
            with server.connect() as client:
                client.send(post(packed, GZIP))
                client.reset()
        with server.connect() as client:
            assert client.request(post(packed, GZIP)).body == b"900000"
        server.until(lambda: server.listener.connections_open == 0)


def test_a_body_that_is_granted_its_share_when_the_listener_is_closed_is_let_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is next in line when the connection before it is cut off, and the thread has ended by then."""
    packed = gzip.compress(bytes(900_000))
    with serving(park, LIMITS) as server, server.connect() as one, server.connect() as two, server.connect() as three:
        one.send(post(packed, GZIP))
        server.next_request()
        for client in (two, three):
            client.send(post(packed, GZIP))
            server.settle()
        server.run(server.listener.close)
        server.until(lambda: server.listener.connections_open == 0)
        assert server.requests.empty()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_work_for_the_thread_is_dropped_once_the_listener_is_closed() -> None:
    done: list[object] = []
    with serving(park, LIMITS) as server:
        server.run(server.listener.close)
        server.run(lambda: server.listener.in_thread(lambda: b"", done.append))
        server.settle()
    assert done == []


# replies


@pytest.mark.parametrize("size", [1024, 65_536, 65_537, 3_000_000])
def test_a_reply_is_packed_for_a_client_that_accepts_it(size: int) -> None:
    body = bytes(range(250)) * 20_000
    with serving(lambda request: request.reply(200, body[:size])) as server, server.connect() as client:
        reply = client.request(get(b"/x", ACCEPT))
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.headers["vary"] == "Accept-Encoding"
        assert int(reply.headers["content-length"]) < size
        assert gzip.decompress(reply.body) == body[:size]


def test_a_small_reply_is_not_packed() -> None:
    with serving(lambda request: request.reply(200, b"x" * 1023)) as server, server.connect() as client:
        reply = client.request(get(b"/x", ACCEPT))
    assert ("content-encoding" in reply.headers, len(reply.body)) == (False, 1023)
    assert "vary" not in reply.headers


def test_a_reply_that_could_have_been_packed_says_that_it_varies() -> None:
    with serving(lambda request: request.reply(200, b"x" * 1024)) as server, server.connect() as client:
        reply = client.request(get())
        assert ("content-encoding" in reply.headers, len(reply.body)) == (False, 1024)
        assert reply.headers["vary"] == "Accept-Encoding"
        client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.read_reply(head_only=True).headers["vary"] == "Accept-Encoding"
        with Client2(server.connect()) as other:
            assert other.request("GET").headers["vary"] == "Accept-Encoding"
            fields = (("accept-encoding", "gzip"),)
            packed = other.request("GET", fields=fields).headers
            assert (packed["content-encoding"], packed["vary"]) == ("gzip", "Accept-Encoding")


def test_a_reply_in_parts_is_packed_as_one() -> None:
    parts = [b"a" * 1000, memoryview(b"b" * 1000)]
    with serving(lambda request: request.reply(200, parts)) as server, server.connect() as client:
        assert gzip.decompress(client.request(get(b"/x", ACCEPT)).body) == b"a" * 1000 + b"b" * 1000


def test_replies_packed_on_the_thread_keep_their_order() -> None:
    def handle(request: Request) -> None:
        request.reply(200, request.raw_path[1:] * 200_000 if request.raw_path != b"/small" else b"small")

    with serving(handle) as server, server.connect() as client:
        client.send(get(b"/1", ACCEPT) + get(b"/small", ACCEPT) + get(b"/2", ACCEPT) + get(b"/small"))
        bodies = [client.read_reply() for _ in range(4)]
    assert gzip.decompress(bodies[0].body) == b"1" * 200_000
    assert bodies[1].body == bodies[3].body == b"small"
    assert gzip.decompress(bodies[2].body) == b"2" * 200_000


def test_head_says_what_get_would() -> None:
    with serving(lambda request: request.reply(200, b"x" * 5000)) as server, server.connect() as client:
        length = client.request(get(b"/x", ACCEPT)).headers["content-length"]
        client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        head = client.read_reply(head_only=True).headers
        assert (head["content-encoding"], head["content-length"]) == ("gzip", length)
        assert client.request(get()).body == b"x" * 5000


def test_a_client_may_leave_while_its_reply_is_being_packed() -> None:
    with serving(lambda request: request.reply(200, bytes(5_000_000))) as server:
        with server.connect() as client:
            client.send(get(b"/x", ACCEPT))
            server.next_request()
            client.reset()
        with server.connect() as client:
            assert gzip.decompress(client.request(get(b"/x", ACCEPT)).body) == bytes(5_000_000)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        (b"", False),
        (b"identity", False),
        (b"gzip", True),
        (b"GZip", True),
        (b"deflate, gzip;q=0.5, br", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"br, x-gzip-like", False),
        (b"*", False),
    ],
)
def test_accept_encoding_is_read_as_written(header: bytes | None, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


def test_echo_of_a_packed_body_is_its_plain_bytes() -> None:
    with serving(echo) as server, server.connect() as client:
        assert client.request(post(gzip.compress(b"hi"), GZIP)).body == b"POST|x|hi"
