"""What a handler sees of a request, and what the client sees of its reply, in every version of HTTP/1."""

import json
import logging
from collections.abc import Iterator

import pytest

from tests.http.wire import Server, chunked, echo, get, park, post, serving
from tests.http.wire2 import Client2
from topics.http.limits import HttpLimits
from topics.http.refusal import BadRequest
from topics.http.request import AlreadyAnswered, Request


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(echo) as server:
        yield server


# targets


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        (b"/", [""]),
        (b"/v0/topics/jobs", ["v0", "topics", "jobs"]),
        (b"/v0/topics/", ["v0", "topics", ""]),
        (b"/v0//topics", ["v0", "", "topics"]),
        (b"/v0/../x/./y", ["v0", "..", "x", ".", "y"]),
        (b"/v0/a%2Fb", ["v0", "a/b"]),
        (b"/v0/a%2fb/c", ["v0", "a/b", "c"]),
        (b"/v0/%2e%2e/x", ["v0", "..", "x"]),
        (b"/v0/%252F", ["v0", "%2F"]),
        (b"/v0/%C3%A9", ["v0", "é"]),
        (b"/a+b", ["a+b"]),
        (b"/x?y=/z", ["x"]),
        (b"http://a/v0/x", ["v0", "x"]),
        (b"HTTP://A", [""]),
    ],
)
def test_each_segment_is_decoded_once_and_nothing_is_normalised(
    server: Server, path: bytes, segments: list[str]
) -> None:
    with server.connect() as client:
        assert client.request(get(path)).status == 200
    assert server.next_request().path_segments == segments


@pytest.mark.parametrize("path", [b"/%", b"/%4", b"/%zz", b"/%C3", b"/%FF", b"/%ED%A0%80", b"/a%00"])
def test_a_bad_escape_in_the_path_is_400(server: Server, path: bytes) -> None:
    with server.connect() as client:
        reply = client.request(get(path))
    assert (reply.status, reply.error_code) == (400, "invalid_request")


def test_the_query_is_form_decoded_and_the_first_value_wins(server: Server) -> None:
    with server.connect() as client:
        client.request(get(b"/x?token=a%2Bb+c&token=d&empty=&flag"))
    request = server.next_request()
    assert request.query == b"token=a%2Bb+c&token=d&empty=&flag"
    assert request.raw_path == b"/x", "logs name the path, and a query may hold a key"
    assert request.query_value("token") == "a+b c"
    assert request.query_value("empty") == ""
    assert request.query_value("flag") == ""
    assert request.query_value("absent") is None


@pytest.mark.parametrize("query", [b"a=%zz", b"a=%ff", b"&".join([b"a=1"] * 100)])
def test_a_bad_query_is_400_when_it_is_read(query: bytes) -> None:
    def handle(request: Request) -> None:
        request.reply(200, (request.query_value("b") or "").encode())

    with serving(handle) as server, server.connect() as client:
        assert client.request(get(b"/x?" + query)).error_code == "invalid_request"
        assert client.request(get(b"/x")).status == 200


