"""Clients that take too long are closed within bounded time; the clock is the test's."""

from tests.http.wire import echo, get, park, post, serving
from topics.http.limits import HttpLimits


def test_a_head_that_never_ends_is_408_and_closed() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n")
        server.pass_time(9)
        client.send(b"X: y\r\n")
        server.pass_time(2)
        reply = client.read_reply()
        assert (reply.status, reply.error_code) == (408, "request_timeout")
        assert client.is_closed_by_server()


def test_a_head_in_time_is_served() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n")
        server.pass_time(9)
        client.send(b"\r\n")
        assert client.read_reply().status == 200
        server.pass_time(9)
        assert client.request(get()).status == 200


def test_a_request_line_that_is_not_even_begun_is_closed_as_idle() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(b"\r\n\r\n")
        server.pass_time(70)
        client.send(b"GE")
        server.pass_time(6)
        assert client.is_closed_by_server()


def test_a_body_that_drips_is_408_and_closed() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(get(b"/x", b"Content-Length: 1000"))
        for _ in range(3):
            client.send(b"x")
            server.pass_time(9)
        client.send(b"x")
        server.pass_time(9)
        assert client.read_reply().status == 408
        assert client.is_closed_by_server()
    assert server.requests.empty()


def test_a_body_that_flows_may_take_longer() -> None:
    limits = HttpLimits(body_bytes_per_s_min=1000)
    with serving(echo, limits) as server, server.connect() as client:
        client.send(get(b"/x", b"Content-Length: 80000"))
        for _ in range(8):
            client.send(b"x" * 10_000)
            server.pass_time(10)
        assert len(client.read_reply().body) == len(b"GET|x|") + 80_000


def test_chunks_that_drip_are_408_and_closed() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            client.send(b"1\r\nx\r\n")
            server.pass_time(9)
        assert client.read_reply().status == 408
        assert client.is_closed_by_server()


def test_an_idle_connection_is_closed_without_a_word() -> None:
    with serving(echo) as server, server.connect() as client, server.connect() as silent:
        assert client.request(get()).status == 200
        server.pass_time(74)
        assert client.request(get()).status == 200
        server.settle()
        server.pass_time(74)
        assert silent.is_closed_by_server()
        assert client.request(get()).status == 200
        server.pass_time(76)
        assert client.is_closed_by_server()


def test_a_parked_request_may_wait_as_long_as_it_likes() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        request = server.next_request()
        server.pass_time(10_000)
        server.run(lambda: request.reply(200))
        assert client.read_reply().status == 200


def test_the_clock_of_a_half_sent_request_does_not_run_while_an_earlier_one_is_parked() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get() + b"GET /y HTTP/1.1\r\n")
        request = server.next_request()
        server.pass_time(1_000)
        server.run(lambda: request.reply(200))
        assert client.read_reply().status == 200
        server.pass_time(1)
        assert client.read_reply().status == 408


def test_a_client_that_does_not_read_its_reply_is_cut_off() -> None:
    def handle(request: object) -> None:
        request.reply(200, bytes(20_000_000))  # type: ignore[attr-defined]

    with serving(handle) as server, server.connect() as client:
        client.send(get())
        server.pass_time(50)
        assert server.connections_open == 1
        server.pass_time(11)
        server.until(lambda: server.listener.connections_open == 0)


def test_a_client_that_keeps_sending_after_its_refusal_is_cut_off() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(b"rubbish\r\n\r\n")
        assert client.read_reply().status == 400
        client.send(b"more")
        server.pass_time(2)
        assert server.connections_open == 1
        server.pass_time(2)
        server.until(lambda: server.listener.connections_open == 0)


def test_waiting_for_memory_does_not_count_as_slowness() -> None:
    limits = HttpLimits(body_bytes_max=10_000, large_body_bytes=4_000, large_bodies_bytes_max=10_000)
    with serving(park, limits) as server, server.connect() as one, server.connect() as two:
        one.send(post(b"1" * 9000))
        first = server.next_request()
        two.send(post(b"2" * 9000)[:-1])
        server.pass_time(1_000)
        server.run(lambda: first.reply(200))
        server.pass_time(20)
        two.send(b"2")
        assert server.next_request().body == b"2" * 9000


def test_time_limits_are_checked_without_being_asked_for() -> None:
    """Every connection comes to its turn within four seconds of real time."""
    with serving(echo) as server, server.connect() as client:
        assert client.request(get()).status == 200
        server.settle()
        server.clock.now_s += 1_000
        assert client.is_closed_by_server()
