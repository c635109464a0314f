"""Logging in under attack, whose address counts, and a server that asks for nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jwt
import pytest

from tests.groups.consumers import SECRET, Consumer, token
from tests.patience import PATIENCE_S
from tests.serving import Client, Reply, ServerProcess, serving
from topics.api.groups.login_limits import ATTEMPTS_PER_ADDRESS_MAX, ATTEMPTS_PER_USER_MAX, LoginLimits, TrustedProxies
from topics.api.groups.users import UnknownUsers, hash_password, parse_users
from topics.http.request import Request
from topics.model.errors import Throttled


def login(client: Client, user: Any, password: Any, **headers: str) -> Reply:
    return client.post("/v1/api/auth/login", {"user": user, "password": password}, headers=headers)


def all_at_once(server: ServerProcess, user: str, password: str, count: int) -> Counter[int]:
    """The statuses of logins that are all sent before the first is answered."""
    statuses: list[int] = []
    together = threading.Barrier(count)

    def one() -> None:
        client = server.stranger()
        client.get("/v0/health")
        together.wait(timeout=PATIENCE_S)
        statuses.append(login(client, user, password).status)

    crowd = [threading.Thread(target=one) for _ in range(count)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return Counter(statuses)


@pytest.fixture(scope="module")
def users() -> str:
    """With a hash that takes its time, so that a crowd comes before the first is done."""
    hashed = hash_password("opensesame")
    return f"ada:service:{hashed},root:system:{hashed}"


@pytest.fixture
def server(tmp_path: Path, users: str) -> Iterator[ServerProcess]:
    with serving(tmp_path / "data", jwt_secret=SECRET, users=users) as server:
        yield server


# --- guessing ---


def test_of_66_guesses_at_once_ten_are_compared_and_nobody_else_is_locked_out(server: ServerProcess) -> None:
    assert all_at_once(server, "ada", "guess", 66) == {401: 10, 429: 56}
    client = server.stranger()
    refused = login(client, "ada", "opensesame")
    assert (refused.status, refused.json["code"]) == (429, "THROTTLED")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert login(client, "root", "opensesame").status == 200


def test_a_fleet_that_logs_in_at_once_gets_in(server: ServerProcess) -> None:
    assert all_at_once(server, "ada", "opensesame", 40) == {200: 40}


def test_a_login_that_succeeds_is_not_held_against_anyone(server: ServerProcess) -> None:
    client = server.stranger()
    for _ in range(ATTEMPTS_PER_USER_MAX - 1):
        assert login(client, "ada", "guess").status == 401
    for _ in range(3):
        assert login(client, "ada", "opensesame").status == 200
    assert login(client, "ada", "guess").status == 401
    assert login(client, "ada", "opensesame").status == 429


def test_many_names_from_one_address_are_slowed_down_whatever_it_says_about_itself(server: ServerProcess) -> None:
    client = server.stranger()
    for number in range(ATTEMPTS_PER_ADDRESS_MAX):
        reply = login(client, f"name{number}", "guess", **{"X-Forwarded-For": f"192.0.2.{number}"})
        assert reply.status == 401
    assert login(client, "ada", "opensesame", **{"X-Forwarded-For": "198.51.100.1"}).status == 429


def test_behind_a_trusted_proxy_every_client_has_a_limit_of_its_own(tmp_path: Path, users: str) -> None:
    settings = {"jwt_secret": SECRET, "users": users, "trusted_proxies": "127.0.0.0/8,::1"}
    with serving(tmp_path / "data", **settings) as server:
        client = server.stranger()
        for number in range(ATTEMPTS_PER_ADDRESS_MAX):
            assert login(client, f"name{number}", "guess", **{"X-Forwarded-For": "192.0.2.1"}).status == 401
        assert login(client, "ada", "opensesame", **{"X-Forwarded-For": "192.0.2.1"}).status == 429
        assert login(client, "ada", "opensesame", **{"X-Forwarded-For": "192.0.2.1, 192.0.2.2"}).status == 200
        assert login(client, "root", "opensesame").status == 200


def test_a_name_or_a_password_of_any_length_is_refused_before_it_costs_anything(server: ServerProcess) -> None:
    client = server.stranger()
    for _ in range(ATTEMPTS_PER_ADDRESS_MAX + 1):
        assert login(client, "a" * 300, "guess").status == 401
        assert login(client, "ada", "g" * 1_100).status == 401
    assert login(client, "ada", "opensesame").status == 200


def test_a_name_that_nobody_has_costs_as_much_as_one_of_a_user_and_each_time_as_much() -> None:
    users = parse_users([f"u{log_n}:user:scrypt${log_n}$4$2$" + "A" * 22 + "$" + "A" * 43 for log_n in (10, 17)])
    unknown = UnknownUsers(users.values())
    costs = Counter[tuple[int, ...]]()
    for number in range(200):
        password = unknown.password_of(f"name{number}")
        assert password == unknown.password_of(f"name{number}")
        costs[password[:3]] += 1
    assert costs.keys() == {(10, 4, 2), (17, 4, 2)}
    assert min(costs.values()) > 50, "no cost tells that a name is unknown"


def test_a_server_without_users_checks_the_passwords_of_unknown_ones_as_well() -> None:
    assert not UnknownUsers([]).password_of("ada").fits("guess")


class Minute:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_attempts_are_counted_for_a_minute() -> None:
    clock = Minute()
    attempts = LoginLimits(clock)
    for _ in range(ATTEMPTS_PER_USER_MAX):
        attempts.begin("ada", "192.0.2.1")
        clock.now_s += 1
    for address in ("192.0.2.1", "192.0.2.2"):
        with pytest.raises(Throttled, match="of this user"):
            attempts.begin("ada", address)
    clock.now_s += 50
    attempts.begin("ada", "192.0.2.1")
    with pytest.raises(Throttled):
        attempts.begin("ada", "192.0.2.1")


def test_what_is_refused_for_a_user_does_not_count_against_the_address() -> None:
    attempts = LoginLimits(Minute())
    for _ in range(ATTEMPTS_PER_USER_MAX):
        attempts.begin("ada", "192.0.2.1")
    for _ in range(100):
        with pytest.raises(Throttled):
            attempts.begin("ada", "192.0.2.1")
    for number in range(ATTEMPTS_PER_ADDRESS_MAX - ATTEMPTS_PER_USER_MAX):
        attempts.begin(f"name{number}", "192.0.2.1")
    with pytest.raises(Throttled, match="from this address"):
        attempts.begin("root", "192.0.2.1")
    attempts.begin("root", "192.0.2.2")


class Sent:
    """What Proxies looks at in a request."""

    def __init__(self, peer: str, *forwarded: str) -> None:
        self.peer = f"{peer}:4711"
        self._forwarded = [value.encode() for value in forwarded]

    def header_values(self, name: bytes) -> list[bytes]:
        assert name == b"x-forwarded-for"
        return self._forwarded


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["192.0.2.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["198.51.100.7, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["198.51.100.7, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", ["198.51.100.7", "192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["192.0.2.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.1:8080"], "192.0.2.1"),
        ("::ffff:10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["[2001:db8:1:2:3::4]:80"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", ["192.0.2.1"], "2001:db8:1:2::/64"),
        ("fd00::7", ["192.0.2.1"], "192.0.2.1"),
        ("fe80::1%eth0", [], "fe80::/64"),
    ],
)
def test_an_address_is_believed_as_far_as_trusted_proxies_wrote_it(
    peer: str, forwarded: list[str], address: str
) -> None:
    proxies = TrustedProxies(("10.0.0.0/8", "fd00::7"))
    assert proxies.address_of(cast("Request", Sent(peer, *forwarded))) == address


def test_a_proxy_that_is_no_address_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", trusted_proxies="10.0.0.0/8,proxy.example")
    assert server.exit_code() == 2
    assert "TOPICS_TRUSTED_PROXIES: 'proxy.example' is neither an address nor a network" in server.log
    assert not (tmp_path / "data").exists()


# --- a server on loopback with neither keys nor a secret nor users ---


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        server.stranger().append("t", 1, 2)
        yield server


@pytest.mark.parametrize("bearer", [None, "nonsense", token("user"), token(exp=1), token(secret="x" * 40)])
def test_no_token_is_needed_and_none_is_looked_at(open_server: ServerProcess, bearer: str | None) -> None:
    consumer = Consumer(open_server.client(bearer), "t", group=f"of {bearer}")
    assert consumer.offsets() == [0, 1]
    assert consumer.ack(1) == {"success": True, "acknowledged_offset": 1}
    request = {"topic_id": "t", "group_id": consumer.group, "start": "Earliest"}
    assert consumer.client.post("/v1/api/topics/groups/reset", request).status == 200, "the role is dba"


@pytest.mark.parametrize("body", [{"user": "ada", "password": "x"}, {"username": "ada"}])
def test_any_name_may_log_in(open_server: ServerProcess, body: dict[str, str]) -> None:
    reply = open_server.stranger().post("/v1/api/auth/login", body)
    assert reply.status == 200
    assert (reply.json["user"]["id"], reply.json["user"]["role"]) == ("ada", "dba")
    claims = jwt.decode(reply.json["access_token"], options={"verify_signature": False})
    assert (claims["sub"], claims["role"], claims["token_type"]) == ("ada", "dba", "access")
    assert Consumer(open_server.client(reply.json["access_token"]), "t", group=None).offsets() == [0, 1]
    renewed = open_server.stranger().post("/v1/api/auth/refresh", {"refresh_token": reply.json["refresh_token"]})
    assert (renewed.status, renewed.json["user"]["id"]) == (200, "ada")
    from_before_a_restart = open_server.stranger().post("/v1/api/auth/refresh", {"refresh_token": token()})
    assert from_before_a_restart.status == 200


def test_a_login_without_a_name_is_refused_here_too(open_server: ServerProcess) -> None:
    assert open_server.stranger().post("/v1/api/auth/login", {"password": "x"}).status == 401


def test_web_pages_are_kept_out_all_the_same(open_server: ServerProcess) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        for path, body in (("topics/consume", {"topic_id": "t"}), ("auth/login", {"user": "a", "password": "b"})):
            reply = open_server.stranger().post(f"/v1/api/{path}", body, headers=headers)
            assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN"), (path, headers)


def test_the_start_says_so_in_our_own_words(open_server: ServerProcess) -> None:
    open_server.wait_for_log(r"/v1/api needs no token, every request has the role dba, and any name may log in")
    assert "kalamdb" not in open_server.log.lower()


def test_an_address_that_others_reach_is_not_open(tmp_path: Path) -> None:
    with serving(tmp_path / "data", host="0.0.0.0", allow_insecure_no_auth=1) as server:
        assert server.stranger().append("t", 1).status == 201
        assert server.stranger().post("/v1/api/topics/consume", {"topic_id": "t"}).status == 401
        assert login(server.stranger(), "ada", "x").status == 401
