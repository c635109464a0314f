"""Through nginx as it comes: frames arrive at once, heartbeats keep the way open, and a WebSocket passes."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.live.rig import EventSource, Watcher, eventually, watching
from tests.live.test_websocket import Socket
from tests.serving import free_port, serving

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIG = """
daemon off;
pid {root}/pid;
error_log {root}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_read_timeout 2s;
        }}
    }}
}}
"""

pytestmark = [pytest.mark.slow]
if NGINX is None and os.environ.get("CI") != "true":
    pytestmark.append(pytest.mark.skip(reason="nginx is not installed (apt-get install nginx)"))


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[Watcher, int]]:
    assert NGINX is not None, "CI must have nginx"
    with serving(tmp_path / "data") as server, watching(server) as watcher:
        port = free_port()
        root = tmp_path / "nginx"
        root.mkdir()
        (root / "nginx.conf").write_text(CONFIG.format(root=root, port=port, upstream=server.port))
        command = [NGINX, "-p", str(root), "-c", str(root / "nginx.conf"), "-e", str(root / "error.log")]
        proxy = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: answers(port))
            yield watcher, port
        finally:
            proxy.terminate()
            proxy.wait()


def test_frames_pass_a_proxy_one_by_one_and_heartbeats_keep_it_open(proxied: tuple[Watcher, int]) -> None:
    watcher, port = proxied
    client = watcher.client
    client.append("t", "a")
    # Nothing but the next record could push a frame through that the proxy holds back.
    quiet = EventSource(port, watcher.session({"t": {}}, heartbeat_ms=60_000)["stream_url"])
    try:
        assert quiet.headers["content-type"] == "text/event-stream; charset=utf-8"
        quiet.until("caught-up")
        for number in range(20):
            client.append("t", number)
            assert quiet.event().data["records"][0]["data"] == number
    finally:
        quiet.close()
    stream = EventSource(port, watcher.session({"t": {"tail": True}}, heartbeat_ms=1000)["stream_url"])
    try:
        stream.until("caught-up")
        # Longer than the proxy waits for a silent server.
        beats = [stream.next().event for _ in range(3)]
        assert beats == [":", ":", ":"]
        client.append("t", "last")
        assert stream.event().data["records"][0]["data"] == "last"
    finally:
        stream.close()


def test_a_websocket_passes_a_proxy(proxied: tuple[Watcher, int]) -> None:
    watcher, port = proxied
    watcher.client.append("t", "a")
    with connect(f"ws://127.0.0.1:{port}/v0/ws") as connection:
        ws = Socket(connection)
        ws.ask("subscribe", topic="t")
        ws.until("caught_up")
        ws.send("publish", topic="t", records=[{"data": "b"}])
        assert {ws.next()["op"], ws.next()["op"]} == {"ack", "record"}
