"""Where webhooks may go: the address that is connected to decides, not the name and not what it meant before."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence

import pytest

from tests.patience import PATIENCE_S
from tests.webhooks.receiver import Receiver, Reply, receiving
from topics.http.outgoing import post_client
from topics.http.outgoing.post_client import Answer, NotSent, Place, PostClient
from topics.model.setting_types import WrongSetting
from topics.model.webhooks.addresses import AddressPolicy

REFUSED = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.5.4", "172.31.255.255", "192.168.1.1", "100.64.0.1",
    "169.254.169.254", "169.254.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "168.63.129.16", "::ffff:168.63.129.16",
    "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::", "not an address", "",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "172.32.0.1",
    "168.63.129.17",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not AddressPolicy().allows("hooks.example.org", address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert AddressPolicy().allows("hooks.example.org", address)


def test_a_setting_allows_networks_addresses_and_hosts() -> None:
    policy = AddressPolicy(
        ["10.1.0.0/16", " 192.168.0.7", "[fd00::]/8".replace("[", "").replace("]", ""), "Hooks.Internal"]
    )
    assert policy.allows("a.org", "10.1.2.3")
    assert policy.allows("a.org", "::ffff:10.1.2.3")
    assert policy.allows("a.org", "192.168.0.7")
    assert policy.allows("a.org", "fd12::1")
    assert policy.allows("HOOKS.internal.", "127.0.0.1")
    assert not policy.allows("a.org", "10.2.0.1")
    assert not policy.allows("not.hooks.internal", "127.0.0.1")


@pytest.mark.parametrize("text", ["10.0.0.0/99", "a b", "http://a.org", "*.internal", ""])
def test_a_setting_that_allows_nothing_is_an_error(text: str) -> None:
    with pytest.raises(WrongSetting, match="webhooks_allow"):
        AddressPolicy([text])


def post(receiver: Receiver, client: PostClient, host: str = "rebound.example.org", timeout_s: float = 60.0) -> Answer:
    request = f"POST /in HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2\r\n\r\n{{}}".encode()

    async def run() -> Answer:
        try:
            return await client.post(Place(False, host, receiver.port), request, timeout_s)
        finally:
            client.close()

    return asyncio.run(run())


def test_a_name_that_changes_its_address_does_not_pass(receiver: Receiver) -> None:
    """First the name is public, later it is this machine: each connection is judged by the address it goes to."""
    resolved: list[Sequence[str]] = [["127.0.0.1"], ["10.0.0.1", "127.0.0.1", "169.254.169.254"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return resolved.pop(0)

    allowed = PostClient(AddressPolicy(["127.0.0.1"]).allows, resolve)
    assert post(receiver, allowed).status == 200
    refusing = PostClient(AddressPolicy().allows, resolve)
    with pytest.raises(NotSent, match=r"address refused: rebound.example.org is 10.0.0.1, 127.0.0.1"):
        post(receiver, refusing)
    assert receiver.connections == 1
    assert not resolved, "a name is resolved once for a connection"


def test_only_the_addresses_that_pass_are_connected_to(receiver: Receiver) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.1", "127.0.0.1"]

    assert post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows, resolve)).status == 200


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1", "127.1", "[::1]".strip("[]")])
def test_other_spellings_of_this_machine_are_refused(receiver: Receiver, host: str) -> None:
    with pytest.raises(NotSent, match=r"address refused|was not found"):
        post(receiver, PostClient(AddressPolicy().allows), host)
    assert receiver.connections == 0


def test_a_redirect_is_an_answer_and_not_a_way(receiver: Receiver) -> None:
    with receiving() as elsewhere:
        receiver.answering = lambda _: Reply(302, (("location", elsewhere.url),))
        answer = post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows), "127.0.0.1")
        assert (answer.status, elsewhere.connections) == (302, 0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "closed before the answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "closed in the middle"),
        (b"SMTP ready\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 40_000, "headers of the answer are longer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * 10_000, "headers of the answer are longer"),
    ],
)
def test_what_is_not_a_whole_answer_is_a_failure(receiver: Receiver, raw: bytes, said: str) -> None:
    receiver.answering = lambda _: Reply(raw=raw)
    with pytest.raises(NotSent, match=said):
        post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows), "127.0.0.1")


@pytest.mark.parametrize(
    ("raw", "status", "start"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200, b""),
        (b"HTTP/1.0 202 Accepted\r\nserver: a\r\n\r\ntaken", 202, b"taken"),
        (b"HTTP/1.1 103 Early Hints\r\ncontent-length: 0\r\n\r\nHTTP/1.1 500 No\r\n\r\nwhy", 500, b"why"),
    ],
)
def test_an_answer_without_a_length_ends_with_its_connection(
    receiver: Receiver, raw: bytes, status: int, start: bytes
) -> None:
    receiver.answering = lambda _: Reply(raw=raw)
    answer = post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows), "127.0.0.1")
    assert (answer.status, answer.start) == (status, start)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", b"HT", b"nonsense"])
@pytest.mark.parametrize("idle", [False, True])
def test_what_follows_an_answer_is_not_the_next_answer(surplus: bytes, idle: bool) -> None:
    """Whether it comes with the answer, or while the connection waits for the next request."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"{}")
        writer.write(ANSWER if idle else ANSWER + surplus)
        if idle:
            await asked.wait()
            writer.write(surplus)
        # until the client closes
        assert await reader.read() == b""
        closed.set()
        writer.close()

    async def run() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        place = Place(False, "127.0.0.1", server.sockets[0].getsockname()[1])
        client = PostClient(AddressPolicy(["127.0.0.1"]).allows)
        answers: list[Answer] = []
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                asked.clear()
                closed.clear()
                answers.append(await client.post(place, b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", PATIENCE_S))
                asked.set()
                await closed.wait()
        client.close()
        server.close()
        return answers

    asked, closed = asyncio.Event(), asyncio.Event()
    assert asyncio.run(run()) == [Answer(200, "", b"ok")] * 2
    assert connections == 2


@contextlib.contextmanager
def hanging(address: str, port: int) -> Iterator[None]:
    """A socket whose queue is full: what connects to it waits."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((address, port))
        yield


def test_an_address_that_does_not_answer_does_not_keep_from_the_next_one(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_client, "CONNECT_S_MAX", 0.05, raising=False)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    addresses = ["127.0.0.2", "127.0.0.1"]
    client = PostClient(AddressPolicy(["127.0.0.0/8"]).allows, resolve)
    with hanging("127.0.0.2", receiver.port):
        assert post(receiver, client, timeout_s=PATIENCE_S).status == 200
        addresses = ["127.0.0.2", "127.0.0.9"]
        with pytest.raises(NotSent, match="could not be reached"):
            post(receiver, client)
        addresses = ["127.0.0.2"]
        with pytest.raises(NotSent, match=r"no answer within 0.1 s"):
            post(receiver, client, timeout_s=0.1)


def test_certificates_that_could_not_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def create() -> ssl.SSLContext:
        made.append(1)
        if len(made) == 1:
            raise OSError("too many open files")
        return context

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(ssl, "create_default_context", create)

    async def run() -> None:
        client = PostClient(AddressPolicy().allows)
        with pytest.raises(OSError, match="too many"):
            await client._context()
        assert await client._context() is await client._context() is context

    asyncio.run(run())
    assert len(made) == 2


def test_a_host_is_looked_up_once_at_a_time(receiver: Receiver) -> None:
    """A lookup cannot be ended, and few run at the same time: those of a dead host must not take all places."""
    lookups = 0

    async def resolve(host: str, port: int) -> Sequence[str]:
        nonlocal lookups
        lookups += 1
        await found.wait()
        return ["127.0.0.1"]

    async def run() -> list[int]:
        client = PostClient(AddressPolicy(["127.0.0.1"]).allows, resolve)
        place, request = Place(False, "a.org", receiver.port), b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
        for _ in range(3):
            with pytest.raises(NotSent, match="no answer within"):
                await client.post(place, request, 0.01)
        posts = [asyncio.ensure_future(client.post(place, request, PATIENCE_S)) for _ in range(2)]
        await asyncio.sleep(0)
        found.set()
        answers = await asyncio.gather(*posts)
        client.close()
        return [answer.status for answer in answers]

    found = asyncio.Event()
    assert asyncio.run(run()) == [200, 200]
    assert lookups == 1


def test_a_huge_answer_is_read_up_to_a_limit(receiver: Receiver) -> None:
    receiver.answering = lambda _: Reply(201, body=b"a" * 50_000_000)
    answer = post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows), "127.0.0.1")
    assert (answer.status, answer.start) == (201, b"a" * 256)


def test_an_interim_answer_is_not_the_answer(receiver: Receiver) -> None:
    interim = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
    receiver.answering = lambda _: Reply(raw=interim + b"HTTP/1.1 204 No Content\r\n\r\n")
    assert post(receiver, PostClient(AddressPolicy(["127.0.0.1"]).allows), "127.0.0.1").status == 204


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_replaced(receiver: Receiver) -> None:
    request = b"POST /in HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"

    async def run() -> list[int]:
        client = PostClient(AddressPolicy(["127.0.0.1"]).allows)
        place = Place(False, "127.0.0.1", receiver.port)
        seen: list[int] = []
        for _ in range(3):
            await client.post(place, request, 60.0)
            seen.append(receiver.connections)
        receiver.answering = lambda _: Reply(raw=b"") if receiver.connections == 1 else Reply()
        seen.append((await client.post(place, request, 60.0)).status)
        client.close()
        return seen

    assert asyncio.run(run()) == [1, 1, 1, 200]
    assert receiver.connections == 2
