"""The console in a real Chromium: pages that report what they had to say, and the tools that the tests share."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.live.rig import eventually
from tests.serving import ServerProcess

ROOT = Path(__file__).parent.parent.parent
CONSOLE = ROOT / "console"
PICTURES = ROOT / "docs" / "images"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
IN_CI = os.environ.get("CI") == "true"
# What is bound to happen; a busy machine may take its time.
WITHIN_MS = 120_000
MARKS = [pytest.mark.slow]
if CHROMIUM is None and not IN_CI:
    MARKS.append(pytest.mark.skip(reason="chromium is not installed (apt-get install chromium)"))
if shutil.which("npm") is None and not IN_CI:
    MARKS.append(pytest.mark.skip(reason="npm is not installed"))

expect.set_options(timeout=WITHIN_MS)


def install() -> None:
    """What the sources need, as the lock file says; nothing if it is there."""
    stamp = CONSOLE / "node_modules" / ".package-lock.json"
    with (CONSOLE / "package-lock.json").open() as lock:
        # Several processes of the tests come here at once; closing the file ends the lock.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.stat().st_mtime < os.fstat(lock.fileno()).st_mtime:
            done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=CONSOLE, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@contextmanager
def chromium() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI must have chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=WITHIN_MS)
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """One page of the console. `said` is what the browser reported: a healthy page says nothing."""

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.root = f"http://127.0.0.1:{server.port}"
        self.said: list[str] = []
        self.addresses: list[str] = []
        page.set_default_timeout(WITHIN_MS)
        page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))

    def go(self, where: str) -> None:
        self.page.goto(f"{self.root}/console/#/{where}")
        # Another place of the same document is no navigation: the page may still show the last one.
        self.page.wait_for_function("where => location.hash === '#/' + where", arg=where)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def see(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()

    def linger(self, place: Locator) -> None:
        """Move over it until the page says that it holds something back."""
        box = place.bounding_box()
        assert box is not None
        steps = count()
        note = self.page.get_by_text("Held while the pointer is on the list")

        def held() -> bool:
            self.page.mouse.move(box["x"] + 4 + next(steps) % 9, box["y"] + 9)
            return note.is_visible()

        eventually(held, within_s=300)

    def faults(self) -> list[str]:
        """What is not excused by a server that was away on purpose."""
        return [line for line in self.said if "ERR_CONNECTION" not in line and "Failed to load resource" not in line]

    def violations(self) -> list[str]:
        """What axe-core finds on the page as it is."""
        if not self.page.evaluate("typeof axe === 'object'"):
            # Not as an element: the page's own policy would rightly refuse that.
            self.page.evaluate((CONSOLE / "node_modules" / "axe-core" / "axe.min.js").read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{violation['id']}: {violation['help']}: {node['html'][:160]}"
            for violation in found["violations"]
            for node in violation["nodes"][:3]
        ]

    def picture(self, name: str) -> None:
        """For the documentation, if pictures are wanted."""
        if os.environ.get("CONSOLE_PICTURES"):
            PICTURES.mkdir(exist_ok=True)
            self.page.screenshot(path=PICTURES / f"console-{name}.png")


@contextmanager
def opened(browser: Browser, server: ServerProcess, **context: Any) -> Iterator[Console]:
    """A page in a profile of its own; it fails if the browser had anything to complain about."""
    context.setdefault("viewport", {"width": 1280, "height": 800})
    profile = browser.new_context(**context)
    try:
        console = Console(profile.new_page(), server)
        yield console
        assert console.faults() == [], console.faults()
    finally:
        profile.close()
