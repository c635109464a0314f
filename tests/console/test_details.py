"""What makes a page good, in a real Chromium: nothing jumps, long work can be stopped, copies run, names are shown."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, Console, opened
from tests.console.filling import fill_queue
from tests.live.rig import eventually
from tests.serving import Client, ServerProcess, serving

pytestmark = MARKS


def first_cell(console: Console) -> Any:
    return console.page.locator("tbody tr").first.locator("td").first


def test_a_list_stays_while_the_pointer_is_on_it(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("t", *range(5))
        console.go("topics/t/records")
        expect(first_cell(console)).to_have_text("5")
        first_cell(console).hover()
        client.append("t", "news")
        console.linger(console.page.locator("tbody tr").nth(1))
        expect(first_cell(console)).to_have_text("5")
        console.page.mouse.move(0, 0)
        expect(first_cell(console)).to_have_text("6")


def test_jobs_do_not_change_places_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue"})
        client.append("q", "a", "b", "c")
        console.go("topics/q/ready")
        rows = console.page.locator("tbody tr")
        expect(rows).to_have_count(3)
        rows.nth(1).hover()
        assert client.post("/v0/topics/q/claim", {"node": "w", "max": 1}).json["claimed"]
        place = rows.nth(1).bounding_box()
        console.linger(console.page.locator("tbody tr").nth(1))
        expect(rows).to_have_count(3)
        assert rows.nth(1).bounding_box() == place, "the note moves nothing"
        console.page.mouse.move(0, 0)
        expect(rows).to_have_count(2)


def test_the_newest_records_are_on_top_and_found_first(console: Console, server: ServerProcess) -> None:
    console.go("topics/orders/records")
    expect(first_cell(console)).to_have_text("300")
    console.button("Newest first").click()
    expect(first_cell(console)).to_have_text("201")
    console.page.get_by_label("Tag").fill("customer-3")
    console.button("Filter").click()
    console.see("back to seq 20")
    # Of the tags, 3 is that of the records 4, 21, 38 and so on.
    expect(first_cell(console)).to_have_text("293")
    expect(console.page).to_have_url(f"{console.root}/console/#/topics/orders/records?tag=customer-3")
    console.page.reload()
    expect(first_cell(console)).to_have_text("293")
    console.button("Clear").click()
    expect(first_cell(console)).to_have_text("300")


def test_a_search_is_part_of_the_address(console: Console) -> None:
    console.go("topics")
    console.page.get_by_label("Name contains").fill("events.1")
    expect(console.page.locator("tbody tr")).to_have_count(2)
    expect(console.page).to_have_url(f"{console.root}/console/#/topics?search=events.1")
    console.page.get_by_role("link", name="shop.events.10").click()
    expect(console.page.get_by_role("heading", name="shop.events.10")).to_be_visible()
    console.page.go_back()
    expect(console.page.locator("tbody tr")).to_have_count(2)


def copied(console: Console, form: str) -> str:
    console.page.evaluate("navigator.clipboard.writeText('')")
    console.button(form).click()
    console.page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    return str(console.page.evaluate("navigator.clipboard.readText()"))


SOURCE = '{"big":12345678901234567890.10,"who":"O\'Neil \\"x\\" ü","path":"a\\\\b"}'


def test_a_copied_record_runs_in_a_shell_and_in_python(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        body = '{"records":[{"data":' + SOURCE + ',"tag":"it\'s","node":"n 1","meta":{"k":"v"}}]}'
        client.post("/v0/topics/t", body=body.encode(), headers={"Content-Type": "application/json"})
        with opened(browser, server, permissions=["clipboard-read", "clipboard-write"]) as console:
            console.go("topics/t/records?seq=1")
            console.see("Record 1")
            subprocess.run(["sh", "-c", copied(console, "curl")], check=True, capture_output=True)
            subprocess.run([sys.executable, "-c", copied(console, "Python")], check=True)
            lines = copied(console, "NDJSON")
        shown = client.post("/v0/topics/t/diff", {"include_tags": True}).body.decode()
        assert shown.count(f'"data":{SOURCE}') == 3
        records = [
            {name: value for name, value in record.items() if name not in ("$seq", "$ts")}
            for record in json.loads(shown)["records"]
        ]
        assert records[0] == records[1] == records[2]
        assert json.loads(lines)["$seq"] == 1
        assert SOURCE in lines


def test_the_activity_of_a_queue_has_charts_and_workers(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        fill_queue(client)

        def busy() -> bool:
            work(client)
            return len(client.get("/v0/topics/mail/history").json["ts"]) >= 2

        eventually(busy, within_s=300)
        console.go("topics/mail/activity")
        expect(console.page.locator(".chart canvas")).to_have_count(4)
        failures = console.page.locator(".chart", has_text="Failures").locator(".legend")
        expect(failures).to_contain_text("failed")
        expect(console.page.get_by_role("row", name="worker-c")).to_be_visible()
        console.picture("activity")


def work(client: Client) -> None:
    """Some jobs are appended, done and failed."""
    client.append("mail", *[{"to": f"user{number}@example.org"} for number in range(30)])
    claimed = client.post("/v0/topics/mail/claim", {"node": "worker-c", "max": 20}).json["claimed"]
    seqs = [job["$seq"] for job in claimed]
    client.post("/v0/topics/mail/ack", {"node": "worker-c", "seqs": seqs[2:]})
    client.post("/v0/topics/mail/nack", {"node": "worker-c", "seqs": seqs[:2], "error": "no answer"})


def test_who_holds_a_claim_and_who_staged_are_shown(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("orders", *range(10))
        group = {"topic_id": "orders", "group_id": "billing", "start": "Earliest"}
        client.post("/v1/api/topics/consume", {**group, "limit": 4, "member": "host-7"})
        console.go("groups")
        console.see("host-7")
        fence = client.post("/v0/txns/nightly/fence", {"owner": "run-3"}).json["fence"]
        part = {"stage": "part-0", "topic": "orders", "records": [{"data": 1}], "fence": fence}
        client.post("/v0/txns/nightly/7/stage", part)
        console.go("transactions/nightly")
        console.see("run-3")
        console.button("Abort…").click()
        console.button("Abort the stage").click()
        console.see("No open stages")
        assert client.get("/v0/txns/nightly").json["stages"] == []


def test_a_pipeline_shows_the_end_of_its_log_and_is_paused_and_started(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        definition = {"sources": {"o": {"topic": "orders"}}, "sql": "SELECT * FROM o", "sink": {"topic": "copy"}}
        client.put("/v0/pipelines/copy", definition)
        progress = {"eventTime": {"watermark": "2026-01-01T12:00:00.000Z"}}
        log = [
            {"ts": 1_767_268_800_000, "level": "info", "message": "starts, revision 1"},
            {"ts": 1_767_268_801_000, "level": "error", "message": "failed: <b>no</b> heap"},
        ]
        status = {"state": "running", "runner": "spark-1", "revision": 1, "progress": progress, "log": log}
        client.post("/v0/pipelines/copy/status", {**status, "spark_ui": "http://spark-1:4040"})
        console.go("pipelines/copy")
        console.see("failed: <b>no</b> heap")
        expect(console.page.get_by_role("link", name="Spark UI")).to_have_attribute("href", "http://spark-1:4040")
        expect(console.page.locator("dt", has_text="Watermark")).to_be_visible()
        console.button("Pause").click()
        console.see("paused")
        assert client.get("/v0/pipelines/copy").json["definition"]["enabled"] is False
        console.button("Start").click()
        expect(console.button("Pause")).to_be_visible()
        assert client.get("/v0/pipelines/copy").json["definition"]["enabled"] is True
        console.button("Replace…").click()
        changed = json.dumps({**definition, "sql": "SELECT data FROM o"})
        console.page.get_by_label("Definition, as JSON").fill(changed)
        console.button("Replace").click()
        console.see("starts again at its sources")
        assert client.get("/v0/pipelines/copy").json["definition"]["sql"] == "SELECT * FROM o"
        console.button("Replace, and start again").click()
        console.see("Defined copy")
        assert client.get("/v0/pipelines/copy").json["definition"]["sql"] == "SELECT data FROM o"
        # An address that a runner gives is a link only if it is one.
        client.post("/v0/pipelines/copy/status", {**status, "spark_ui": "javascript:alert(1)"})
        expect(console.page.get_by_role("link", name="Spark UI")).to_have_count(0)


def test_records_are_deleted_by_tag_in_pieces(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        for _ in range(12):
            records = [{"data": number, "tag": f"t{number % 2}"} for number in range(10_000)]
            client.post("/v0/topics/t?return_seqs=false", {"records": records})
        console.go("topics/t/delete")
        console.page.get_by_label("Tag").fill("t1")
        console.button("Count them").click()
        console.see("60,000 of 120,000 records")
        bodies: list[str] = []
        console.page.on("request", lambda request: bodies.append(request.post_data or ""))
        console.button("Delete 60,000 records").click()
        console.see("Deleted 60,000 records of t")
        assert [body for body in bodies if '"before_seq":50001' in body], "one piece of several"
        assert client.state("t")["count"] == 60_000


def test_the_api_page_shows_schemas_with_what_they_name(console: Console) -> None:
    console.go("server/api")
    console.page.get_by_label("Search").fill("/v0/groups/reset")
    console.page.locator("summary", has_text="/v0/groups/reset").first.click()
    console.page.get_by_text("Schema of the reply 200").click()
    expect(console.page.get_by_label("Schema of the reply 200")).to_contain_text("offset_before")
    expect(console.page.get_by_label("Body", exact=True)).to_have_value('{\n  "topic": "",\n  "group": ""\n}')
    console.page.get_by_text("Errors", exact=True).click()
    console.see("topic_not_found")


def test_the_console_works_under_the_path_of_a_proxy(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, base_path="/apps/topics") as server, opened(browser, server) as console:
        server.client().append("orders", {"item": "tea"})
        console.page.goto(f"{console.root}/apps/topics/")
        expect(console.page).to_have_url(f"{console.root}/apps/topics/console/")
        console.page.get_by_role("link", name="Topics", exact=True).click()
        console.page.get_by_role("link", name="orders", exact=True).click()
        console.see('{"item": "tea"}')
        console.page.get_by_role("link", name="Live", exact=True).click()
        expect(console.page.locator(".badge.ok", has_text="Live")).to_be_visible()
        server.client().append("orders", "later")
        console.see('"later"')
        own = [address for address in console.addresses if "/v0/" in address]
        assert own
        assert all(address.startswith(f"{console.root}/apps/topics/v0/") for address in own)