def test_options_may_ask_about_the_whole_server(server: Server) -> None:
    with server.connect() as client:
        assert client.request(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").status == 200
    assert server.next_request().path_segments == ["*"]


# headers


def test_headers_are_found_by_lower_case_name_and_stripped(server: Server) -> None:
    with server.connect() as client:
        client.request(get(b"/x", b"AUTHORIZATION:  Bearer k \t", b"X-Two: 1", b"x-two: 2", b"Empty:"))
    request = server.next_request()
    assert request.header(b"authorization") == b"Bearer k"
    assert request.header_values(b"x-two") == [b"1", b"2"]
    assert request.header(b"empty") == b""
    assert request.header(b"absent") is None
    assert request.http_version == "1.1"
    assert request.peer.startswith("127.0.0.1:")


# bodies


def test_a_body_by_length_arrives_whole_however_it_is_cut(server: Server) -> None:
    data = post(b"hello world")
    with server.connect() as client:
        for cut in (1, 20, 50, len(data) - 5):
            client.send(data[:cut])
            server.settle()
            assert client.request(data[cut:]).body == b"POST|x|hello world"


def test_a_body_in_chunks_arrives_whole(server: Server) -> None:
    with server.connect() as client:
        assert client.request(chunked(b"hello", b" ", b"world")).body == b"POST|x|hello world"
        assert client.request(chunked()).body == b"POST|x|"
        tiny = [b"%d" % (number % 10) for number in range(5000)]
        assert client.request(chunked(*tiny)).body == b"POST|x|" + b"".join(tiny)


def test_an_absent_body_is_told_from_an_announced_one(server: Server) -> None:
    while not server.requests.empty():
        server.next_request()
    with server.connect() as client:
        for data in (get(), post(b""), post(b"a"), chunked(b"a")):
            client.request(data)
    assert [server.next_request().has_body for _ in range(4)] == [False, False, True, True]


def test_a_get_may_carry_a_body(server: Server) -> None:
    with server.connect() as client:
        assert client.request(get(b"/x", b"Content-Length: 3") + b"abc").body == b"GET|x|abc"
        assert client.request(get()).body == b"GET|x|"


# replies


def test_head_gets_the_head_of_get_and_no_body(server: Server) -> None:
    with server.connect() as client:
        client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n")
        reply = client.read_reply(head_only=True)
        assert (reply.status, reply.headers["content-length"]) == (200, str(len(b"HEAD|x|")))
        assert client.request(get()).body == b"GET|x|"


def test_a_reply_carries_its_headers_type_and_date() -> None:
    def handle(request: Request) -> None:
        request.reply(201, b"hi", headers=[(b"Retry-After", b"1")], content_type=b"text/plain")

    with serving(handle) as server, server.connect() as client:
        reply = client.request(get())
    assert reply.status == 201
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["date"].endswith("GMT")
    assert reply.body == b"hi"


def test_a_body_in_parts_is_sent_in_order() -> None:
    def handle(request: Request) -> None:
        request.reply(200, [b"[", memoryview(b"1,2"), bytearray(b"]")])

    with serving(handle) as server, server.connect() as client:
        assert client.request(get()).body == b"[1,2]"


def test_a_large_body_in_parts_is_sent_whole() -> None:
    parts = [bytes([number]) * 100_000 for number in range(50)]
    with serving(lambda request: request.reply(200, parts)) as server, server.connect() as client:
        assert client.request(get()).body == b"".join(parts)


def test_204_has_neither_body_nor_length() -> None:
    with serving(lambda request: request.reply(204)) as server, server.connect() as client:
        reply = client.request(get())
        assert (reply.status, "content-length" in reply.headers, reply.body) == (204, False, b"")
        assert client.request(get()).status == 204


def test_a_line_break_in_a_reply_header_is_a_bug_not_a_header(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> None:
        request.reply(200, headers=[(b"X", b"a\r\nSet-Cookie: b")])

    with caplog.at_level(logging.CRITICAL), serving(handle) as server, server.connect() as client:
        assert client.request(get()).status == 500


# HTTP/1.0 and keep-alive


def test_http_1_0_closes_unless_asked_to_stay(server: Server) -> None:
    with server.connect() as client:
        reply = client.request(b"GET /x HTTP/1.0\r\n\r\n")
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert client.is_closed_by_server()
    with server.connect() as client:
        for _ in range(2):
            reply = client.request(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (reply.body, reply.headers["connection"]) == (b"GET|x|", "keep-alive")


def test_http_1_1_stays_unless_asked_to_close(server: Server) -> None:
    with server.connect() as client:
        for _ in range(3):
            assert "connection" not in client.request(get()).headers
        assert client.request(get(b"/x", b"Connection: close")).headers["connection"] == "close"
        assert client.is_closed_by_server()


def test_empty_lines_before_a_request_are_forgiven(server: Server) -> None:
    with server.connect() as client:
        assert client.request(b"\r\n\r\n" + get()).status == 200


# handlers that fail


def test_a_handler_that_raises_is_500_with_a_trace_id_and_the_connection_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(request: Request) -> None:
        if request.path_segments == ["bad"]:
            raise ZeroDivisionError("oops")
        request.reply(200)

    with serving(handle) as server, server.connect() as client:
        reply = client.request(get(b"/bad"))
        assert (reply.status, reply.error_code) == (500, "internal")
        trace_id = json.loads(reply.body)["error"]["detail"]["trace_id"]
        assert any(trace_id in record.getMessage() and record.exc_info for record in caplog.records)
        assert b"oops" not in reply.body
        assert client.request(get()).status == 200


def test_a_refusal_raised_by_a_handler_is_its_answer() -> None:
    def handle(request: Request) -> None:
        raise BadRequest("no such field", {"field": "limit"})

    with serving(handle) as server, server.connect() as client:
        error = json.loads(client.request(get()).body)["error"]
    assert error == {"code": "invalid_request", "message": "no such field", "detail": {"field": "limit"}}


def test_the_injected_renderer_and_bug_reporter_are_used() -> None:
    def handle(request: Request) -> None:
        raise ZeroDivisionError

    def render(status: int, code: str, message: str, detail: object) -> bytes:
        return f"{status} {code} {detail}".encode()

    with serving(handle, render_error=render, on_bug=lambda request, exc: type(exc).__name__) as server:
        with server.connect() as client:
            assert client.request(get()).body == b"500 internal {'trace_id': 'ZeroDivisionError'}"
        with server.connect() as client:
            assert client.request(b"bad\r\n\r\n").body == b"400 invalid_request None"


def test_a_second_answer_is_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> None:
        request.reply(200, b"first")
        request.reply(200, b"second")

    with serving(handle) as server, server.connect() as client:
        assert client.request(get()).body == b"first"
        assert client.request(get()).body == b"first"
    assert any(record.exc_info and record.exc_info[0] is AlreadyAnswered for record in caplog.records)


def test_a_client_that_stops_sending_still_gets_its_answers() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get(b"/1") + get(b"/2"))
        client.socket.shutdown(1)
        first, second = server.next_request(), server.next_request()
        server.settle()
        server.run(lambda: second.reply(200, b"2"))
        server.run(lambda: first.reply(200, b"1"))
        assert client.read_reply().body == b"1"
        assert client.read_reply().body == b"2"
        assert client.is_closed_by_server()


def test_more_connections_than_allowed_are_sent_away() -> None:
    with serving(echo, HttpLimits(connections_max=2)) as server, server.connect() as one, server.connect() as two:
        assert one.request(get()).status == two.request(get()).status == 200
        with server.connect() as three:
            reply = three.read_reply()
            assert (reply.status, reply.error_code, reply.headers["retry-after"]) == (429, "throttled", "1")
            assert three.is_closed_by_server()
        two.close()
        server.until(lambda: server.listener.connections_open == 1)
        with server.connect() as four:
            assert four.request(get()).status == 200


def test_ids_of_a_request_come_back_over_both_versions() -> None:
    given = (b"X-Request-Id: a-1", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    with serving(echo) as server, server.connect() as first, Client2(server.connect()) as second:
        reply = first.request(get(b"/x", *given))
        fields = tuple((name.decode().lower(), value.decode()) for name, value in (line.split(b": ") for line in given))
        for headers in (reply.headers, second.request(fields=fields).headers):
            assert headers["x-request-id"] == "a-1"
            assert headers["traceparent"].startswith("00-0af7651916cd43dd")
        assert "x-request-id" not in first.request(get()).headers
