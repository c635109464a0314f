"""A plain EventSource and a plain WebSocket in headless Chromium, on a page of the server's own origin."""

import base64
import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.live.rig import Watcher, eventually, watching
from tests.serving import serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
SECRET = "s3cret+/key"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
if CHROMIUM is None and os.environ.get("CI") != "true":
    pytestmark.append(pytest.mark.skip(reason="chromium is not installed (apt-get install chromium)"))


class Page:
    """A page, by Chromium's debugging protocol: scripts run in it as if it had brought them along."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def run(self, script: str) -> Any:
        self._number += 1
        parameters = {"expression": script, "returnByValue": True}
        command = {"id": self._number, "method": "Runtime.evaluate", "params": parameters}
        self._connection.send(json.dumps(command))
        while True:
            answer = json.loads(self._connection.recv(30))
            if answer.get("id") == self._number:
                assert "exceptionDetails" not in answer["result"], answer
                return answer["result"]["result"].get("value")

    def wait_for(self, what: str) -> list[str]:
        """What the page has seen, once this is among it."""
        eventually(lambda: what in self.run("seen"), within_s=60)
        return self.run("seen")


@contextmanager
def shown(url: str, profile: Path) -> Iterator[Page]:
    assert CHROMIUM is not None, "CI must have chromium"
    browser = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port_file = profile / "DevToolsActivePort"
        eventually(lambda: port_file.exists() and port_file.read_text().count("\n"), within_s=60)
        port = int(port_file.read_text().splitlines()[0])

        def pages() -> list[Any]:
            debugger = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            debugger.request("GET", "/json/list")
            listed = json.loads(debugger.getresponse().read())
            debugger.close()
            return [page for page in listed if page["url"] == url]

        eventually(lambda: bool(pages()), within_s=60)
        with connect(pages()[0]["webSocketDebuggerUrl"], max_size=None) as connection:
            page = Page(connection)
            # The page that is there before the server's own one has answered is complete as well, and empty.
            loaded = (
                "document.readyState === 'complete' && !!document.body && document.body.innerText.includes('uptime')"
            )
            eventually(lambda: page.run(loaded), within_s=60)
            yield page
    finally:
        browser.kill()
        browser.wait()


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
        # The stream is taken away; the browser comes back by itself after `retry` and goes on behind "c".
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
