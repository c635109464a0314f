"""examples/live_dashboard in a real Chromium: readings arrive, and go on after the server was started again."""

import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import expect

from tests.console.browser import MARKS, WITHIN_MS, chromium
from tests.deploy.parts import ROOT
from tests.live.rig import eventually
from tests.live.test_proxy import answers
from tests.serving import ServerProcess, free_port

KEY = "secret-of-the-owner"
pytestmark = MARKS


def test_the_page_draws_what_arrives_and_outlives_a_restart(tmp_path: Path) -> None:
    port, page_port = free_port(), free_port()
    settings = {"port": port, "api_keys": KEY, "cors_origins": f"http://127.0.0.1:{page_port}"}
    server = ServerProcess(tmp_path / "data", **settings).ready()
    where = {"TOPICS_URL": f"http://127.0.0.1:{port}", "TOPICS_API_KEY": KEY, "PORT": str(page_port)}
    command = [sys.executable, ROOT / "examples" / "live_dashboard" / "serve.py"]
    example = subprocess.Popen(command, env={**os.environ, **where}, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(page_port))
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(WITHIN_MS)
            page.goto(f"http://127.0.0.1:{page_port}/")
            for sensor in ("hall", "office", "roof"):
                expect(page.get_by_role("cell", name=sensor, exact=True)).to_be_visible()
            assert server.terminate() == 0
            server = ServerProcess(tmp_path / "data", **settings).ready()
            head = server.client(KEY).state("sensors")["head_seq"]
            page.wait_for_function(
                "head => Number(document.getElementById('state').textContent.replace('record ', '')) > head", arg=head
            )
    finally:
        example.kill()
        example.wait()
        server.kill()
