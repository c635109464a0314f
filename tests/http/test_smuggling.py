"""Shapes that two readers could understand in two ways: each is answered 400 and the connection closed."""

from collections.abc import Iterator

import pytest

from tests.http.wire import Server, echo, get, serving

SECOND = get(b"/smuggled")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(echo) as server:
        yield server


def assert_refused(server: Server, data: bytes) -> None:
    """400 in the envelope, then the end; what follows in the same packet is never a request."""
    with server.connect() as client:
        reply = client.request(data + SECOND)
        assert (reply.status, reply.error_code) == (400, "invalid_request")
        assert reply.headers["connection"] == "close"
        client.socket.shutdown(1)
        assert client.is_closed_by_server()
    assert server.requests.empty()


def head(*lines: bytes, start: bytes = b"POST /x HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: a", *lines]) + b"\r\n\r\n"


def test_content_length_with_transfer_encoding(server: Server) -> None:
    assert_refused(server, head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n")


def test_transfer_encoding_with_content_length(server: Server) -> None:
    assert_refused(server, head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n")


def test_differing_content_lengths(server: Server) -> None:
    assert_refused(server, head(b"Content-Length: 3", b"Content-Length: 4") + b"abcd")


def test_repeated_content_length(server: Server) -> None:
    assert_refused(server, head(b"Content-Length: 3", b"Content-Length: 3") + b"abc")


@pytest.mark.parametrize("length", [b"+3", b"-3", b"0x3", b"3, 3", b"3 3", b"", b"3a", b"9" * 30])
def test_content_length_that_is_not_a_plain_number(server: Server, length: bytes) -> None:
    assert_refused(server, head(b"Content-Length: " + length) + b"abc")


@pytest.mark.parametrize(
    "coding",
    [b"xchunked", b"identity", b"gzip, chunked", b"chunked, identity", b"chunked, chunked", b"", b"chunked;a=b"],
)
def test_transfer_encoding_that_is_not_just_chunked(server: Server, coding: bytes) -> None:
    assert_refused(server, head(b"Transfer-Encoding: " + coding) + b"0\r\n\r\n")


def test_transfer_encoding_twice(server: Server) -> None:
    assert_refused(server, head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n")


def test_transfer_encoding_in_http_1_0(server: Server) -> None:
    assert_refused(server, head(b"Transfer-Encoding: chunked", start=b"POST /x HTTP/1.0") + b"0\r\n\r\n")


@pytest.mark.parametrize("line", [b"X: a\r\n b", b"X:\r\n b", b"Transfer-Encoding:\r\n chunked", b"X: a\r\n\tb"])
def test_obs_fold(server: Server, line: bytes) -> None:
    assert_refused(server, head(line))


def test_space_after_the_request_line(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\n Host: a\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /x HTTP/1.1\nHost: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\n\n",
    ],
)
def test_bare_lf(server: Server, data: bytes) -> None:
    assert_refused(server, data)


def test_bare_cr(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\nHost: a\rX: b\r\n\r\n")


def test_missing_host(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\nAccept: */*\r\n\r\n")


def test_double_host(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n")


def test_double_host_in_http_1_0(server: Server) -> None:
    assert_refused(server, b"GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /x\0y HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n",
        b"GET /x%00y HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_nul(server: Server, data: bytes) -> None:
    assert_refused(server, data)


@pytest.mark.parametrize(
    "chunks",
    [
        b"xyz\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b" 3\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"\r\nabc\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"3;a\nabc\r\n0\r\n\r\n",
        b"3;\0\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0\r\n\n",
        b"3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_bad_chunk(server: Server, chunks: bytes) -> None:
    assert_refused(server, head(b"Transfer-Encoding: chunked") + chunks)


@pytest.mark.parametrize("line", [b"X : a", b"X\t: a", b"Transfer-Encoding : chunked", b"Content-Length : 3", b" X: a"])
def test_space_before_colon(server: Server, line: bytes) -> None:
    assert_refused(server, head(line))


@pytest.mark.parametrize("line", [b"no colon", b": no name", b"a(b): x", b"X: \x01", b"X: \x7f"])
def test_header_that_is_none(server: Server, line: bytes) -> None:
    assert_refused(server, head(line))


@pytest.mark.parametrize(
    "start",
    [
        b"GET /x HTTP/0.9",
        b"GET /x HTTP/1.2",
        b"GET /x HTTP/2.0",
        b"GET /x HTTP/1.1 ",
        b"GET /x",
        b"get /x HTTP/1.1",
        b"GOT /x HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET /x#y HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /x\ty HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET http://other/x HTTP/1.1",
        b"GET ftp://a/x HTTP/1.1",
        b"CONNECT a:80 HTTP/1.1",
    ],
)
def test_request_line_that_is_none(server: Server, start: bytes) -> None:
    assert_refused(server, head(start=start))


def test_bytes_that_are_no_http(server: Server) -> None:
    assert_refused(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10)


def test_the_tail_of_a_half_preface_of_http_2(server: Server) -> None:
    assert_refused(server, b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")


def test_bytes_after_a_request_that_closes_are_not_a_request(server: Server) -> None:
    with server.connect() as client:
        reply = client.request(get(b"/x", b"Connection: close") + SECOND)
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert client.is_closed_by_server()
    assert server.next_request().path_segments == ["x"]
    assert server.requests.empty()


def test_a_refusal_comes_after_the_replies_before_it(server: Server) -> None:
    with server.connect() as client:
        client.send(get(b"/first") + b"GET /second HTTP/1.1\r\n\r\n" + SECOND)
        assert client.read_reply().body == b"GET|first|"
        assert client.read_reply().status == 400
        assert client.is_closed_by_server()
    assert server.next_request().path_segments == ["first"]
    assert server.requests.empty()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_the_cut_between_packets_makes_no_difference(server: Server, cut: int) -> None:
    data = head(b"Content-Length: 3", b"Transfer-Encoding: chunked")
    with server.connect() as client:
        client.send(data[:cut])
        server.settle()
        client.send(data[cut:])
        assert client.read_reply().status == 400
        assert client.is_closed_by_server()


def test_trailers_are_not_headers(server: Server) -> None:
    with server.connect() as client:
        client.send(head(b"Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\nAuthorization: x\r\nHost: b\r\n\r\n")
        assert client.read_reply().status == 200
        client.send(get(b"/next"))
        assert client.read_reply().status == 200
    assert server.next_request().header(b"authorization") is None
    assert server.next_request().header_values(b"host") == [b"a"]
