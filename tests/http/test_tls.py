"""TLS below HTTP: bytes of all sizes both ways, half-closed clients, slow and hostile handshakes, limits."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.http.pipe import Pipe
from tests.http.wire import Client, Server, echo, get, park, post, serving
from tests.http.wire2 import Client2
from topics.http.limits import HttpLimits
from topics.http.request import Request
from topics.http.tls.certificate import Tls
from topics.http.tls.connection import TlsConnection

REPLY_BYTES = 5_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(authority: Authority) -> Tls:
    return Tls(authority.pair())


def secured(client: Client, authority: Authority, *protocols: str) -> Client:
    """The same client, from here on over TLS."""
    client.socket = authority.trusting(*protocols).wrap_socket(client.socket, server_hostname="localhost")
    return client


@pytest.fixture
def server(tls: Tls) -> Iterator[Server]:
    with serving(echo, tls=tls) as server:
        yield server


def test_requests_on_one_connection_are_answered_over_tls(server: Server, authority: Authority) -> None:
    with secured(server.connect(), authority) as client:
        for number in range(5):
            assert client.request(post(b"%d" % number)).body == b"POST|x|%d" % number


def test_a_client_without_tls_gets_a_hint_is_closed_and_counted(server: Server, tls: Tls) -> None:
    with server.connect() as client:
        client.send(get())
        reply = client.read_to_end()
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in reply
    server.until(lambda: tls.failures_total == 1)
    assert server.connections_open == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served(server: Server, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.trusting()
    context.minimum_version = context.maximum_version = version
    with server.connect() as client:
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        assert client.request(get()).body == b"GET|x|"


def test_tls_1_1_is_refused(server: Server, authority: Authority, tls: Tls) -> None:
    context = authority.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with server.connect() as client, pytest.raises(ssl.SSLError):
        context.wrap_socket(client.socket, server_hostname="localhost")
    server.until(lambda: tls.failures_total == 1)


def test_http_2_is_negotiated_by_alpn(server: Server, authority: Authority) -> None:
    with secured(server.connect(), authority, "h2", "http/1.1") as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        assert wire.socket.selected_alpn_protocol() == "h2"
        client = Client2(wire)
        streams = [client.start(path=f"/{number}") for number in range(20)]
        assert [client.finish(stream).body for stream in streams] == [b"GET|%d|" % number for number in range(20)]


def test_a_client_that_offers_only_http_1_gets_it(server: Server, authority: Authority) -> None:
    with secured(server.connect(), authority, "http/1.1") as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.selected_alpn_protocol() == "http/1.1"
        assert client.request(get()).status == 200


def test_large_bodies_pass_both_ways_unchanged(tls: Tls, authority: Authority) -> None:
    def double(request: Request) -> None:
        request.reply(200, [request.body, request.body], content_type=b"application/octet-stream")

    body = bytes(range(256)) * 20_000
    with serving(double, tls=tls) as server, secured(server.connect(), authority) as client:
        assert client.request(post(body)).body == body + body


def test_a_client_that_does_not_read_pauses_the_handler_and_gets_everything_later(
    tls: Tls, authority: Authority
) -> None:
    paused: list[bool] = []

    def flood(request: Request) -> None:
        stream = request.stream()
        stream.on_pause = lambda: paused.append(True)
        stream.on_resume = stream.close
        for _ in range(100):
            stream.write(b"~" * (REPLY_BYTES // 100))

    with serving(flood, tls=tls) as server, secured(server.connect(), authority) as client:
        client.send(get())
        server.until(lambda: bool(paused))
        assert client.read_until(b"\r\n0\r\n\r\n").count(b"~") == REPLY_BYTES


def test_records_of_one_byte_each_are_a_request(server: Server, authority: Authority) -> None:
    with secured(server.connect(), authority) as client:
        for byte in post(b"y" * 500):
            client.send(bytes([byte]))
        assert client.read_reply().body == b"POST|x|" + b"y" * 500


def test_a_client_that_closed_its_sending_side_gets_its_reply(tls: Tls, authority: Authority) -> None:
    with serving(park, tls=tls) as server, secured(server.connect(), authority) as client:
        client.send(get())
        request = server.next_request()
        client.socket.shutdown(socket.SHUT_WR)
        server.settle()
        server.run(lambda: request.reply(200, b"late"))
        # shutdown() of Python's SSL sockets forgets TLS: what came is decrypted by nobody, but it came.
        assert len(client.read_to_end()) > len(b"late")


def test_a_client_that_says_goodbye_is_closed(server: Server, authority: Authority) -> None:
    client = secured(server.connect(), authority)
    assert client.request(get()).status == 200
    assert isinstance(client.socket, ssl.SSLSocket)
    plain = client.socket.unwrap()
    assert plain.recv(1) == b""
    server.until(lambda: server.listener.connections_open == 0)
    plain.close()


def test_the_last_reply_ends_with_a_goodbye_of_tls(server: Server, authority: Authority) -> None:
    with server.connect() as client:
        client.socket = authority.trusting().wrap_socket(
            client.socket, server_hostname="localhost", suppress_ragged_eofs=False
        )
        client.send(get(b"/x", b"Connection: close"))
        client.read_reply()
        assert client.socket.recv(1) == b""  # a cut connection would be an SSLEOFError


def test_a_refused_request_gets_its_reply_before_the_end(tls: Tls, authority: Authority) -> None:
    limits = HttpLimits(body_bytes_max=1000, large_body_bytes=1000)
    with serving(echo, limits, tls=tls) as server, secured(server.connect(), authority) as client:
        client.send(post(b"z" * 100_000))
        assert client.read_reply().status == 413
        server.pass_time(10)
        assert client.is_closed_by_server()


def test_a_handshake_that_takes_too_long_is_ended(server: Server) -> None:
    with server.connect() as client:
        server.until(lambda: server.listener.connections_open == 1)
        server.pass_time(11)
        assert client.is_closed_by_server()
    server.until(lambda: server.listener.connections_open == 0)


def test_connections_in_their_handshake_count(tls: Tls) -> None:
    limits = HttpLimits(connections_max=2, refused_max=1)
    with serving(echo, limits, tls=tls) as server:
        clients = [server.connect() for _ in range(4)]
        assert clients[3].is_closed_by_server()
        assert server.connections_open == 3
        assert server.run(lambda: server.listener.connections_refused_total) == 1
        for client in clients:
            client.close()


def test_garbage_after_the_handshake_ends_the_connection_and_no_other(server: Server, authority: Authority) -> None:
    with secured(server.connect(), authority) as other:
        broken = server.connect()
        raw = broken.socket.dup()
        secured(broken, authority)
        raw.sendall(b"\x17\x03\x03\x00\x20" + b"\0" * 32)
        assert b"HTTP" not in raw.recv(100)
        server.until(lambda: server.listener.connections_open == 1)
        assert other.request(get()).status == 200
        raw.close()
        broken.close()


def test_a_step_of_a_handshake_waits_for_its_turn(server: Server, authority: Authority, tls: Tls) -> None:
    """Many at once are spread over turns of the loop: reading a client's first flight computes nothing."""
    below = Pipe()

    def arrive() -> TlsConnection:
        connection = TlsConnection(server.listener._service, tls, asyncio.Protocol)
        connection.connection_made(below)
        connection.data_received(hello(authority))
        assert not below.written
        # What follows the handshake, such as a large body, stays in the socket and does not count as a part of it.
        assert below.paused
        return connection

    connection = server.run(arrive)
    server.until(lambda: bool(below.written) and not below.paused)
    server.run(lambda: connection.connection_lost(None))
    assert server.connections_open == 0


def hello(authority: Authority) -> bytes:
    """The first flight of a client."""
    outgoing = ssl.MemoryBIO()
    client = authority.trusting().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_new_pair_is_for_new_connections_and_the_old_ones_stay(tmp_path: Path) -> None:
    first, second = Authority(tmp_path), Authority(make(tmp_path / "second"))
    files = first.pair()
    tls = Tls(files)
    with serving(echo, tls=tls) as server, secured(server.connect(), first) as old:
        replacement = second.pair()
        Path(files.certificate).write_bytes(Path(replacement.certificate).read_bytes())
        Path(files.key).write_bytes(Path(replacement.key).read_bytes())
        server.run(tls.reload)
        with secured(server.connect(), second) as new:
            assert new.request(get()).status == 200
        assert old.request(get()).status == 200
        with server.connect() as refused, pytest.raises(ssl.SSLCertVerificationError):
            secured(refused, first)


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory
