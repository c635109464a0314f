"""A plain EventSource and a plain WebSocket in headless Chromium, on a page of the server's own origin."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.chromium import MARKS, shown
from tests.live.rig import Watcher, watching
from tests.serving import ServerProcess, free_port, serving

SECRET = "s3cret+/key"

pytestmark = MARKS


@pytest.fixture(params=["open", "keys"])
def watcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watcher]:
    settings = {"api_keys": SECRET} if request.param == "keys" else {}
    with serving(tmp_path / "data", **settings) as server:
        server.key = settings.get("api_keys")
        with watching(server) as watcher:
            yield watcher


def test_an_event_source_gets_backlog_and_live_records_and_reconnects(watcher: Watcher, tmp_path: Path) -> None:
    server, client = watcher.server, watcher.client
    client.append("t", "a", "b")
    path = watcher.session({"t": {}})["stream_url"]
    token = "?token=" + SECRET.replace("+", "%2B") if server.key else ""
    script = f"""
    var seen = [];
    var source = new EventSource({json.dumps(path + token)});
    source.addEventListener("record", event => {{
        for (const record of JSON.parse(event.data).records) seen.push(record.data);
    }});
    source.addEventListener("caught-up", () => seen.push("caught-up"));
    """
    with shown(f"http://127.0.0.1:{server.port}/v0/health", tmp_path / "profile") as page:
        page.run(script)
        assert page.wait_for("caught-up") == ["a", "b", "caught-up"]
        client.append("t", "c")
        page.wait_for("c")
        # The stream is cut; the browser reconnects by itself after `retry` and continues after "c".
        thief = watcher.open(path, key=server.key)
        thief.until("caught-up")
        thief.close()
        client.append("t", "d")
        assert [what for what in page.wait_for("d") if what != "caught-up"] == ["a", "b", "c", "d"]


def test_a_web_socket_subscribes_and_publishes(watcher: Watcher, tmp_path: Path) -> None:
    server, client = watcher.server, watcher.client
    client.append("t", "a")
    encoded = base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("=")
    offers = json.dumps(["topics.bearer." + encoded] if server.key else [])
    script = f"""
    var seen = [];
    var socket = new WebSocket("ws://" + location.host + "/v0/ws", {offers});
    socket.onmessage = event => {{
        const frame = JSON.parse(event.data);
        if (frame.op === "record") for (const record of frame.records) seen.push(record.data);
        else seen.push(frame.op);
    }};
    socket.onopen = () => {{
        socket.send(JSON.stringify({{op: "subscribe", topic: "t"}}));
        socket.send(JSON.stringify({{op: "publish", topic: "t", records: [{{data: "from the page"}}]}}));
    }};
    """
    with shown(f"http://127.0.0.1:{server.port}/v0/health", tmp_path / "profile") as page:
        page.run(script)
        assert {"subscribed", "a"} <= set(page.wait_for("from the page"))
        assert client.payloads("t") == ["a", "from the page"]


@pytest.mark.parametrize("keys", ["", SECRET])
def test_an_event_source_survives_three_restarts_without_loss_or_repetition(tmp_path: Path, keys: str) -> None:
    port = free_port()
    settings = {"port": port, **({"api_keys": keys} if keys else {})}
    path = "/v0/topics/t/stream" + ("?token=" + keys.replace("+", "%2B") if keys else "")
    script = f"""
    var seen = [], errors = 0;
    var source = new EventSource({json.dumps(path)});
    source.onmessage = event => {{
        const record = JSON.parse(event.data);
        seen.push([record.data, Number(event.lastEventId)]);
    }};
    source.onerror = () => errors++;
    for (const name of ["tombstone", "topic-deleted"]) source.addEventListener(name, event => seen.push(event.data));
    """

    def started() -> ServerProcess:
        server = ServerProcess(tmp_path / "data", **settings).ready()
        server.key = keys or None
        return server

    server = started()
    try:
        client = server.client()
        client.append("t", *range(100))
        with shown(f"http://127.0.0.1:{port}/v0/health", tmp_path / "profile") as page:
            page.run(script)
            page.wait_for([99, 100])
            number = 100
            for stop in ("terminate", "kill", "kill"):
                client.append("t", *range(number, number + 50))
                # The browser may or may not have got these when the connection ends.
                getattr(server, stop)()
                server = started()
                client = server.client()
                client.append("t", *range(number + 50, number + 100))
                number += 100
                page.wait_for([number - 1, number])
            assert page.run("source.readyState") == 1
            assert page.run("seen") == [[data, data + 1] for data in range(number)]
            assert page.run("errors") >= 3
    finally:
        server.kill()
