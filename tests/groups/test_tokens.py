"""Tokens and logging in: who is accepted, who is refused, and with which reply."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.groups.consumers import DAY_S, SECRET, Consumer, token
from tests.serving import Client, Reply, ServerProcess, serving
from topics.api.groups.users import hash_password, parse_users
from topics.model.setting_types import WrongSetting

ROUTES = ("consume", "ack", "latest-offsets")


def signed(**claims: Any) -> str:
    """A token with claims that a library for tokens would not make."""
    usual = {"sub": "worker", "iss": "kalamdb", "exp": int(time.time()) + DAY_S, "role": "dba", **claims}
    parts = [_part(json.dumps(each).encode()) for each in ({"alg": "HS256"}, usual)]
    signature = hmac.digest(SECRET.encode(), ".".join(parts).encode(), "sha256")
    return ".".join([*parts, _part(signature)])


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def consume_with(server: ServerProcess, header: str | None) -> Reply:
    headers = {} if header is None else {"Authorization": header}
    return server.stranger().post("/v1/api/topics/consume", {"topic_id": "t"}, headers=headers)


def refused(reply: Reply, code: str) -> None:
    assert reply.status == 401
    assert set(reply.json) == {"status", "error", "results", "took"}
    assert (reply.json["status"], reply.json["results"]) == ("error", [])
    assert set(reply.json["error"]) == {"code", "message"}
    assert reply.json["error"]["code"] == code
    assert reply.json["took"] >= 0


@pytest.fixture(scope="module", autouse=True)
def one_topic(server: ServerProcess) -> None:
    server.stranger().append("t", {"n": 1})


# --- tokens ---


@pytest.mark.parametrize("header", [None, "Basic YTpi", "token"])
def test_without_a_token_authorization_is_missing(server: ServerProcess, header: str | None) -> None:
    refused(consume_with(server, header), "MISSING_AUTHORIZATION")


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_asks_for_a_token_before_it_looks_at_the_body(server: ServerProcess, path: str) -> None:
    refused(server.stranger().post(f"/v1/api/topics/{path}", {"bad": 1}), "MISSING_AUTHORIZATION")
    refused(server.stranger().get("/v1/api/topics/groups"), "MISSING_AUTHORIZATION")


@pytest.mark.parametrize("role", ["service", "dba", "system"])
def test_three_roles_may_consume(server: ServerProcess, role: str) -> None:
    assert consume_with(server, f"Bearer {token(role)}").status == 200


@pytest.mark.parametrize("role", ["user", "anonymous", "Service", "admin", "", None])
def test_other_roles_are_forbidden(server: ServerProcess, role: str | None) -> None:
    client = server.client(token(role))
    for path in ROUTES:
        reply = client.post(f"/v1/api/topics/{path}", {"topic_id": "t", "group_id": "g", "upto_offset": 0})
        assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN")
        assert set(reply.json) == {"error", "code"}
    assert client.get("/v1/api/topics/groups").status == 403


@pytest.mark.parametrize(("role", "status"), [("service", 403), ("user", 403), ("dba", 200), ("system", 200)])
def test_only_dba_and_system_may_reset(server: ServerProcess, role: str, status: int) -> None:
    request = {"topic_id": "t", "group_id": "g", "start": "Earliest"}
    assert server.client(token(role)).post("/v1/api/topics/groups/reset", request).status == status


def test_a_signed_token_is_enough_for_any_subject(server: ServerProcess) -> None:
    assert consume_with(server, f"Bearer {token(sub='nobody we know')}").status == 200
    assert consume_with(server, f"bearer   {token(iat=None, token_type=None)}").status == 200


@pytest.mark.parametrize(
    "forged",
    [
        token(secret="another secret of sufficient length!!"),
        token(algorithm="HS512"),
        jwt.encode({"sub": "x", "iss": "kalamdb", "exp": time.time() + DAY_S, "role": "system"}, "", "none"),
        token(iss="somebody"),
        token(iss=None),
        signed(iss=["kalamdb"]),
        signed(iss={"a": 1}),
        signed(sub=["worker"]),
        signed(exp="never"),
        token(exp=None),
        token(sub=None),
        token(token_type="refresh"),
        token(token_type="other"),
        token(nbf=int(time.time()) + DAY_S),
        token()[:-3],
        token().rpartition(".")[0] + ".",
        "a.b.c",
        "x",
        "é",
    ],
)
def test_a_forged_or_foreign_token_is_refused(server: ServerProcess, forged: str) -> None:
    for _ in range(2):
        refused(consume_with(server, f"Bearer {forged}"), "INVALID_CREDENTIALS")


def test_an_expired_token_is_told_so_after_a_minute_of_leeway(server: ServerProcess) -> None:
    now = int(time.time())
    assert consume_with(server, f"Bearer {token(exp=now - 1)}").status == 200
    refused(consume_with(server, f"Bearer {token(exp=now - 90)}"), "TOKEN_EXPIRED")


def test_a_users_prefixes_hold_for_tokens_in_its_name(server: ServerProcess, client: Client) -> None:
    for name in ("acme.orders", "acme.orders:p1", "other.orders"):
        client.append(name, {"n": 1})
    theirs = server.client(token(sub="tenant"))
    for request in ({}, {"partition_id": 1}, {"partition_id": "all"}):
        assert Consumer(theirs, "acme.orders").ask(**request).status == 200
    forbidden = [
        Consumer(theirs, "other.orders").ask(),
        Consumer(theirs, "other.orders").ask(partition_id="all"),
        Consumer(theirs, "absent").ask(),
        theirs.post("/v1/api/topics/ack", {"topic_id": "other.orders", "group_id": "g", "upto_offset": 0}),
        theirs.post("/v1/api/topics/latest-offsets", {"partitions": [{"topic_id": "other.orders"}]}),
    ]
    assert [(reply.status, reply.json["code"]) for reply in forbidden] == [(403, "FORBIDDEN")] * 5
    Consumer(server.client(token()), "other.orders").batch()
    listed = theirs.get("/v1/api/topics/groups").json["groups"]
    assert {group["topic_id"] for group in listed} == {"acme.orders"}


def test_a_token_keeps_the_prefixes_it_was_made_with(server: ServerProcess) -> None:
    gone = server.client(token(sub="was here once", prefixes=["acme."]))
    assert Consumer(gone, "t").ask().status == 403
    refused(Consumer(server.client(token(prefixes="acme.")), "t").ask(), "INVALID_CREDENTIALS")


@pytest.mark.parametrize("keys", [{}, {"api_keys": "full"}], ids=["open", "keys"])
def test_what_does_not_exist_here_is_told_in_the_form_of_these_routes(tmp_path: Path, keys: dict[str, str]) -> None:
    with serving(tmp_path, jwt_secret=SECRET, **keys) as server:
        bearer = server.client(token())
        wrong_method = bearer.get("/v1/api/topics/consume")
        assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "POST")
        assert (set(wrong_method.json), wrong_method.json["code"]) == ({"error", "code"}, "METHOD_NOT_ALLOWED")
        for path in ("/v1/api/topics/nothing", "/v1/api/nothing", "/v1/api", "/v1/api/topics/consume/more"):
            unknown = bearer.post(path, {})
            assert (unknown.status, set(unknown.json), unknown.json["code"]) == (404, {"error", "code"}, "NOT_FOUND")
            refused(server.stranger().post(path, {}), "MISSING_AUTHORIZATION")
            refused(server.client("full").post(path, {}), "INVALID_CREDENTIALS")
        login = server.stranger().get("/v1/api/auth/login")
        assert (login.status, login.json["code"]) == (405, "METHOD_NOT_ALLOWED")
        elsewhere = server.client("full").get("/v1/nothing")
        assert (elsewhere.status, elsewhere.code) == (404, "not_found")


def test_a_web_page_from_elsewhere_gets_nowhere_without_keys(server: ServerProcess) -> None:
    foreign = {"Host": "evil.example"}, {"Origin": "http://evil.example"}
    for headers in foreign:
        for path, body in (("topics/consume", {"topic_id": "t"}), ("auth/login", {"user": "a", "password": "b"})):
            reply = server.client(token()).post(f"/v1/api/{path}", body, headers=headers)
            assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN"), (path, headers)


# --- logging in ---


def login(client: Client, user: Any, password: Any, field: str = "user") -> Reply:
    return client.post("/v1/api/auth/login", {field: user, "password": password})


@pytest.mark.parametrize("field", ["user", "username"])
def test_a_user_gets_tokens_that_open_the_routes(server: ServerProcess, client: Client, field: str) -> None:
    reply = login(client, "ada", "opensesame", field)
    assert reply.status == 200
    assert set(reply.json) == {
        "user",
        "admin_ui_access",
        "expires_at",
        "access_token",
        "refresh_token",
        "refresh_expires_at",
    }
    user = reply.json["user"]
    assert set(user) == {"id", "role", "email", "created_at", "updated_at"}
    assert (user["id"], user["role"], reply.json["admin_ui_access"]) == ("ada", "service", False)
    claims = jwt.decode(reply.json["access_token"], SECRET, ["HS256"], issuer="kalamdb")
    assert (claims["sub"], claims["role"], claims["token_type"]) == ("ada", "service", "access")
    assert claims["exp"] - claims["iat"] == 24 * 3600
    assert consume_with(server, f"Bearer {reply.json['access_token']}").status == 200


def test_a_login_as_a_mere_user_gives_a_token_that_opens_nothing(server: ServerProcess, client: Client) -> None:
    reply = login(client, "guest", "opensesame")
    assert reply.json["user"]["role"] == "user"
    assert consume_with(server, f"Bearer {reply.json['access_token']}").status == 403


@pytest.mark.parametrize(
    ("user", "password"),
    [("ada", "wrong"), ("nobody", "opensesame"), ("ada", ""), ("", "opensesame"), (None, None), ("ada", "x" * 5000)],
)
def test_wrong_credentials_are_all_told_alike(client: Client, user: Any, password: Any) -> None:
    reply = login(client, user, password)
    assert (reply.status, reply.json) == (401, {"error": "unauthorized", "message": "Invalid credentials"})


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"user":1}'])
def test_a_login_that_is_no_json_is_a_bad_request(client: Client, body: bytes) -> None:
    reply = client.post("/v1/api/auth/login", body=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


def test_a_refresh_token_renews_and_does_nothing_else(server: ServerProcess, client: Client) -> None:
    issued = login(client, "ada", "opensesame").json
    refused(consume_with(server, f"Bearer {issued['refresh_token']}"), "INVALID_CREDENTIALS")
    in_body = client.post("/v1/api/auth/refresh", {"refresh_token": issued["refresh_token"]})
    as_bearer = client.post("/v1/api/auth/refresh", headers={"Authorization": f"Bearer {issued['refresh_token']}"})
    for reply in (in_body, as_bearer):
        assert reply.status == 200
        assert consume_with(server, f"Bearer {reply.json['access_token']}").status == 200


def test_only_a_refresh_token_of_a_known_user_renews(client: Client) -> None:
    access = login(client, "ada", "opensesame").json["access_token"]
    for wrong in (access, token(token_type="refresh"), "x", "é"):
        reply = client.post("/v1/api/auth/refresh", {"refresh_token": wrong})
        assert (reply.status, reply.json) == (401, {"error": "unauthorized", "message": "Invalid credentials"})
    assert client.post("/v1/api/auth/refresh", {}).status == 401


def test_a_slow_password_check_does_not_stop_the_others(server: ServerProcess) -> None:
    """The comparison runs beside the loop: a burst of logins leaves room for reads."""
    import threading

    outcomes: list[int] = []

    def come_in() -> None:
        outcomes.append(login(server.stranger(), "ada", "opensesame").status)

    crowd = [threading.Thread(target=come_in) for _ in range(8)]
    for one in crowd:
        one.start()
    while any(one.is_alive() for one in crowd):
        assert consume_with(server, f"Bearer {token()}").status == 200
    assert outcomes == [200] * 8


# --- without a secret, and settings ---


@pytest.mark.parametrize("given", ["keys", "users"])
def test_with_keys_or_users_but_no_secret_all_is_401(tmp_path: Path, users: str, given: str) -> None:
    settings = {"keys": {"api_keys": "a-key"}, "users": {"users": users}}[given]
    with serving(tmp_path / "data", **settings) as server:
        for bearer in (f"Bearer {token()}", "Bearer a-key"):
            refused(consume_with(server, bearer), "INVALID_CREDENTIALS")
        refused(consume_with(server, None), "MISSING_AUTHORIZATION")
        assert login(server.stranger(), "ada", "opensesame").status == 401
        assert "consumer groups are off" in server.log
        assert "TOPICS_JWT_SECRET" in server.log


def test_a_short_secret_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", jwt_secret="short")
    assert server.exit_code() == 2
    assert "at least 32 characters" in server.log
    assert "short" not in server.log.replace("shorter", "")


def test_the_original_variables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KALAMDB_JWT_SECRET", SECRET)
    monkeypatch.setenv("KALAMDB_JWT_TRUSTED_ISSUERS", "https://idp.example,other")
    monkeypatch.setenv("KALAMDB_JWT_EXPIRY_HOURS", "2")
    with serving(tmp_path / "data", users=f"ada:service:{hash_password('pw')}") as server:
        server.stranger().append("t", {"n": 1})
        assert consume_with(server, f"Bearer {token(iss='https://idp.example')}").status == 200
        assert consume_with(server, f"Bearer {token(iss='kalamdb')}").status == 200
        refused(consume_with(server, f"Bearer {token(iss='someone')}"), "INVALID_CREDENTIALS")
        issued = login(server.stranger(), "ada", "pw").json["access_token"]
        claims = jwt.decode(issued, SECRET, ["HS256"])
        assert claims["exp"] - claims["iat"] == 2 * 3600


def test_api_keys_and_tokens_do_not_stand_for_each_other(tmp_path: Path) -> None:
    with serving(tmp_path / "data", jwt_secret=SECRET, api_keys="a-key") as server:
        assert server.client("a-key").append("t", {"n": 1}).status == 201
        assert server.client(token()).append("t", {"n": 1}).status == 401
        assert consume_with(server, f"Bearer {token()}").status == 200
        refused(consume_with(server, "Bearer a-key"), "INVALID_CREDENTIALS")


@pytest.mark.parametrize(
    "entry",
    [
        "ada",
        "ada:service",
        "ada:service:plaintext",
        "ada:king:{hash}",
        ":service:{hash}",
        "ada:service:{hash}:a||b",
        "ada:service:scrypt$30$8$1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ada:service:md5$14$8$1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_a_user_without_a_proper_hash_is_refused_without_repeating_it(entry: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        parse_users([entry.format(hash=hash_password("pw"))])
    assert "entry 1" in caught.value.message
    assert "plaintext" not in caught.value.message


def test_a_hash_is_salted_and_fits_its_password_only() -> None:
    first, second = hash_password("pw"), hash_password("pw")
    assert first != second
    user = parse_users([f"ada:dba:{first}:a.|b."])["ada"]
    assert (user.role, user.prefixes) == ("dba", ("a.", "b."))
    assert user.password.fits("pw")
    assert not user.password.fits("PW")
