"""Replies without a known end: framing, backpressure, ends from both sides."""

from functools import partial

from tests.http.wire import Server, echo, get, park, post, serving
from topics.http.limits import HttpLimits
from topics.http.request import ReplyStream, Request


def open_stream(server: Server) -> ReplyStream:
    request = server.next_request()
    return server.run(lambda: request.stream(headers=[(b"Cache-Control", b"no-store")]))


def test_a_stream_is_chunked_and_ends_properly() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        head = client.read_until(b"\r\n\r\n")
        assert b"Content-Type: text/event-stream; charset=utf-8\r\n" in head
        assert b"Cache-Control: no-store\r\n" in head
        assert b"Transfer-Encoding: chunked\r\n" in head
        server.run(partial(stream.write, b"data: 1\n\n"))
        assert client.read_until(b"\n\n\r\n") == b"9\r\ndata: 1\n\n\r\n"
        server.run(stream.close)
        assert client.read_until(b"0\r\n\r\n") == b"0\r\n\r\n"
        client.send(get())
        request = server.next_request()
        server.run(lambda: request.reply(200, b"next"))
        assert client.read_reply().body == b"next"


def test_writes_of_one_tick_leave_together() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        client.read_until(b"\r\n\r\n")

        def write() -> None:
            for _ in range(10):
                stream.write(b"x")

        server.run(write)
        server.settle()
        assert client.socket.recv(1000) == b"1\r\nx\r\n" * 10


def test_a_stream_of_http_1_0_ends_with_the_connection() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        stream = open_stream(server)
        head = client.read_until(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert b"Connection: close\r\n" in head
        server.run(partial(stream.write, b"data"))
        server.run(stream.close)
        assert client.read_to_end() == b"data"


def test_a_stream_waits_for_the_replies_before_it_and_holds_those_after_it() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get() * 3)
        before, streaming, behind = (server.next_request() for _ in range(3))

        def act() -> ReplyStream:
            stream = streaming.stream()
            stream.write(b"a")
            behind.reply(200, b"behind")
            return stream

        stream = server.run(act)
        server.run(partial(stream.write, b"b"))
        server.run(lambda: before.reply(200, b"before"))
        assert client.read_reply().body == b"before"
        server.run(stream.close)
        assert client.read_reply().body == b"ab"
        assert client.read_reply().body == b"behind"


def test_a_stream_that_ends_before_its_turn_is_sent_whole() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get() * 2)
        before, streaming = server.next_request(), server.next_request()

        def act() -> None:
            stream = streaming.stream()
            stream.write(b"all")
            stream.close()

        server.run(act)
        server.run(lambda: before.reply(200))
        client.read_reply()
        assert client.read_reply().body == b"all"


def test_head_of_a_stream_has_no_body() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" + get())
        stream = open_stream(server)
        assert stream.closed
        server.run(partial(stream.write, b"x"))
        request = server.next_request()
        server.run(lambda: request.reply(200, b"next"))
        assert client.read_reply(head_only=True).status == 200
        assert client.read_reply().body == b"next"


def test_a_reader_that_stops_pauses_the_stream_and_resumes_it() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        events: list[str] = []
        stream.on_pause = lambda: events.append("pause")
        stream.on_resume = lambda: events.append("resume")
        while not stream.paused:
            server.run(partial(stream.write, bytes(100_000)))
            server.settle()
        assert events == ["pause"]
        assert stream.buffered_bytes > 64 * 1024
        while stream.paused:
            client.socket.recv(1 << 20)
        assert events == ["pause", "resume"]
        assert stream.buffered_bytes <= 64 * 1024


def test_a_paused_stream_is_not_cut_off_by_the_protocol() -> None:
    """How long a slow consumer is borne is for the server to say."""
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        server.run(partial(stream.write, bytes(20_000_000)))
        server.pass_time(10_000)
        assert not stream.closed
        server.run(stream.abort)
        server.until(lambda: stream.closed)


def test_a_client_that_leaves_ends_the_stream_once() -> None:
    with serving(park) as server:
        for leave in ("close", "reset", "shutdown"):
            with server.connect() as client:
                client.send(get())
                stream = open_stream(server)
                closes: list[str] = []
                stream.on_close = partial(closes.append, leave)
                client.read_until(b"\r\n\r\n")
                if leave == "shutdown":
                    client.socket.shutdown(1)
                else:
                    getattr(client, leave)()
                server.until(lambda stream=stream: stream.closed)
                server.run(partial(stream.write, b"x"))
                server.run(stream.close)
                assert (stream.closed, closes, stream.buffered_bytes) == (True, [leave], 0)


def test_a_stream_that_is_closed_by_its_writer_has_no_on_close() -> None:
    closes: list[None] = []
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        stream.on_close = lambda: closes.append(None)
        server.run(stream.close)
        assert client.read_reply().body == b""
    assert closes == []


def test_a_large_write_is_one_chunk() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        stream = open_stream(server)
        client.read_until(b"\r\n\r\n")
        server.run(partial(stream.write, bytes(1_000_000)))
        assert client.read_until(b"\r\n") == b"%x\r\n" % 1_000_000


# requests that wait, and clients that do not


def test_a_parked_request_is_told_when_its_client_leaves() -> None:
    gone: list[bytes] = []

    def handle(request: Request) -> None:
        request.on_disconnect = lambda: gone.append(request.raw_path)

    with serving(handle) as server:
        for leave in ("close", "reset"):
            with server.connect() as client:
                client.send(get(b"/1") + get(b"/2"))
                first, second = server.next_request(), server.next_request()
                server.settle()
                getattr(client, leave)()
                server.until(lambda first=first, second=second: first.gone and second.gone)
                server.run(partial(first.reply, 200, b"nobody listens"))
        assert gone == [b"/1", b"/2"] * 2


def test_a_request_that_was_answered_is_not_notified() -> None:
    gone: list[None] = []

    def handle(request: Request) -> None:
        request.on_disconnect = lambda: gone.append(None)
        request.reply(200)

    with serving(handle) as server:
        with server.connect() as client:
            assert client.request(get()).status == 200
        server.settle()
    assert gone == []


def test_a_request_in_line_after_a_parked_one_is_dropped_with_its_client() -> None:
    with serving(park, HttpLimits(pipelined_max=1)) as server:
        with server.connect() as client:
            client.send(get(b"/1") + get(b"/2"))
            first = server.next_request()
            server.settle()
        server.settle()
        server.run(lambda: first.reply(200))
        server.settle()
        assert server.requests.qsize() <= 1


def test_one_client_s_departure_leaves_the_others_alone() -> None:
    with serving(echo) as server, server.connect() as stays:
        for _ in range(20):
            with server.connect() as leaves:
                leaves.send(post(b"x" * 100)[:50])
                leaves.reset()
        assert stays.request(get()).status == 200
        server.until(lambda: server.listener.connections_open == 1)
