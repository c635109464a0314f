"""Limited keys, a console that only reads, hostile contents, restarts, many topics, large records, small screens."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, Console, opened
from tests.console.filling import fill
from tests.serving import ServerProcess, free_port, serving

pytestmark = MARKS

PAGES = (
    "overview",
    "topics",
    "queues",
    "topics/orders/records?seq=60",
    "topics/orders/live",
    "topics/orders/append",
    "topics/orders/configuration",
    "topics/orders/readers",
    "topics/orders/delete",
    "topics/mail/ready",
    "topics/mail/leased",
    "topics/mail/delayed",
    "topics/mail/dead",
    "topics/mail/activity",
    "routers",
    "groups",
    "webhooks",
    "webhooks/shop",
    "schedules",
    "schedules/yearly",
    "transactions",
    "transactions/nightly",
    "pipelines",
    "pipelines/revenue",
    "server/settings",
    "server/keys",
    "server/files",
    "server/log",
    "server/api",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        fill(server.client())
        yield server


def settle(console: Console) -> None:
    """Until the page has its content."""
    if "live" not in console.page.url:
        console.page.wait_for_load_state("networkidle")
    expect(console.page.get_by_role("heading", level=1)).to_be_visible()
    expect(console.page.locator(".card").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_any_page(browser: Browser, server: ServerProcess, scheme: str) -> None:
    with opened(browser, server, color_scheme=scheme) as console:
        found: dict[str, list[str]] = {}
        for where in PAGES:
            console.go(where)
            settle(console)
            if scheme == "dark" and where == "topics/mail/ready":
                console.picture("queue-dark")
            if violations := console.violations():
                found[where] = violations
        console.go("topics/mail/dead")
        console.page.get_by_label("Select this page").check()
        console.button("Delete").click()
        expect(console.page.get_by_role("dialog")).to_be_visible()
        if violations := console.violations():
            found["dialog"] = violations
        assert found == {}


def test_every_page_fits_a_small_screen(browser: Browser, server: ServerProcess) -> None:
    with opened(browser, server, viewport={"width": 360, "height": 740}) as console:
        too_wide: dict[str, int] = {}
        for where in PAGES:
            console.go(where)
            settle(console)
            width = console.page.evaluate("document.documentElement.scrollWidth")
            if width > 360:
                too_wide[where] = width
        assert too_wide == {}
        console.go("overview")
        console.button("Menu").click()
        console.page.get_by_role("link", name="Groups").click()
        expect(console.page.get_by_role("heading", name="Consumer groups")).to_be_visible()
        console.picture("small")


def test_a_key_with_a_prefix_sees_its_names_and_is_offered_what_it_may_do(browser: Browser, tmp_path: Path) -> None:
    keys = "root,team-key:read+write:team.,reader-key:read"
    with serving(tmp_path, api_keys=keys) as server:
        client = server.client("root")
        client.append("team.orders", 1)
        client.append("other.orders", 1)
        with opened(browser, server) as console:
            page = console.page
            console.go("topics")
            page.get_by_label("API key").fill("wrong-key")
            console.button("Open the console").click()
            console.see("the API key is unknown")
            page.get_by_label("API key").fill("team-key")
            console.button("Open the console").click()
            console.see("team.orders")
            expect(page.get_by_text("other.orders")).to_have_count(0)
            expect(page.get_by_role("link", name="Server")).to_have_count(0)
            expect(console.button("Create a topic")).to_have_count(0)
            console.go("topics/team.orders")
            expect(page.get_by_role("link", name="Append")).to_be_visible()
            expect(page.get_by_role("link", name="Delete")).to_have_count(0)
            console.go("topics/other.orders")
            console.see("names of this key start with")
            assert page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])") == '[{},{},""]'
            assert not [address for address in console.addresses if "team-key" in address]
            page.reload()
            expect(page.get_by_label("API key")).to_be_visible()
            page.get_by_label("API key").fill("reader-key")
            page.get_by_label("Keep it until this tab is closed").check()
            console.button("Open the console").click()
            page.reload()
            console.see("other.orders")
            expect(page.get_by_role("link", name="Append")).to_have_count(0)
            console.button("Forget key").click()
            expect(page.get_by_label("API key")).to_be_visible()
            assert page.evaluate("sessionStorage.length") == 0


def test_a_console_that_only_reads_offers_no_change(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, console="read") as server:
        fill(server.client())
        with opened(browser, server) as console:
            for where in PAGES:
                console.go(where)
                if where.endswith(("append", "delete")):
                    console.see("This key may not do that, or the console only reads")
                    continue
                settle(console)
                buttons = [button.inner_text() for button in console.page.get_by_role("button").all()]
                words = (
                    "Append",
                    "Delete",
                    "Create",
                    "Pause the queue",
                    "Put back",
                    "Reset",
                    "Abort",
                    "Stop",
                    "Remove",
                    "Rotate",
                    "Run now",
                    "Test",
                    "Resume",
                    "Pause…",
                )
                assert not [text for text in buttons if text.startswith(words)], where
                expect(console.page.get_by_role("checkbox")).to_have_count(0)
            console.see("This console only reads")


def test_a_live_page_goes_on_after_a_restart_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port=port) as first:
        first.client().append("orders", 0)
        with opened(browser, first) as console:
            console.go("topics/orders/live")
            expect(console.page.locator(".badge.ok", has_text="Live")).to_be_visible()
            console.page.evaluate("window.sameDocument = true")
            first.client().append("orders", "before")
            console.see('"before"')
            first.kill()
            console.see("The server does not answer; trying again")
            with serving(tmp_path, port=port) as second:
                expect(console.page.get_by_role("status").get_by_text("does not answer")).to_be_hidden()
                second.client().append("orders", "after")
                console.see('"after"')
                # A gap, if the kill left one, has a row of its own.
                expect(console.page.locator("tbody tr.pick")).to_have_count(2)
                assert console.page.evaluate("window.sameDocument") is True


SCRIPT = "<script>window.hurt=1</script><img src=x onerror='window.hurt=2'>"
MARKS_OF_DIRECTION = "\u202egnp.exe\u2066\u200b"
ESCAPES = "\u001b[31mred\u0007"


def test_contents_of_records_are_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        hostile = SCRIPT + MARKS_OF_DIRECTION + ESCAPES
        record = {"data": {hostile: [hostile]}, "tag": hostile, "node": SCRIPT, "meta": {hostile: hostile}}
        client.post("/v0/topics/evil", {"records": [record]})
        client.put("/v0/topics/jobs", {"type": "queue", "dead_letter": "jobs.dead"})
        client.post("/v0/topics/jobs", {"records": [{"data": hostile, "tag": hostile}]})
        client.post("/v0/topics/jobs/claim", {"node": SCRIPT})
        failed = {"node": SCRIPT, "seqs": [1], "dead_letter": True, "error": hostile}
        client.post("/v0/topics/jobs/nack", failed)
        for where in ("topics/evil/records?seq=1", "topics/jobs/dead", "topics/jobs/readers", "topics", "overview"):
            console.go(where)
            settle(console)
            assert console.page.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
        console.go("topics/evil/records?seq=1")
        shown = console.page.locator(".json").first
        expect(shown).to_contain_text("<script>window.hurt=1</script>")
        expect(shown).to_contain_text("\\u202e")
        text = console.page.evaluate("document.body.innerText")
        assert not set("\u202e\u2066\u200b\u001b\u0007") & set(text)
        console.go(f"topics/{quote('<img src=x onerror=window.hurt=3>')}")
        console.see("<img src=x onerror=window.hurt=3>")
        assert console.page.evaluate("window.hurt") is None


def test_a_record_of_ten_megabytes_is_shown_in_part(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, max_record_bytes=16 * 1024 * 1024) as server, opened(browser, server) as console:
        server.client().append("large", {"blob": "x" * 10_000_000, "list": list(range(1000))})
        console.go("topics/large/records?seq=1")
        console.see("Only the beginning of 9.5")
        console.button("Close the record").click()
        expect(console.page.locator(".json")).to_have_count(0)


def test_a_hundred_thousand_topics_are_searched_as_you_type(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, max_topics=0) as server, opened(browser, server) as console:
        client = server.client()
        names = [f"tenant-{number % 100}.stream-{number:06}" for number in range(100_000)]
        for first in range(0, len(names), 1_000):
            topics = {name: {"records": [{"data": 1}]} for name in names[first : first + 1_000]}
            reply = client.post("/v0/append", {"topics": topics})
            assert reply.status in (200, 201), reply
        console.go("topics")
        expect(console.page.locator("tbody tr")).to_have_count(50)
        console.page.get_by_label("Name contains").fill("STREAM-0777")
        expect(console.page.locator("tbody tr").first).to_contain_text("stream-0777")
        console.button("Next").click()
        console.see("Page 2")
        console.page.get_by_label("Name contains").fill("stream-077777")
        expect(console.page.locator("tbody tr")).to_have_count(1)
        console.go("overview")
        console.see("100,000")


def test_a_million_records_are_browsed_by_seq_and_time(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        lines = b"\n".join(b'{"n":%d}' % number for number in range(10_000))
        for _ in range(100):
            headers = {"Content-Type": "application/x-ndjson"}
            reply = client.post("/v0/topics/many?return_seqs=false", body=lines, headers=headers)
            assert reply.status in (200, 201), reply
        console.go("topics/many/records")
        console.see("1,000,000 records")
        expect(console.page.locator("tbody tr").first).to_contain_text("1,000,000")
        console.page.get_by_label("Go to seq").fill("500000")
        console.page.keyboard.press("Enter")
        console.see("Record 500,000")
        console.button("Older").click()
        expect(console.page.locator("tbody tr").first).to_contain_text("499,")
        console.button("Newest").click()
        expect(console.page.locator("tbody tr").first).to_contain_text("1,000,000")
        middle = client.post("/v0/topics/many/diff", {"from_seq": 500_000, "limit": 1}).json["records"][0]["$ts"]
        second = middle // 1000 * 1000
        found = client.post("/v0/topics/many/diff", {"from_ts": second, "limit": 1}).json["records"][0]["$seq"]
        local = "ms => { const at = new Date(ms); return new Date(ms - 60000 * at.getTimezoneOffset()).toISOString() }"
        console.page.get_by_label("or time").fill(str(console.page.evaluate(local, second))[:19])
        console.button("Go").click()
        expect(console.page.locator("tbody tr").first).to_contain_text(f"{found:,}")


def test_a_flood_of_records_is_counted_where_it_is_not_drawn(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("flood", 0)
        console.go("topics/flood/live")
        expect(console.page.locator(".badge.ok", has_text="Live")).to_be_visible()
        for _ in range(20):
            client.append("flood", *range(1_000))
        console.see("20,000 records received")
        expect(console.page.get_by_test_id("live-numbers")).to_contain_text("not drawn")
        expect(console.page.locator("tbody tr")).to_have_count(100)
        console.button("Pause").click()
        client.append("flood", "unseen")
        console.see("20,001 records received")
        expect(console.page.get_by_text('"unseen"')).to_have_count(0)
        console.button("Go on").click()
        console.see('"unseen"')
