"""Properties: where packets are cut makes no difference, and no bytes whatever bring the server down."""

import gzip
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.http.wire import Server, chunked, echo, get, post, serving
from topics.http.http2.frames import PREFACE
from topics.http.limits import HttpLimits

LIMITS = HttpLimits(body_bytes_max=50_000, large_body_bytes=1_000, large_bodies_bytes_max=50_000, pipelined_max=3)
MIX = [
    get(b"/a"),
    post(b"hello"),
    chunked(b"x" * 300, b"y", b"z" * 20),
    post(b"w" * 3_000),
    get(b"/b", b"Connection: Upgrade", b"Upgrade: h2c"),
    post(gzip.compress(b"packed" * 100), b"Content-Encoding: gzip"),
    post(b"expecting", b"Expect: 100-continue"),
    b"\r\n" + get(b"/c?d=e"),
]
EXPECTED = [
    b"GET|a|",
    b"POST|x|hello",
    b"POST|x|" + b"x" * 300 + b"y" + b"z" * 20,
    b"POST|x|" + b"w" * 3_000,
    b"GET|b|",
    b"POST|x|" + b"packed" * 100,
    b"POST|x|expecting",
    b"GET|c|",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(echo, LIMITS, on_bug=lambda request, exc: pytest.fail(repr(exc))) as server:
        yield server


@given(order=st.lists(st.integers(0, len(MIX) - 1), min_size=1, max_size=12), cuts=st.lists(st.integers(1, 5_000)))
@settings(max_examples=examples(60))
def test_any_requests_cut_anywhere_get_the_same_replies(server: Server, order: list[int], cuts: list[int]) -> None:
    data = b"".join([MIX[index] for index in order])
    with server.connect() as client:
        for cut in cuts:
            client.send(data[:cut])
            data = data[cut:]
            server.settle()
        client.send(data)
        assert [client.read_reply().body for _ in order] == [EXPECTED[index] for index in order]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Requests with bytes changed, dropped or put in."""
    data = bytearray(b"".join([MIX[index] for index in draw(st.lists(st.integers(0, len(MIX) - 1), min_size=1))]))
    for _ in range(draw(st.integers(1, 5))):
        position = draw(st.integers(0, len(data) - 1))
        piece = draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\r\n", b"\n", b"\0", b":", b" ", b"%"])))
        data[position : position + draw(st.integers(0, 3))] = piece
        if not data:
            break
    return bytes(data)


@given(data=st.one_of(damaged(), st.binary(max_size=300), st.binary(max_size=300).map(PREFACE.__add__)))
@settings(max_examples=examples(150))
def test_damaged_bytes_get_an_answer_or_an_end_and_harm_nobody(server: Server, data: bytes) -> None:
    with server.connect() as client:
        try:
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        client.read_to_end()
    with server.connect() as client:
        assert client.request(get(b"/alive")).body == b"GET|alive|"


def test_connections_have_nagle_s_delay_turned_off(server: Server) -> None:
    with server.connect() as client:
        client.request(get())
        connections = server.run(lambda: list(server.listener._service.connections))
        sockets = [connection._transport.get_extra_info("socket") for connection in connections]  # type: ignore[attr-defined]
        assert sockets
        assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)
