"""A real, headless Chromium, driven by its debugging protocol: pages to run scripts in, and what they were answered."""

import http.client
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.live.rig import eventually
from tests.patience import PATIENCE_S

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
    # Names that stand for other sites; all of them are served by this machine.
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)
WITHIN_S = PATIENCE_S
MARKS = [pytest.mark.slow, pytest.mark.timeout(720)]
if CHROMIUM is None and os.environ.get("CI") != "true":
    MARKS.append(pytest.mark.skip(reason="chromium is not installed (apt-get install chromium)"))


class Page:
    """A page, by Chromium's debugging protocol: scripts run in it as if they were part of it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        # URLs and statuses of requests, by the number that the browser gives them, in no particular order.
        self._urls: dict[str, str] = {}
        self._statuses: dict[str, int] = {}
        self._call("Network.enable")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(WITHIN_S))
            if message.get("id") == self._number:
                return message.get("result", {})
            self._note(message)

    def _note(self, message: Any) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self._urls[parameters["requestId"]] = parameters["request"]["url"]
            case "Network.webSocketCreated":
                self._urls[parameters["requestId"]] = parameters["url"]
            case "Network.responseReceivedExtraInfo":
                self._statuses[parameters["requestId"]] = parameters["statusCode"]
            case "Network.webSocketHandshakeResponseReceived":
                self._statuses[parameters["requestId"]] = parameters["response"]["status"]
            case _:
                pass

    def run(self, script: str) -> Any:
        """What the script's last expression, or the promise it is, comes to."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        # Without a result: another page is taking this one's place.
        return result.get("result", {}).get("value")

    def wait_for(self, what: Any) -> list[Any]:
        """What the page has seen, once this is among it."""
        eventually(lambda: what in self.run("seen"), within_s=WITHIN_S)
        return self.run("seen")

    def statuses_of(self, part: str, count: int = 1) -> list[int]:
        """The statuses of requests with this in their URL, once there are `count` of them."""

        def found() -> list[int]:
            self.run("0")  # takes in what has come
            answered = [number for number, url in self._urls.items() if part in url and number in self._statuses]
            return [self._statuses[number] for number in answered]

        eventually(lambda: len(found()) >= count, within_s=WITHIN_S)
        return found()

    def go(self, url: str) -> None:
        """As if the user had typed the address."""
        self._call("Page.navigate", url=url)
        self.wait_until_shown(url)

    def wait_until_shown(self, url: str) -> None:
        loaded = f"document.readyState === 'complete' && !!document.body && location.href === {json.dumps(url)}"
        eventually(lambda: self.run(loaded), within_s=WITHIN_S)


@contextmanager
def shown(url: str, profile: Path) -> Iterator[Page]:
    assert CHROMIUM is not None, "CI must have chromium"
    browser = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port_file = profile / "DevToolsActivePort"
        eventually(lambda: port_file.exists() and port_file.read_text().count("\n"), within_s=WITHIN_S)
        port = int(port_file.read_text().splitlines()[0])

        def pages() -> list[Any]:
            debugger = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            debugger.request("GET", "/json/list")
            listed = json.loads(debugger.getresponse().read())
            debugger.close()
            return [page for page in listed if page["url"] == url]

        eventually(lambda: bool(pages()), within_s=WITHIN_S)
        address = pages()[0]["webSocketDebuggerUrl"]
        with connect(address, max_size=None, open_timeout=WITHIN_S, ping_interval=None) as connection:
            page = Page(connection)
            page.wait_until_shown(url)
            yield page
    finally:
        browser.kill()
        browser.wait()


class Site(ThreadingHTTPServer):
    """Another web site on this machine: an empty page at every path but those that `answers` has."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), SiteHandler)
        self.answers = answers
        self.port = int(self.server_address[1])


class SiteHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = cast("Site", self.server).answers.get(self.path)
        body = b"<!doctype html><body>a page</body>" if answer is None else json.dumps(answer()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if answer is None else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def site(answers: Mapping[str, Any] | None = None) -> Iterator[Site]:
    server = Site(answers or {})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
