"""Who may do what: scopes, prefixes, the order of 401, 404 and 403, and a server without keys."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ServerProcess, serving

ENTRIES = (
    "full",
    "reader:read",
    "writer:w",
    "deleter:delete",
    "boss:a",
    "both:rw",
    "everything:read+write+delete+admin",
    "tenant::tenant42:|shared.",
    "tenantreader:r:tenant42:",
    "ops::",
)
SECRETS = [entry.partition(":")[0] for entry in ENTRIES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=",".join(ENTRIES)) as server:
        server.key = "full"
        full = server.client()
        for name in ("plain", "tenant42:a", "shared.b", "tenant43:c"):
            full.append(name, 1)
        yield server


# --- 401 ---


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "full",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer ful",
        "Bearer fulll",
        "Basic full",
        "Bearer full x",
    ],
)
def test_a_missing_or_unknown_key_is_401(server: ServerProcess, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    stranger = server.stranger()
    reply = stranger.get("/v0/topics", headers=headers)
    assert (reply.status, reply.code) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_the_scheme_is_matched_in_any_case(server: ServerProcess) -> None:
    assert server.stranger().get("/v0/topics", headers={"Authorization": "bEaReR full"}).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v0/nothing"),
        ("PATCH", "/v0/topics"),
        ("GET", "/v0/topics/no%20name"),
        ("PUT", "/v0/topics/a"),
        ("GET", "/v0/metrics"),
        ("GET", "/v0/openapi.json"),
    ],
)
def test_401_comes_before_anything_the_path_says(server: ServerProcess, method: str, path: str) -> None:
    assert server.stranger().request(method, path).status == 401


def test_401_comes_before_413_and_the_body_is_not_read(server: ServerProcess) -> None:
    headers = {"Content-Length": str(10**12), "Content-Type": "application/json"}
    assert server.stranger().request("POST", "/v0/topics/a", headers=headers).status == 401


def test_a_token_in_the_query_is_not_a_key_here(server: ServerProcess) -> None:
    assert server.stranger().get("/v0/topics?token=full").status == 401


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/v0/ready", "/readyz"])
def test_probes_need_no_key(server: ServerProcess, path: str) -> None:
    assert server.stranger().get(path).status == 200


def test_probe_auth_asks_for_a_key_on_probes_too(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="full,reader:read", probe_auth="true") as server:
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert server.stranger().get(path).status == 401
            assert server.client("reader").get(path).status == 200


# --- 403 by scope ---

ROUTES: list[tuple[str, str, Any, str]] = [
    ("GET", "/v0/topics", None, "read"),
    ("GET", "/v0/topics/plain", None, "read"),
    ("POST", "/v0/topics/plain/diff", {}, "read"),
    ("GET", "/v0/metrics", None, "read"),
    ("POST", "/v0/topics/plain", {"records": [{"data": 1}]}, "write"),
    ("POST", "/v0/topics/plain/delete", {"before_seq": 1}, "delete"),
    ("DELETE", "/v0/topics/absent", None, "delete"),
    ("PUT", "/v0/topics/plain", {}, "admin"),
]
HOLDERS = {
    "read": {"full", "reader", "both", "everything", "ops"},
    "write": {"full", "writer", "both", "everything", "ops"},
    "delete": {"full", "deleter", "everything", "ops"},
    "admin": {"full", "boss", "everything", "ops"},
}


@pytest.mark.parametrize(("method", "path", "body", "scope"), ROUTES, ids=str)
def test_each_route_asks_for_its_scope(server: ServerProcess, method: str, path: str, body: Any, scope: str) -> None:
    for secret in SECRETS:
        if secret.startswith("tenant"):
            continue
        reply = server.client(secret).request(method, path, body)
        if secret in HOLDERS[scope]:
            assert reply.status == 200, (secret, reply)
        else:
            assert (reply.status, reply.code) == (403, "forbidden"), secret
            assert reply.detail["scope"] == scope


def test_404_and_405_come_before_403(server: ServerProcess) -> None:
    assert server.client("writer").get("/v0/nothing").status == 404
    assert server.client("writer").request("PATCH", "/v0/topics").status == 405


def test_403_comes_before_413_415_and_400(server: ServerProcess) -> None:
    reader = server.client("reader")
    assert reader.post("/v0/topics/plain", body=b"{").status == 403
    assert reader.request("POST", "/v0/topics/plain", headers={"Content-Length": str(10**12)}).status == 403


def test_413_comes_before_415(server: ServerProcess) -> None:
    assert server.client().request("POST", "/v0/topics/a", headers={"Content-Length": str(10**12)}).status == 413


def test_415_comes_before_400_and_400_before_404(server: ServerProcess) -> None:
    full = server.client()
    assert full.post("/v0/topics/absent/diff", body=b"{").status == 415
    assert full.post("/v0/topics/absent/diff", {"from_seq": -1}).status == 400
    assert full.post("/v0/topics/absent/diff", {}).status == 404


# --- 403 by name ---

NAMED: list[tuple[str, str, Any]] = [
    ("PUT", "/v0/topics/{}", {}),
    ("GET", "/v0/topics/{}", None),
    ("POST", "/v0/topics/{}", {"records": [{"data": 1}]}),
    ("POST", "/v0/topics/{}/diff", {}),
    ("POST", "/v0/topics/{}/delete", {"before_seq": 1}),
    ("DELETE", "/v0/topics/{}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=str)
def test_a_prefix_key_is_403_on_other_names(server: ServerProcess, method: str, path: str, body: Any) -> None:
    tenant = server.client("tenant")
    for name in ("tenant43:c", "plain", "tenant42", "Tenant42:a", "tenant4%32", "..", "share", "%74enant43:c"):
        reply = tenant.request(method, path.format(name), body)
        assert (reply.status, reply.code) == (403, "forbidden"), name


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=str)
def test_a_prefix_key_works_on_its_own_names(server: ServerProcess, method: str, path: str, body: Any) -> None:
    server.client().append("tenant42:own", 1)
    assert server.client("tenant").request(method, path.format("tenant42:own"), body).status == 200
    server.client().append("tenant42:own", 1)
    assert server.client("tenant").request(method, path.format("%74enant42%3Aown"), body).status == 200


def test_an_encoded_slash_does_not_smuggle_another_name(server: ServerProcess) -> None:
    tenant = server.client("tenant")
    assert tenant.get("/v0/topics/tenant42:a%2F..%2Fplain").status == 400
    assert tenant.get("/v0/topics/tenant42:a/../plain").status == 404
    assert tenant.get("/v0/topics/..%2Fplain").status == 403


def test_the_list_shows_only_what_the_key_may_touch(server: ServerProcess) -> None:
    names = {item["topic"] for item in server.client("tenant").get("/v0/topics").json["topics"]}
    assert {"tenant42:a", "shared.b"} <= names
    assert all(name.startswith(("tenant42:", "shared.")) for name in names)
    assert server.client("tenant").get("/v0/topics?prefix=plain").json["topics"] == []


def test_pages_of_a_filtered_list_never_leak_a_name(server: ServerProcess) -> None:
    tenant = server.client("tenant")
    seen: list[str] = []
    path = "/v0/topics?page_size=1"
    while True:
        page = tenant.get(path).json
        seen += [item["topic"] for item in page["topics"]]
        if "next_cursor" not in page:
            break
        path = f"/v0/topics?page_size=1&cursor={page['next_cursor']}"
    assert all(name.startswith(("tenant42:", "shared.")) for name in seen)
    assert seen == sorted(seen)


def test_metrics_show_only_what_the_key_may_touch(server: ServerProcess) -> None:
    text = server.client("tenant").get("/v0/metrics").body.decode()
    names = set(re.findall(r'topic="([^"]*)"', text))
    assert {"tenant42:a", "shared.b"} <= names
    assert all(name.startswith(("tenant42:", "shared.")) for name in names)
    as_json = server.client("tenant").get("/v0/metrics", headers={"Accept": "application/json"}).json
    assert set(as_json["topics_topic_head_seq"]) == names
    assert as_json["topics_topics"] == len(names)
    assert list(as_json["topics_topic_head_seq"]) == sorted(names)


@pytest.mark.parametrize("dead_letter", ["plain", "tenant43:dead"])
def test_a_dead_letter_outside_the_prefix_is_403(server: ServerProcess, dead_letter: str) -> None:
    tenant = server.client("tenant")
    assert tenant.put("/v0/topics/tenant42:q", {"type": "queue", "dead_letter": dead_letter}).status == 403
    config = {"type": "queue", "dead_letter": dead_letter}
    assert tenant.append("tenant42:q", 1, config=config).status == 403
    assert tenant.append("tenant42:a", 1, config=config).status == 403
    assert server.client().get("/v0/topics/tenant42:q").status == 404


def test_a_dead_letter_inside_the_prefix_is_fine(server: ServerProcess) -> None:
    reply = server.client("tenant").put("/v0/topics/tenant42:q2", {"type": "queue", "dead_letter": "tenant42:dead"})
    assert reply.status == 201


# --- inline config ---


def test_a_write_with_config_that_creates_needs_admin(server: ServerProcess) -> None:
    writer = server.client("writer")
    reply = writer.append("inline", 1, config={"ttl_ms": 60000})
    assert (reply.status, reply.code, reply.detail["scope"]) == (403, "forbidden", "admin")
    assert server.client().get("/v0/topics/inline").status == 404
    assert writer.append("inline", 1).status == 201
    assert writer.append("inline", 1, config={"ttl_ms": 60000}).status == 200
    assert server.client("full").append("inline2", 1, config={"ttl_ms": 60000}).status == 201


def test_a_write_with_config_that_may_not_create_is_404(server: ServerProcess) -> None:
    assert server.client("writer").append("inline3", 1, create=False, config={}).status == 404


# --- without keys ---


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), allowed_hosts="topics.internal") as server:
        yield server


def test_without_keys_everything_is_allowed_and_the_header_ignored(keyless: ServerProcess) -> None:
    assert keyless.client("anything").append("a", 1).status in (200, 201)
    assert keyless.client().get("/v0/metrics").status == 200


def test_without_keys_the_log_says_so_loudly(keyless: ServerProcess) -> None:
    assert any("WARNING" in line and "NO API KEYS" in line for line in keyless.lines)


@pytest.mark.parametrize(
    "host", ["localhost:{}", "127.0.0.1:{}", "127.0.0.1", "[::1]:{}", "LOCALHOST", "topics.internal:{}"]
)
def test_without_keys_loopback_and_listed_hosts_are_served(keyless: ServerProcess, host: str) -> None:
    assert keyless.client().get("/v0/topics", headers={"Host": host.format(keyless.port)}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:{}", "127.0.0.1.evil.example", "10.0.0.1", "x@localhost"]
)
def test_without_keys_another_host_is_403(keyless: ServerProcess, host: str) -> None:
    reply = keyless.client().get("/v0/topics", headers={"Host": host.format(keyless.port)})
    assert (reply.status, reply.code) == (403, "forbidden")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://"])
def test_without_keys_a_foreign_origin_is_403(keyless: ServerProcess, origin: str) -> None:
    reply = keyless.client().get("/v0/topics", headers={"Origin": origin})
    assert (reply.status, reply.code) == (403, "forbidden")


def test_without_keys_the_servers_own_origin_is_served(keyless: ServerProcess) -> None:
    for origin in (f"http://127.0.0.1:{keyless.port}", f"http://localhost:{keyless.port}", "https://topics.internal"):
        assert keyless.client().get("/v0/topics", headers={"Origin": origin}).status == 200


def test_without_keys_another_port_of_this_machine_is_another_origin(keyless: ServerProcess) -> None:
    """Browsers do not say more than this of a WebSocket."""
    for origin in ("http://127.0.0.1:1", "http://localhost", "http://[::1]:1", "https://127.0.0.1"):
        reply = keyless.client().get("/v0/topics", headers={"Origin": origin})
        assert (reply.status, reply.detail["field"]) == (403, "origin")
        behind_a_proxy = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        assert keyless.client().get("/v0/topics", headers=behind_a_proxy).status == 200


NAVIGATION = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/health", "/v0/metrics", "/v0/nothing", "/v1/api/auth/me", "/"])
def test_without_keys_what_a_page_of_another_site_makes_a_browser_send_is_403(
    keyless: ServerProcess, path: str
) -> None:
    for site in ("cross-site", "same-site", "something-new"):
        reply = keyless.client().get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
        assert reply.status == 403
    for site in ("none", "same-origin"):
        assert keyless.client().get(path, headers={"Sec-Fetch-Site": site}).status != 403


def test_without_keys_a_link_leads_to_pages_and_to_nothing_else(keyless: ServerProcess) -> None:
    client = keyless.client()
    for path, status in (("/", 404), ("/console/", 200)):
        assert client.get(path, headers=NAVIGATION).status == status
        assert client.post(path, {}, headers=NAVIGATION).status == 403
        assert client.get(path, headers={**NAVIGATION, "Sec-Fetch-Dest": "iframe"}).status == 403
        assert client.get(path, headers={**NAVIGATION, "Sec-Fetch-Mode": "cors"}).status == 403
    for path in ("/v0/topics", "/console", "//", "/console/x", "/%2f"):
        assert client.get(path, headers=NAVIGATION).status == 403


def test_a_keyless_server_on_other_addresses_refuses_other_sites_too(tmp_path: Path) -> None:
    with serving(tmp_path, host="0.0.0.0", allow_insecure_no_auth="1") as server:
        headers = {"Host": "anything.example", "Sec-Fetch-Site": "cross-site"}
        assert server.client().get("/v0/topics", headers=headers).status == 403


def test_with_keys_pages_of_other_sites_are_served_by_their_key(server: ServerProcess) -> None:
    assert server.client().get("/v0/topics", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


def test_with_keys_host_and_origin_do_not_matter(server: ServerProcess) -> None:
    headers = {"Host": "topics.example", "Origin": "https://app.example"}
    assert server.client().get("/v0/topics", headers=headers).status == 200


# --- starting ---


@pytest.mark.parametrize("keys", ["k:read+reed", "fine,k:read:a||b"])
def test_a_malformed_key_refuses_the_start_and_is_not_shown(tmp_path: Path, keys: str) -> None:
    server = ServerProcess(tmp_path, api_keys=keys.replace("k", "s3cret"))
    assert server.exit_code() == 2
    assert len(server.lines) == 1
    assert "TOPICS_API_KEYS" in server.log
    assert "s3cret" not in server.log


def test_another_address_than_loopback_without_keys_refuses_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, host="0.0.0.0")
    assert server.exit_code() == 2
    assert "TOPICS_ALLOW_INSECURE_NO_AUTH" in server.log
    assert len(server.lines) == 1


def test_the_refusal_can_be_waived(tmp_path: Path) -> None:
    with serving(tmp_path, host="0.0.0.0", allow_insecure_no_auth="1") as server:
        assert server.client().get("/v0/topics", headers={"Host": "anything.example"}).status == 200
        assert "EVERYONE" in server.log


def test_a_key_never_appears_in_the_log(tmp_path: Path) -> None:
    secret = "a-very-special-secret-4711"
    with serving(tmp_path, api_keys=f"{secret}:read") as server:
        assert server.client(secret).get("/v0/topics").status == 200
        assert secret not in server.log


def test_a_name_outside_the_prefixes_is_told_with_the_ones_allowed(server: ServerProcess) -> None:
    tenant = server.client("tenant")
    for reply, field in (
        (tenant.get("/v0/topics/tenant43:c"), "topic"),
        (tenant.post("/v0/watch", {"topics": {"tenant43:c": {}}}), "topics.tenant43:c"),
        (tenant.put("/v0/topics/shared.q", {"dead_letter": "tenant43:c"}), "dead_letter"),
    ):
        assert (reply.status, reply.code) == (403, "forbidden")
        assert reply.detail == {"field": field, "name": "tenant43:c", "prefixes": ["tenant42:", "shared."]}
        message = reply.json["error"]["message"]
        assert all(part in message for part in (field, "tenant43:c", '"tenant42:"', '"shared."'))


def test_a_name_that_the_caller_did_not_send_is_not_revealed(server: ServerProcess) -> None:
    ends = {"source": "tenant43:c", "dest": "shared.b"}
    assert server.client("full").put("/v0/routers/shared.r", ends).status == 201
    reply = server.client("tenant").get("/v0/routers/shared.r")
    assert reply.status == 403
    assert b"tenant43" not in reply.body
    assert reply.detail == {"field": "source", "prefixes": ["tenant42:", "shared."]}


def test_a_comma_where_a_plus_was_meant_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, api_keys="k3y:read,write")
    assert server.exit_code() == 2
    assert "TOPICS_API_KEYS: entry 2 is named like a scope" in server.log
    assert "k3y" not in server.log
