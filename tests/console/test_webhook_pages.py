"""Webhooks and schedules in a real Chromium: created, tested, paused, resumed, rotated, removed; with deliveries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, Console, opened
from tests.serving import serving
from tests.webhooks.receiver import OK, Receiver, Reply

pytestmark = MARKS

BROKEN = Reply(500)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def fill_in(console: Console, **fields: str) -> None:
    for label, value in fields.items():
        console.page.get_by_role("dialog").get_by_label(label, exact=True).fill(value)


def remove(console: Console, kind: str, name: str) -> None:
    console.button("Remove…").click()
    expect(console.button(f"Remove the {kind}")).to_be_disabled()
    console.page.get_by_label(f"Type {name} to confirm").fill(name)
    console.button(f"Remove the {kind}").click()
    console.see(f"Removed {name}")


def test_a_webhook_from_its_creation_to_its_removal(browser: Browser, tmp_path: Path, receiver: Receiver) -> None:
    with (
        serving(tmp_path, webhooks_allow="127.0.0.1") as server,
        opened(browser, server) as console,
    ):
        client = server.client()
        client.append("orders", 1)
        console.go("webhooks")
        console.see("No webhooks")
        console.button("Create a webhook").click()
        fill_in(console, Name="shop", Topic="absent", URL=receiver.url)
        console.button("Create").click()
        expect(console.page.get_by_role("alert").first).to_contain_text("absent")
        fill_in(console, Topic="orders")
        console.button("Create").click()
        expect(console.page.get_by_label("Secret", exact=True)).to_contain_text("whsec_")
        secret = console.page.get_by_label("Secret", exact=True).inner_text()
        assert console.violations() == []
        console.button("Close").click()
        expect(console.page.get_by_role("heading", name="shop")).to_be_visible()
        console.see("up to date")
        assert secret not in console.page.content(), "it is shown once"

        receiver.answering = lambda _: BROKEN
        console.button("Test").click()
        console.see("The test was not accepted")
        console.see("status 500")
        console.button("Close").click()
        client.append("orders", 2)
        console.see("retrying")
        attempts = console.page.get_by_role("table", name="Last attempts")
        expect(attempts).to_contain_text("500")
        expect(console.page.get_by_label("Status")).to_contain_text("for 1 record")
        console.picture("webhook")
        console.go("webhooks")
        row = console.page.get_by_role("row", name="shop")
        expect(row).to_contain_text("retrying")
        expect(row).to_contain_text("in ")

        receiver.answering = lambda _: OK
        console.go("webhooks/shop")
        console.button("Try again now").click()
        console.see("up to date")
        console.button("Pause…").click()
        console.button("Pause the webhook").click()
        console.see("shop is paused")
        client.append("orders", 3)
        expect(console.page.get_by_label("Status")).to_contain_text("1 record, everything up to seq 2 is done")
        received = len(receiver.received)
        console.button("Resume").click()
        console.see("up to date")
        assert receiver.wait_for(received + 1)[-1].record["data"] == 3
        console.button("Rotate…").click()
        console.button("Make a new secret").click()
        expect(console.page.get_by_label("Secret", exact=True)).to_contain_text("whsec_")
        console.button("Close").click()
        console.see("signs as well")
        remove(console, "webhook", "shop")
        console.see("No webhooks")


def test_a_pause_asks_for_the_values_of_headers_and_keeps_everything(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("orders", 1)
        hook = {"topic": "orders", "url": "https://shop.example.org/hook", "headers": {"X-Team": "red"}}
        client.put("/v0/webhooks/shop", {**hook, "max_attempts": 7, "order": "none", "tag": "t", "pause_after": 3})
        before = client.get("/v0/webhooks/shop").json
        console.go("webhooks/shop")
        console.button("Pause…").click()
        expect(console.button("Pause the webhook")).to_be_disabled()
        console.page.get_by_label("X-Team").fill("red")
        console.button("Pause the webhook").click()
        console.see("shop is paused")
        after = client.get("/v0/webhooks/shop").json
        changed = {name for name, value in before.items() if after[name] != value}
        assert changed == {"paused", "paused_reason", "performance"}


def test_a_schedule_from_its_creation_to_its_removal(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("reports", "first")
        console.go("schedules")
        console.see("No schedules")
        console.button("Create a schedule").click()
        fill_in(console, Name="yearly", Topic="reports", **{"Cron expression": "0 3 1 1", "Time zone": "UTC"})
        console.page.get_by_label("Data, any JSON").fill('{"big": 12345678901234567890.10}')
        console.button("Create").click()
        expect(console.page.get_by_role("alert").first).to_contain_text("cron")
        fill_in(console, **{"Cron expression": "0 3 1 1 *"})
        console.button("Create").click()
        expect(console.page.get_by_label("Data").last).to_contain_text("12345678901234567890.10")
        assert console.violations() == []
        console.button("Run now").click()
        console.see("Appended seq 2 to reports")
        console.button("Pause").click()
        console.see("after it is resumed")
        # No number of its data has changed on the way.
        assert b'"data":{"big": 12345678901234567890.10}' in client.get("/v0/schedules/yearly").body
        console.button("Resume").click()
        expect(console.button("Pause")).to_be_visible()
        assert client.get("/v0/schedules/yearly").json["paused"] is False
        remove(console, "schedule", "yearly")
        console.see("No schedules")


def test_a_key_is_offered_what_it_may_do_with_webhooks_and_schedules(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,writer-key:read+write") as server:
        client = server.client("root")
        client.append("orders", 1)
        client.put("/v0/webhooks/shop", {"topic": "orders", "url": "https://shop.example.org/secret-path"})
        client.put("/v0/schedules/yearly", {"topic": "orders", "cron": "0 3 1 1 *"})
        with opened(browser, server) as console:
            console.go("webhooks")
            console.page.get_by_label("API key").fill("writer-key")
            console.button("Open the console").click()
            console.see("shop.example.org")
            expect(console.button("Create a webhook")).to_have_count(0)
            console.page.get_by_role("link", name="shop", exact=True).click()
            console.see("Last attempts")
            assert "secret-path" not in console.page.content()
            for action in ("Test", "Pause…", "Resume", "Rotate…", "Remove…"):
                expect(console.button(action)).to_have_count(0)
            console.page.keyboard.press("g")
            console.page.keyboard.press("c")
            console.page.get_by_role("link", name="yearly").click()
            expect(console.button("Run now")).to_be_visible()
            expect(console.button("Remove…")).to_have_count(0)
