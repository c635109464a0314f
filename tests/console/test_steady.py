"""Nothing jumps under the pointer: rows are measured while notices, panels and numbers around them come and go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.console.browser import MARKS, Console, opened
from tests.console.filling import FAILURE, fill
from tests.live.rig import eventually
from tests.serving import Client, ServerProcess, serving

pytestmark = MARKS

PHONES = ({"width": 360, "height": 740}, {"width": 390, "height": 844})
SIZES = (*PHONES, {"width": 1280, "height": 800})
LINE_PX = 20


def top_of(place: Locator) -> float:
    box = place.bounding_box()
    assert box is not None
    return box["y"]


class Watched:
    """Where something is on the page, whenever something else has happened."""

    def __init__(self, place: Locator) -> None:
        self._place = place
        expect(place).to_be_visible()
        self.tops = {"at first": top_of(place)}

    def note(self, when: str) -> None:
        self.tops[when] = top_of(self._place)

    def has_moved(self) -> dict[str, float]:
        first = self.tops["at first"]
        return {when: top - first for when, top in self.tops.items() if top != first}


def sized(size: dict[str, int]) -> str:
    return f"{size['width']}px"


# --- a queue ---


@pytest.mark.parametrize("size", SIZES, ids=sized)
def test_jobs_stay_in_their_place_whatever_is_said_of_their_queue(
    browser: Browser, tmp_path: Path, size: dict[str, int]
) -> None:
    with serving(tmp_path) as server, opened(browser, server, viewport=size) as console:
        client = server.client()
        letters = {"dead_letter": "mail.dead", "auto_create": False, "max_deliveries": 1}
        client.put("/v0/topics/mail", {"type": "queue", **letters, "lease_ms": 600_000})
        late = {"data": "late", "delay_ms": 3_600_000}
        client.post("/v0/topics/mail", {"records": [late, late]})
        console.go("topics/mail/delayed")
        watched = Watched(console.page.locator("tbody tr").first)
        workers_come_and_go(console, client, watched, is_small=size in PHONES)
        notices_come_and_go(console, client, watched)
        jobs_are_chosen_and_opened(console, watched)
        server.kill()
        console.see("The server does not answer; trying again")
        watched.note("the server is away")
        assert watched.has_moved() == {}


def workers_come_and_go(console: Console, client: Client, watched: Watched, *, is_small: bool) -> None:
    standing = console.page.locator(".standing").first

    def note(sentence: str) -> None:
        expect(standing).to_contain_text(sentence)
        watched.note(sentence)

    note("No worker is asking for jobs: none has since the server started")
    client.append("mail", "a", "b", "c")
    note("3 jobs wait, and no worker is asking for jobs")
    box = standing.bounding_box()
    assert box is not None
    assert box["height"] >= 3 * LINE_PX or not is_small, "the longest sentence has three lines and more"
    client.post("/v0/topics/mail/pause", {})
    note("The queue is paused")
    client.post("/v0/topics/mail/resume", {})
    client.post("/v0/topics/mail/claim", {"node": "w"})
    note("Workers are busy with 1 job")
    client.request("PATCH", "/v0/topics/mail", {"max_in_flight": 1})
    client.post("/v0/topics/mail/claim", {"node": "w"})
    note("The ready jobs are held back by max_in_flight")
    client.request("PATCH", "/v0/topics/mail", {"max_in_flight": None})


def notices_come_and_go(console: Console, client: Client, watched: Watched) -> None:
    notice = console.page.get_by_role("alert")
    client.post("/v0/topics/mail/nack", {"node": "w", "seqs": [3], "error": "no"})
    client.post("/v0/topics/mail/claim", {"node": "w"})
    expect(notice).to_contain_text("cannot be moved there")
    watched.note("the dead-letter topic refuses")
    console.button("Dismiss").click()
    expect(notice).to_have_count(0)
    client.put("/v0/topics/mail.dead", {})

    def moved() -> bool:
        client.post("/v0/topics/mail/claim", {"node": "w"})
        return client.state("mail")["queue"]["dead"] == 1

    eventually(moved, within_s=60)
    expect(console.page.get_by_role("link", name="Dead")).to_contain_text("1")
    watched.note("the dead-letter topic is there")
    console.page.route("**/jobs?*", lambda route: route.fulfill(status=500, body="no"))
    expect(notice).to_contain_text("The server answered 500")
    watched.note("the list cannot be read")
    console.page.unroute("**/jobs?*")
    expect(notice).to_have_count(0)
    watched.note("the list can be read again")


def jobs_are_chosen_and_opened(console: Console, watched: Watched) -> None:
    tick = console.page.get_by_label("Select job 1", exact=True)
    tick.check()
    expect(console.page.get_by_role("region", name="What to do with the selected jobs")).to_be_visible()
    watched.note("a job is selected")
    tick.uncheck()
    console.page.locator("tbody tr").first.locator(".payload").click()
    panel = console.page.get_by_label("Job 1", exact=True)
    expect(panel).to_be_in_viewport()
    watched.note("a job is open")
    assert console.violations() == []
    panel.get_by_role("button", name="Close the job").click()
    expect(panel).to_have_count(0)
    watched.note("the job is closed")


# --- records ---


@pytest.mark.parametrize("size", SIZES, ids=sized)
def test_records_stay_in_their_place(browser: Browser, tmp_path: Path, size: dict[str, int]) -> None:
    with serving(tmp_path) as server, opened(browser, server, viewport=size) as console:
        client = server.client()
        client.put("/v0/topics/mail", {"type": "queue", "dead_letter": "letters"})
        client.append("letters", "by hand")
        console.go("topics/letters/records")
        watched = Watched(console.page.locator("thead tr"))
        client.append("mail", "job")
        client.post("/v0/topics/mail/claim", {"node": "w"})
        client.post("/v0/topics/mail/nack", {"node": "w", "seqs": [1], "dead_letter": True})
        expect(console.page.get_by_role("link", name="put them back on its Dead tab")).to_be_attached()
        watched.note("there is a link to the queue")
        console.page.locator("tbody tr", has_text="by hand").click()
        panel = console.page.get_by_label("Record 1", exact=True)
        expect(panel).to_be_in_viewport()
        watched.note("a record is open")
        # Then it is no longer among the newest.
        client.append("letters", *range(150))
        expect(console.page.locator("tbody tr").first).to_contain_text("152")
        expect(panel).to_contain_text("by hand")
        watched.note("newer records have come")
        assert watched.has_moved() == {}


def test_a_link_to_a_record_that_is_gone_says_so_beside_the_list(console: Console) -> None:
    console.go("topics/orders/records?seq=7")
    expect(console.page.get_by_label("Record 7", exact=True)).to_contain_text("There is no record with seq 7")
    watched = Watched(console.page.locator("thead tr"))
    console.page.get_by_label("Go to seq").fill("x")
    console.button("Go").click()
    expect(console.page.get_by_role("alert")).to_contain_text("whole number")
    watched.note("the field has an error")
    assert watched.has_moved() == {}


@pytest.mark.parametrize("size", SIZES, ids=sized)
def test_a_live_page_keeps_its_rows_in_place(browser: Browser, tmp_path: Path, size: dict[str, int]) -> None:
    with serving(tmp_path) as server, opened(browser, server, viewport=size) as console:
        client = server.client()
        client.append("t", 0)
        console.go("topics/t/live")
        expect(console.page.locator(".badge.ok", has_text="Live")).to_be_visible()
        client.append("t", "first")
        watched = Watched(console.page.locator("thead tr"))
        for _ in range(12):
            client.append("t", *range(1_000))
        expect(console.page.get_by_test_id("live-numbers")).to_contain_text("not drawn")
        watched.note("records are not drawn")
        console.page.locator("tbody tr").first.locator(".payload").click()
        expect(console.page.locator(".detail")).to_be_in_viewport()
        watched.note("a record is open")
        console.button("Close the record").click()
        console.button("Pause").click()
        client.append("t", "next")
        expect(console.page.locator(".following")).to_contain_text("Paused")
        watched.note("it is paused")
        server.kill()
        console.see("Lost, connecting again")
        watched.note("the server is away")
        assert watched.has_moved() == {}


# --- the other pages ---

LISTS = {
    "topics": "**/v0/topics?*",
    "routers": "**/v0/routers?*",
    "groups": "**/v0/groups?*",
    "webhooks": "**/v0/webhooks?*",
    "webhooks/shop": "**/v0/webhooks/shop",
    "schedules": "**/v0/schedules?*",
    "schedules/yearly": "**/v0/schedules/yearly",
    "transactions": "**/v0/txns?*",
    "transactions/nightly": "**/v0/txns/nightly",
    "pipelines": "**/v0/pipelines?*",
    "pipelines/revenue": "**/v0/pipelines/revenue",
    "server/log": "**/v0/server?*",
    "topics/mail/activity": "**/readers",
}


def test_an_error_of_a_page_moves_nothing_on_it(browser: Browser, server: ServerProcess) -> None:
    moved: dict[str, Any] = {}
    with opened(browser, server, viewport=PHONES[0]) as console:
        for where, address in LISTS.items():
            console.go(where)
            watched = Watched(console.page.locator(".card tbody tr, .card .facts").first)
            console.page.route(address, lambda route: route.fulfill(status=500, body="no"))
            expect(console.page.get_by_role("alert")).to_contain_text("The server answered 500")
            watched.note("error")
            console.page.unroute(address)
            expect(console.page.get_by_role("alert")).to_have_count(0)
            watched.note("no error")
            if watched.has_moved():
                moved[where] = watched.has_moved()
    assert moved == {}


def changes(client: Client) -> Iterator[tuple[str, str, Any]]:
    """Pages, something on them, and what would push it away."""
    bad = {"state": "failed", "runner": "spark-1", "revision": 1, "last_error": FAILURE}
    yield "overview", ".tile a.bad", lambda: bury(client)
    yield "routers", "tbody tr >> nth=0", lambda: spread(client)
    yield "pipelines/copy", "[aria-label=Status]", lambda: client.post("/v0/pipelines/copy/status", bad)


def spread(client: Client) -> None:
    for number in range(5):
        client.put(f"/v0/routers/to-{number}", {"source": "orders", "dest": f"copy-{number}"})


def bury(client: Client) -> None:
    client.put("/v0/topics/other", {"type": "queue", "dead_letter": "other.dead"})
    client.append("other", 1)
    client.post("/v0/topics/other/claim", {"node": "w"})
    client.post("/v0/topics/other/nack", {"node": "w", "seqs": [1], "dead_letter": True})


def test_pages_are_held_while_the_pointer_is_on_them(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        fill(client)
        definition = {"sources": {"o": {"topic": "orders"}}, "sql": "SELECT * FROM o", "sink": {"topic": "copy"}}
        client.put("/v0/pipelines/copy", definition)
        client.post("/v0/pipelines/copy/status", {"state": "running", "runner": "spark-1", "revision": 1})
        for where, selector, change in changes(client):
            console.go(where)
            place = console.page.locator(selector)
            watched = Watched(place)
            place.hover()
            change()
            console.linger(place)
            watched.note(where)
            assert watched.has_moved() == {}
            console.page.mouse.move(0, 0)
            expect(console.page.get_by_text("Held while the pointer")).to_have_count(0)
            watched.note("the pointer has left")
            assert watched.has_moved().keys() == {"the pointer has left"}, "it would have moved"
