"""The overview shows the copy in the bucket, in a place of its own; without a bucket there is no such place."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.bucket.standbys import Servers, servers
from tests.bucket.test_lost_machine import settings, until_shipped
from tests.console.browser import MARKS, Console, opened
from tests.console.test_steady import SIZES, Watched, sized
from tests.serving import ServerProcess, serving

__all__ = ["servers"]

pytestmark = MARKS

AWAY = {"state": "away", "term": 1, "lag_ms": 754_321, "lag_bytes": 1_234_567_890}
STATES: dict[str, dict[str, Any]] = {
    "12 min 34 s behind": {"bucket": AWAY},
    "has a gap": {"bucket": {**AWAY, "state": "gap"}},
    "taken over": {"bucket": {**AWAY, "state": "fenced"}},
    "No primary is known for now": {"bucket": AWAY, "role": "standby", "primary": None},
    "The primary is http": {"bucket": AWAY, "role": "standby", "primary": f"https://{'a' * 200}:4000"},
}


def line_of(console: Console) -> Locator:
    return console.page.get_by_label("Copy in the bucket")


def test_the_copy_in_the_bucket_is_on_the_overview_with_a_bucket(browser: Browser, servers: Servers) -> None:
    primary = servers.primary("a", advertise_url="http://10.0.0.1:4000", bucket_lease_ms=60_000)
    with opened(browser, primary) as console:
        console.go("overview")
        console.see("This server has no topics yet")
        expect(line_of(console)).to_contain_text("up to date")
        primary.client().append("t", 1)
        until_shipped(primary.client())
        console.go("overview")
        expect(console.page.locator(".tiles")).to_be_visible()
        expect(line_of(console)).to_contain_text("Copy in the bucket: up to date")
        expect(line_of(console).locator(".badge.ok")).to_have_text("ok")
        assert console.violations() == []
    with opened(browser, servers.standby("b")) as console:
        console.go("overview")
        expect(line_of(console)).to_contain_text("Standby: its state is")
        expect(line_of(console)).to_contain_text("The primary is http://10.0.0.1:4000")


def test_without_a_bucket_nothing_is_said_of_one(console: Console, server: ServerProcess) -> None:
    console.go("overview")
    expect(console.page.locator(".tiles")).to_be_visible()
    assert "bucket" not in server.client().get("/v0/overview").json
    expect(line_of(console)).to_have_count(0)


@pytest.mark.parametrize("size", SIZES, ids=sized)
def test_what_is_below_stays_in_its_place_whatever_the_copy_is_like(
    browser: Browser, tmp_path: Path, size: dict[str, int]
) -> None:
    (tmp_path / "bucket").mkdir()
    with (
        serving(tmp_path / "data", **settings(tmp_path / "bucket")) as server,
        opened(browser, server, viewport=size) as console,
    ):
        server.client().append("t", 1)
        until_shipped(server.client())
        shown: dict[str, Any] = {}
        console.page.route(
            "**/v0/overview", lambda route: route.fulfill(json={**route.fetch().json(), "attention": [], **shown})
        )
        console.go("overview")
        expect(line_of(console)).to_contain_text("up to date")
        watched = Watched(console.page.get_by_label("The last hour"))
        for sentence, state in STATES.items():
            shown.clear()
            shown.update(state)
            expect(line_of(console)).to_contain_text(sentence)
            watched.note(sentence)
            width = console.page.evaluate("document.documentElement.scrollWidth")
            assert width <= size["width"], sentence
        assert watched.has_moved() == {}
