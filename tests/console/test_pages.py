"""The console's files: who gets them, how they are cached, what they may load, and how they are reached."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess, serving
from topics.api.console.pages import STATIC


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys="secret", probe_auth="true") as server:
        yield server


def assets_of(page: bytes) -> list[str]:
    return re.findall(r'(?:src|href)="\./(assets/[^"]+)"', page.decode())


def test_a_browser_is_sent_from_the_root_to_the_console(server: ServerProcess) -> None:
    reply = server.stranger().get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (reply.status, reply.headers["location"]) == (302, "/console/")
    assert server.stranger().get("/console").headers["location"] == "/console/"


def test_anything_else_on_the_root_is_answered_as_before(server: ServerProcess) -> None:
    for accept in ("application/json", "*/*"):
        reply = server.client("secret").get("/", headers={"Accept": accept})
        assert (reply.status, reply.code) == (404, "not_found")
    assert server.client("secret").post("/", {}).status == 405


def test_assets_need_no_key_and_the_api_does(server: ServerProcess) -> None:
    stranger = server.stranger()
    page = stranger.get("/console/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert stranger.get("/v0/me").status == 401
    assert stranger.get("/v0/health").status == 401


def test_parts_are_cached_for_ever_and_the_page_is_asked_for_again(server: ServerProcess) -> None:
    stranger = server.stranger()
    page = stranger.get("/console/")
    assert page.headers["cache-control"] == "no-cache"
    assert stranger.get("/console/", headers={"If-None-Match": page.headers["etag"]}).status == 304
    assert assets_of(page.body)
    for path in assets_of(page.body):
        assert re.fullmatch(r"assets/[\w-]+-[\w-]{8}\.(js|css|svg)", path)
        reply = stranger.get(f"/console/{path}")
        assert (reply.status, reply.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")


def test_parts_are_sent_compressed_and_are_the_same_without(server: ServerProcess) -> None:
    stranger = server.stranger()
    compressed: dict[str, int] = {}
    for path in [
        *assets_of(stranger.get("/console/").body),
        *(f"assets/{file.name}" for file in STATIC.glob("assets/*")),
    ]:
        plain = stranger.get(f"/console/{path}")
        assert "content-encoding" not in plain.headers
        for _ in range(2):
            reply = stranger.get(f"/console/{path}", headers={"Accept-Encoding": "gzip, br"})
            assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "Accept-Encoding")
            assert gzip.decompress(reply.body) == plain.body
            compressed[path] = len(reply.body)
    assert 0 < sum(compressed.values()) < 200_000


def test_a_page_may_load_only_its_own_parts_and_stand_in_no_frame(server: ServerProcess) -> None:
    policy = server.stranger().get("/console/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["script-src"], rules["style-src"]) == ("'none'", "'self'", "'self'")
    assert (rules["frame-ancestors"], rules["base-uri"], rules["form-action"]) == ("'none'",) * 3
    assert "unsafe" not in policy
    for path in ("/console/", "/console"):
        assert server.stranger().get(path).headers["x-content-type-options"] == "nosniff"


def test_no_path_leads_out_of_the_console(server: ServerProcess) -> None:
    for path in ("assets/nothing.js", "assets/..%2f..%2fpages.py", "assets/%2e%2e/index.html", "../v0/me"):
        assert server.stranger().get(f"/console/{path}").status in (401, 404)


def test_off_means_that_there_is_no_console(tmp_path: Path) -> None:
    with serving(tmp_path, console="off") as server:
        client = server.client()
        assert client.get("/console/").status == 404
        assert client.get("/", headers={"Accept": "text/html"}).status == 404


def test_read_is_told_to_the_page_while_the_api_obeys_the_key(tmp_path: Path) -> None:
    with serving(tmp_path, console="read") as server:
        client = server.client()
        assert client.get("/v0/me").json["console"] == "read"
        assert client.append("t", 1).status == 201


def test_behind_a_proxy_both_forms_of_a_path_are_served(tmp_path: Path) -> None:
    with serving(tmp_path, base_path="/apps/topics") as server:
        client = server.client()
        for root in ("/", "/apps/topics", "/apps/topics/"):
            reply = client.get(root, headers={"Accept": "text/html"})
            assert (reply.status, reply.headers["location"]) == (302, "/apps/topics/console/")
        assert client.get("/apps/topics/console/").body == client.get("/console/").body
        assert client.post("/apps/topics/v0/topics/t", {"records": [{"data": 1}]}).status == 201
        assert client.state("t")["count"] == 1
        large = b'{"records":[{"data":"' + b"x" * 900_000 + b'"}]}'
        sent = client.post("/apps/topics/v0/topics/t", body=large, headers={"Content-Type": "application/json"})
        assert sent.status == 200
        assert client.get("/apps/v0/topics/t").status == 404


def test_a_base_path_that_is_none_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, base_path="topics?x")
    assert server.exit_code() == 2
    assert "TOPICS_BASE_PATH" in server.log
