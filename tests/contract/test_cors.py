"""Pages of listed origins: the headers of every reply, and of the reply to a preflight."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.wire import Client as WireClient
from tests.http.wire2 import Client2
from tests.live.rig import EventSource
from tests.serving import Client, ServerProcess, serving
from topics.api.cors import parse_origin
from topics.model.setting_types import WrongSetting

ORIGIN = "https://app.example"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "authorization",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"api_keys": "k", "cors_origins": f"{ORIGIN},http://localhost:5173", "max_body_bytes": 2000}
    with serving(tmp_path_factory.mktemp("data"), **settings) as server:
        server.key = "k"
        server.client().append("t", 1)
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v0/topics/t", 200),
        ("GET", "/v0/health", 200),
        ("GET", "/v0/topics/missing", 404),
        ("GET", "/v0/topics/t/stream?from_seq=x", 400),
        ("DELETE", "/v0/health", 405),
        ("GET", "/v1/api/nothing", 401),
    ],
)
def test_every_reply_says_that_the_page_may_read_it(client: Client, method: str, path: str, status: int) -> None:
    reply = client.request(method, path, headers={"Origin": ORIGIN, "Accept": "text/event-stream"})
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, ORIGIN)
    assert reply.headers["vary"] == "Origin"
    assert "retry-after" in reply.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-credentials" not in reply.headers


def test_refusals_and_streams_say_it_too(server: ServerProcess) -> None:
    stranger = server.stranger()
    assert stranger.get("/v0/topics", headers={"Origin": ORIGIN}).headers["access-control-allow-origin"] == ORIGIN
    client = server.client()
    large = client.post(
        "/v0/topics/t", body=b"x" * 3000, headers={"Origin": ORIGIN, "Content-Type": "application/json"}
    )
    assert (large.status, large.headers["access-control-allow-origin"]) == (413, ORIGIN)
    stream = EventSource(server.port, "/v0/topics/t/stream?token=k", {"Origin": ORIGIN})
    assert (stream.status, stream.headers["access-control-allow-origin"]) == (200, ORIGIN)
    stream.close()


def test_http_2_replies_say_it_as_well(server: ServerProcess) -> None:
    with Client2(WireClient(server.port)) as client:
        fields = (("origin", ORIGIN), ("authorization", "Bearer k"), ("accept", "text/event-stream"))
        for path in ("/v0/topics/t", "/v0/topics/missing"):
            assert client.request("GET", path, fields).headers["access-control-allow-origin"] == ORIGIN
        reply = client.replies[client.start("GET", "/v0/topics/t/stream", fields)]
        while not reply.headers:
            client.receive()
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, ORIGIN)


@pytest.mark.parametrize(
    "origin", [None, "https://other.example", "null", "http://app.example", "https://app.example:444"]
)
def test_other_origins_are_told_nothing(client: Client, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    reply = client.get("/v0/topics/t", headers=headers)
    assert (reply.status, reply.headers["vary"]) == (200, "Origin")
    assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/v0/topics/t", "/v0/nothing", "/v1/api/topics/consume", "/v0/stream-tokens"])
def test_a_preflight_needs_no_key(server: ServerProcess, path: str) -> None:
    reply = server.stranger().request("OPTIONS", path, headers=PREFLIGHT)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert {"PUT", "PATCH", "DELETE"} <= set(reply.headers["access-control-allow-methods"].split(", "))
    allowed = reply.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key", "last-event-id"} <= set(allowed)
    assert int(reply.headers["access-control-max-age"]) > 0


def test_other_preflights_are_ordinary_requests(server: ServerProcess) -> None:
    for headers in ({**PREFLIGHT, "Origin": "https://other.example"}, {"Origin": ORIGIN}):
        assert server.stranger().request("OPTIONS", "/v0/topics/t", headers=headers).status == 401
        assert server.client().request("OPTIONS", "/v0/topics/t", headers=headers).status == 405


def test_it_is_off_by_default(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k") as server:
        assert server.stranger().request("OPTIONS", "/v0/topics", headers=PREFLIGHT).status == 401
        reply = server.client("k").get("/v0/topics", headers={"Origin": ORIGIN})
        assert not {"vary", "access-control-allow-origin"} & set(reply.headers)


def test_without_keys_only_listed_origins_get_in(tmp_path: Path) -> None:
    with serving(tmp_path, cors_origins=ORIGIN) as server:
        client = server.client()
        site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
        assert client.get("/v0/topics", headers={**site, "Origin": ORIGIN}).status == 200
        assert client.get("/v0/topics", headers={**site, "Origin": "https://other.example"}).status == 403
        assert client.get("/v0/topics", headers=site).status == 403
        # A page of a listed origin can still not be used to lease jobs by an image: that carries no Origin.
        assert client.request("OPTIONS", "/v0/topics", headers={**PREFLIGHT, **site}).status == 204


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://App.Example", b"https://app.example"),
        ("https://app.example:443/", b"https://app.example"),
        ("http://app.example:80", b"http://app.example"),
        ("http://localhost:5173", b"http://localhost:5173"),
        ("http://[::1]:8080", b"http://[::1]:8080"),
    ],
)
def test_an_origin_is_compared_as_browsers_write_it(given: str, origin: bytes) -> None:
    assert parse_origin(given) == origin


@pytest.mark.parametrize(
    "given", ["*", "null", "app.example", "https://", "ftp://a.example", "https://a.example/x", "https://a.example:x"]
)
def test_what_is_no_origin_stops_the_start(given: str, tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="TOPICS_CORS_ORIGINS"):
        parse_origin(given)
    if given == "*":
        server = ServerProcess(tmp_path, cors_origins=given)
        assert server.exit_code() == 2
        assert len(server.lines) == 1
        assert "TOPICS_CORS_ORIGINS: '*' is not an origin" in server.log
