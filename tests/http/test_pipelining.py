"""Many requests on one connection: handled as they come, answered in order, bounded in number and in bytes."""

import gzip
import threading
from functools import partial

from tests.http.wire import PATIENCE_S, chunked, echo, get, park, post, serving
from topics.http.limits import HttpLimits
from topics.http.request import Request


def test_replies_leave_in_request_order_however_late_they_are_made() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(b"".join([get(b"/%d" % number) for number in range(6)]))
        requests = [server.next_request() for _ in range(6)]
        for index in (3, 5, 1, 4, 2):
            server.run(partial(requests[index].reply, 200, b"%d" % index))
        server.settle()
        client.socket.setblocking(False)
        try:
            early = client.socket.recv(1)
        except BlockingIOError:
            early = b""
        client.socket.settimeout(PATIENCE_S)
        assert early == b""
        server.run(lambda: requests[0].reply(200, b"0"))
        assert [client.read_reply().body for _ in range(6)] == [b"%d" % number for number in range(6)]


def test_a_connection_is_served_again_after_late_replies() -> None:
    with serving(park) as server, server.connect() as client:
        for round_number in range(3):
            client.send(get(b"/a") + post(b"b"))
            first, second = server.next_request(), server.next_request()
            server.run(partial(second.reply, 200, b"second"))
            server.run(partial(first.reply, 200, b"first"))
            assert [client.read_reply().body for _ in range(2)] == [b"first", b"second"], round_number


def test_no_more_requests_than_the_bound_are_with_their_handlers() -> None:
    with serving(park, HttpLimits(pipelined_max=4)) as server, server.connect() as client:
        client.send(b"".join([get(b"/%d" % number) for number in range(10)]))
        server.settle()
        answered = 0
        while answered < 10:
            server.settle()
            waiting = [server.next_request() for _ in range(server.requests.qsize())]
            assert 0 < len(waiting) <= 4
            for request in waiting:
                server.run(partial(request.reply, 200, request.raw_path))
            answered += len(waiting)
        assert [client.read_reply().body for _ in range(10)] == [b"/%d" % number for number in range(10)]


def test_thousands_of_requests_in_one_burst_are_all_answered() -> None:
    burst = [get(b"/%d" % number) for number in range(5000)]
    with serving(echo) as server, server.connect() as client:
        sender = threading.Thread(target=client.send, args=(b"".join(burst),))
        sender.start()
        assert [client.read_reply().body for _ in burst] == [b"GET|%d|" % number for number in range(5000)]
        sender.join()


def test_handlers_are_called_in_order_also_after_a_large_or_packed_body() -> None:
    order: list[int] = []

    def handle(request: Request) -> None:
        order.append(len(request.body))
        request.reply(200, b"%d" % len(request.body))

    packed = gzip.compress(b"x" * 300_000)
    with serving(handle, HttpLimits(large_body_bytes=100_000)) as server, server.connect() as client:
        client.send(post(b"1") + post(packed, b"Content-Encoding: gzip") + post(b"22") + post(b"y" * 200_000) + get())
        sizes = [int(client.read_reply().body) for _ in range(5)]
    assert sizes == order == [1, 300_000, 2, 200_000, 0]


def test_a_client_that_does_not_read_stops_being_served() -> None:
    """Replies of a megabyte each: only what fits the buffers is made, not a megabyte for each of 500 requests."""
    served = 0

    def handle(request: Request) -> None:
        nonlocal served
        served += 1
        request.reply(200, b"x" * 1_000_000)

    with serving(handle) as server, server.connect() as client:
        client.send(get() * 500)
        server.settle()
        assert 0 < served < 30
        for _ in range(500):
            assert len(client.read_reply().body) == 1_000_000
        assert served == 500


def test_a_client_that_does_not_read_stops_being_read() -> None:
    def handle(request: Request) -> None:
        request.reply(200, b"x" * 1_000_000)

    with serving(handle) as server, server.connect() as client:
        client.socket.settimeout(0.2)
        sent_bytes = 0
        try:
            while sent_bytes < 200_000_000:
                sent_bytes += client.socket.send(post(b"y" * 100_000))
        except TimeoutError:
            pass
        assert sent_bytes < 50_000_000


def test_replies_of_one_tick_leave_in_one_write() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get() * 50)
        requests = [server.next_request() for _ in range(50)]

        def answer_all() -> None:
            for request in requests:
                request.reply(200, b"x")

        server.run(answer_all)
        server.settle()
        received = client.socket.recv(1 << 20)
        assert received.count(b"HTTP/1.1 200 OK") == 50


def test_chunked_and_plain_requests_mix_in_one_packet() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(chunked(b"a", b"b") + get() + post(b"c") + chunked(b"d"))
        assert [client.read_reply().body for _ in range(4)] == [b"POST|x|ab", b"GET|x|", b"POST|x|c", b"POST|x|d"]
