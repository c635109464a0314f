"""HTTP/2 by prior knowledge on the same port: the same requests, handlers, limits and ends as HTTP/1."""

import gc
import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial

import h2.errors
import pytest

from tests.http.test_lifecycle import drain
from tests.http.wire import Server, echo, get, park, serving
from tests.http.wire2 import Client2, Reply2
from topics.http.http2.connection import Http2Connection
from topics.http.http2.frames import PREFACE
from topics.http.http2.stream import Http2Stream
from topics.http.http2.writer import Http2Writer
from topics.http.limits import HttpLimits
from topics.http.refusal import Refusal
from topics.http.request import Request
from topics.http.service import Service

LIMITS = HttpLimits(
    body_bytes_max=200_000,
    large_body_bytes=50_000,
    large_bodies_bytes_max=200_000,
    header_bytes_max=2_000,
    header_count_max=20,
    uri_bytes_max=300,
    h2_resets_max=20,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(echo, LIMITS) as server:
        yield server


def connect(server: Server, **options: object) -> Client2:
    return Client2(server.connect(), **options)  # type: ignore[arg-type]


def test_a_request_arrives_as_it_would_by_http_1(server: Server) -> None:
    with connect(server) as client:
        reply = client.request("POST", "/v0/a%2Fb?q=1", (("x-two", "1"), ("x-two", "2")), b"hello")
        assert (reply.status, reply.body) == (200, b"POST|v0|a/b|hello")
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["content-length"] == str(len(reply.body))
        assert reply.headers["date"].endswith("GMT")
    request = server.next_request()
    assert (request.http_version, request.query, request.has_body) == ("2", b"q=1", True)
    assert request.header(b"host") == b"a"
    assert request.header_values(b"x-two") == [b"1", b"2"]


def test_the_preface_may_come_in_pieces_and_a_post_is_told_from_it(server: Server) -> None:
    with server.connect() as client:
        client.send(b"P")
        server.settle()
        client.send(b"OST /x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.read_reply().body == b"POST|x|"
    with server.connect() as raw:
        for byte in PREFACE:
            raw.send(bytes([byte]))
            server.settle()
        assert raw.socket.recv(9)[3] == 4  # SETTINGS
    server.next_request()


def test_streams_are_answered_as_their_handlers_answer() -> None:
    with serving(park) as server, connect(server) as client:
        numbers = [client.start(path=f"/{index}") for index in range(5)]
        requests = [server.next_request() for _ in range(5)]
        for index in (3, 0, 4, 1, 2):
            server.run(partial(requests[index].reply, 200, b"%d" % index))
            assert client.finish(numbers[index]).body == b"%d" % index


def test_head_and_204_have_no_body() -> None:
    def handle(request: Request) -> None:
        request.reply(204 if request.raw_path == b"/204" else 200, b"" if request.raw_path == b"/204" else b"abc")

    with serving(handle) as server, connect(server) as client:
        reply = client.request("HEAD")
        assert (reply.body, reply.headers["content-length"]) == (b"", "3")
        reply = client.request(path="/204")
        assert (reply.status, "content-length" in reply.headers) == (204, False)


@pytest.mark.parametrize("method", ["\x1b[31mGET", "GET\x85", "G T", "A" * 33])
def test_a_method_that_could_not_be_sent_by_http1_is_400(server: Server, method: str) -> None:
    with connect(server) as client:
        assert client.request(method).status == 400


@pytest.mark.parametrize("path", ["/%zz", "/a#b", "/a b", "/é", "x", "*", "/a%00"])
def test_a_bad_path_is_400(server: Server, path: str) -> None:
    with connect(server) as client:
        reply = client.request(path=path)
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, "invalid_request")
        assert client.request().status == 200
    server.next_request()


def test_connect_is_400_or_ends_the_connection(server: Server) -> None:
    with connect(server) as client:
        number = client.h2.get_next_available_stream_id()
        reply = client.replies[number] = Reply2()
        client.h2.send_headers(number, [(":method", "CONNECT"), (":authority", "a:80")], end_stream=True)
        client.flush()
        try:
            client.finish(number)
        except EOFError:
            assert client.goodbye is not None
        else:
            assert reply.status == 400
    assert server.requests.empty()


# limits


def test_a_target_too_long_is_414(server: Server) -> None:
    with connect(server) as client:
        assert client.request(path="/" + "a" * 300).status == 414


def test_headers_too_many_or_too_large_are_431(server: Server) -> None:
    with connect(server) as client:
        assert client.request(fields=(("x", "y"),) * 21).status == 431
        assert client.request(fields=(("x", "y" * 2000),)).status == 431


def test_headers_far_too_large_end_the_connection(server: Server) -> None:
    with connect(server) as client:
        client.start(fields=(("x", "y" * 10_000),))
        client.receive_to_end()
        assert client.goodbye is not None


def test_a_body_announced_too_large_is_413_before_it_is_sent(server: Server) -> None:
    with connect(server) as client:
        number = client.start("POST", fields=(("content-length", "200001"),), end=False)
        reply = client.finish(number)
        assert reply.status == 413
        assert client.request().status == 200
    server.next_request()


def test_a_body_that_grows_too_large_is_413(server: Server) -> None:
    with connect(server) as client:
        number = client.start("POST", end=False)
        client.send_body(number, bytes(200_001), end=False)
        assert client.finish(number).status == 413
        assert client.request().status == 200
    server.next_request()


def test_a_body_of_the_limit_is_taken_through_the_windows(server: Server) -> None:
    body = bytes(range(200)) * 1000
    with connect(server) as client:
        assert client.request("POST", body=body).body == b"POST|x|" + body
        assert client.request("POST", fields=(("content-length", "200000"),), body=body).body == b"POST|x|" + body
    for _ in range(2):
        server.next_request()


def test_continue_is_sent_and_a_stranger_gets_401_instead() -> None:
    def judge(request: Request) -> None:
        if request.header(b"authorization") is None:
            request.reply_error(401, "unauthorized", "no key")

    expect = (("expect", "100-continue"), ("content-length", "2"))
    with serving(echo, LIMITS, on_head=judge) as server, connect(server) as client:
        number = client.start("POST", fields=(*expect, ("authorization", "k")), end=False)
        while not client.replies[number].interim:
            client.receive()
        client.send_body(number, b"hi")
        assert client.finish(number).body == b"POST|x|hi"
        reply = client.finish(client.start("POST", fields=expect, end=False))
        assert (reply.status, reply.interim) == (401, [])
        large = (("content-length", "60000"),)
        assert client.finish(client.start("POST", fields=large, end=False)).status == 401


def test_many_small_bodies_of_one_connection_count_as_large() -> None:
    """Unfinished bodies beyond one megabyte wait for memory instead of being kept for nothing."""
    with serving(park, LIMITS) as server, connect(server) as client:
        numbers = [client.start("POST", end=False) for _ in range(3)]
        for number in numbers:
            client.send_body(number, bytes(40_000), end=False)
        server.settle()
        assert server.run(lambda: server.listener._service.budget.free_bytes) == 0
        client.h2.reset_stream(numbers[1])
        client.h2.reset_stream(numbers[2])
        client.flush()
        server.until(lambda: server.listener._service.budget.free_bytes == 200_000)


def test_a_large_body_waits_until_there_is_memory_for_it() -> None:
    with serving(park, LIMITS) as server, connect(server) as one, connect(server) as two:
        length = (("content-length", "150000"),)
        first = one.start("POST", fields=length, end=False)
        one.send_body(first, bytes(150_000))
        parked = server.next_request()
        second = two.start("POST", fields=length, end=False)
        two.h2.send_data(second, bytes(10_000))
        two.flush()
        server.settle()
        assert two.h2.local_flow_control_window(second) < 65_535
        server.run(lambda: parked.reply(200))
        two.send_body(second, bytes(140_000))
        assert len(server.next_request().body) == 150_000


def test_a_large_body_is_joined_by_a_thread_and_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[object] = []
    in_thread = Service.in_thread

    def noting(service: Service, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        threads.append(work)
        in_thread(service, work, done)

    monkeypatch.setattr(Service, "in_thread", noting)
    body = bytes(range(200)) * 400
    with serving(echo, LIMITS) as server, connect(server) as client:
        assert client.request("POST", body=b"small").body == b"POST|x|small"
        assert not threads
        assert client.request("POST", body=body).body == b"POST|x|" + body
        assert len(threads) == 1


# gzip


def test_gzip_both_ways(server: Server) -> None:
    body = bytes(range(250)) * 700
    with connect(server) as client:
        fields = (("content-encoding", "gzip"), ("accept-encoding", "gzip"))
        reply = client.request("POST", fields=fields, body=gzip.compress(body))
        assert reply.headers["content-encoding"] == "gzip"
        assert gzip.decompress(reply.body) == b"POST|x|" + body
        assert client.request("POST", fields=fields, body=gzip.compress(bytes(10_000_000))).status == 413
        assert client.request("POST", fields=fields, body=b"rubbish").status == 400
    server.next_request()


# sending


def test_a_reply_waits_for_the_client_s_window() -> None:
    body = bytes(range(250)) * 2000
    with (
        serving(lambda request: request.reply(200, body if request.raw_path == b"/x" else b"small")) as server,
        connect(server, auto_ack=False) as client,
    ):
        number = client.start()
        reply = client.replies[number]
        while len(reply.body) < 65_535:
            client.receive()
        server.settle()
        assert len(reply.body) == 65_535
        client.h2.increment_flow_control_window(1_000_000)
        client.h2.increment_flow_control_window(1_000_000, number)
        client.flush()
        assert client.finish(number).body == body


def test_a_stalled_stream_does_not_stop_another() -> None:
    with (
        serving(lambda request: request.reply(200, bytes(30_000))) as server,
        connect(server, auto_ack=False, window=10_000) as client,
    ):
        stalled = client.start()
        while len(client.replies[stalled].body) < 10_000:
            client.receive()
        other = client.start()
        client.h2.increment_flow_control_window(30_000, other)
        client.flush()
        assert len(client.finish(other).body) == 30_000
        assert not client.replies[stalled].ended


def test_a_client_that_takes_no_bytes_stops_being_served() -> None:
    served = 0

    def handle(request: Request) -> None:
        nonlocal served
        served += 1
        request.reply(200, bytes(500_000))

    with serving(handle) as server, connect(server, auto_ack=False, window=0) as client:
        for _ in range(100):
            client.start()
        server.settle()
        assert 0 < served < 10
        server.pass_time(61)
        server.until(lambda: server.listener.connections_open == 0)


def test_more_streams_than_allowed_end_the_connection() -> None:
    with serving(park, HttpLimits(h2_streams_max=5)) as server, connect(server) as client:
        while client.h2.remote_settings.max_concurrent_streams != 5:
            client.receive()
        client.h2.remote_settings[3] = 100
        client.h2.remote_settings.acknowledge()
        for _ in range(6):
            client.start()
        client.receive_to_end()
        assert client.goodbye is not None


def test_a_client_that_only_resets_is_sent_away() -> None:
    with serving(park, LIMITS) as server, connect(server) as client:
        try:
            for _ in range(30):
                client.h2.reset_stream(client.start())
                client.flush()
        except ConnectionError:
            pass
        client.receive_to_end()
        assert client.goodbye is not None
        assert client.goodbye.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


def test_bytes_that_are_no_frames_end_the_connection(server: Server) -> None:
    with server.connect() as client:
        client.send(PREFACE + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 5)
        client.read_to_end()
    server.settle()
    assert server.requests.empty()


def test_a_stream_reset_in_the_same_packet_never_reaches_a_handler(server: Server) -> None:
    with connect(server) as client:
        number = client.h2.get_next_available_stream_id()
        head = [(":method", "GET"), (":path", "/x"), (":scheme", "http"), (":authority", "a")]
        client.h2.send_headers(number, head, end_stream=True)
        client.h2.reset_stream(number)
        client.flush()
        assert client.request(path="/after").status == 200
    assert server.next_request().path_segments == ["after"]
    assert server.requests.empty()


def test_a_frame_that_announces_too_much_is_not_waited_for(server: Server) -> None:
    with connect(server) as client:
        client.client.send((16_385).to_bytes(3, "big") + b"\0\0\0\0\0\1")
        client.receive_to_end()
        assert client.goodbye is not None
        assert client.goodbye.error_code == h2.errors.ErrorCodes.FRAME_SIZE_ERROR


# streams and disconnects


def test_a_stream_flows_pauses_and_ends() -> None:
    events: list[str] = []
    with serving(park) as server, connect(server, auto_ack=False) as client:
        number = client.start()
        request = server.next_request()
        stream = server.run(lambda: request.stream(headers=[(b"Cache-Control", b"no-store")]))
        stream.on_pause = lambda: events.append("pause")
        stream.on_resume = lambda: events.append("resume")
        server.run(partial(stream.write, b"data: 1\n\n"))
        reply = client.replies[number]
        while not reply.body:
            client.receive()
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        server.run(partial(stream.write, bytes(200_000)))
        assert events == ["pause"]
        assert stream.buffered_bytes > 64 * 1024
        client.h2.increment_flow_control_window(1_000_000)
        client.h2.increment_flow_control_window(1_000_000, number)
        client.flush()
        while len(reply.body) < 200_009:
            client.receive()
        assert events == ["pause", "resume"]
        server.run(stream.close)
        assert client.finish(number).ended
        assert stream.closed


def test_a_reset_tells_parked_requests_and_streams() -> None:
    told: list[str] = []

    def handle(request: Request) -> None:
        if request.raw_path == b"/stream":
            request.stream().on_close = lambda: told.append("stream")
        else:
            request.on_disconnect = lambda: told.append("parked")

    with serving(handle) as server, connect(server) as client:
        for path in ("/stream", "/parked"):
            number = client.start(path=path)
            server.next_request()
            client.h2.reset_stream(number)
            client.flush()
        server.until(lambda: told == ["stream", "parked"])
        client.start(path="/stream")
        client.start(path="/parked")
        server.settle()
        client.client.reset()
        server.until(lambda: told == ["stream", "parked"] * 2)


def test_an_aborted_stream_leaves_the_connection_alone() -> None:
    with serving(park) as server, connect(server) as client:
        number = client.start()
        request = server.next_request()
        stream = server.run(request.stream)
        server.run(stream.abort)
        assert client.finish(number).reset == h2.errors.ErrorCodes.CANCEL
        number = client.start()
        request = server.next_request()
        server.run(lambda: request.reply(200, b"alive"))
        assert client.finish(number).body == b"alive"


def test_a_reply_to_a_stream_that_was_reset_goes_nowhere() -> None:
    with serving(park) as server, connect(server) as client:
        number = client.start()
        request = server.next_request()
        client.h2.reset_stream(number)
        client.flush()
        server.settle()
        server.run(lambda: request.reply(200, bytes(100)))
        number = client.start()
        request = server.next_request()
        server.run(lambda: request.reply(200, b"alive"))
        assert client.finish(number).body == b"alive"


# time


def test_a_slow_body_is_408() -> None:
    with serving(echo) as server, connect(server) as client:
        number = client.start("POST", end=False)
        for _ in range(4):
            client.h2.send_data(number, b"x")
            client.flush()
            server.pass_time(9)
        assert client.finish(number).status == 408
        assert client.request().status == 200


def test_an_idle_connection_is_closed_with_a_goodbye() -> None:
    with serving(echo) as server, connect(server) as client:
        assert client.request().status == 200
        server.pass_time(76)
        client.receive_to_end()
        assert client.goodbye is not None


# the end


def test_drain_says_goodbye_and_finishes_what_was_begun() -> None:
    with serving(park) as server, connect(server) as client, connect(server) as idle:
        number = client.start()
        request = server.next_request()
        server.settle()
        task = drain(server)
        idle.receive_to_end()
        assert idle.goodbye is not None
        while client.goodbye is None:
            client.receive()
        assert client.goodbye.last_stream_id == number
        server.run(lambda: request.reply(200, b"farewell"))
        # the h2 client takes no frames after a goodbye: look at the bytes
        assert b"farewell" in client.client.read_to_end()
        server.until(task.done)


def test_a_handler_that_raises_is_500_and_the_connection_stays() -> None:
    def handle(request: Request) -> None:
        if request.raw_path == b"/bad":
            raise ZeroDivisionError
        request.reply(200)

    with serving(handle, on_bug=lambda request, exc: "trace") as server, connect(server) as client:
        reply = client.request(path="/bad")
        assert (reply.status, json.loads(reply.body)["error"]["detail"]) == (500, {"trace_id": "trace"})
        assert client.request().status == 200


def test_both_versions_share_a_port(server: Server) -> None:
    with connect(server) as two, server.connect() as one:
        assert two.request().status == one.request(get()).status == 200
    for _ in range(2):
        server.next_request()


def test_nothing_of_a_connection_needs_the_cycle_collector_to_go_away() -> None:
    kinds = (Request, Http2Connection, Http2Writer, Http2Stream)

    def handle(request: Request) -> None:
        if request.raw_path == b"/stream":
            request.stream().write(b"x")
        elif request.raw_path != b"/park":
            request.reply(200)

    with serving(handle, LIMITS) as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                with connect(server) as client:
                    for path in ("/", "/stream", "/park", "/%zz"):
                        client.start(path=path)
                    client.start("POST", fields=(("content-length", "999999"),), end=False)
                    server.settle()
                server.settle()
            while not server.requests.empty():
                server.requests.get()
            server.until(lambda: server.listener.connections_open == 0)
            server.settle()
            assert [thing for thing in gc.get_objects() if isinstance(thing, kinds)] == []
        finally:
            gc.enable()
