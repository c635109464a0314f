"""The console as a person uses it, in a real Chromium against a real server."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, Console, opened
from tests.console.filling import FAILURE, fill_queue
from tests.live.rig import eventually
from tests.serving import ServerProcess, serving

pytestmark = MARKS


def test_a_new_server_teaches_and_shows_the_first_record_as_it_arrives(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        console.page.goto(console.root)
        expect(console.page).to_have_url(f"{console.root}/console/")
        console.see("This server has no topics yet")
        console.see("topics append orders")
        console.picture("first-steps")
        server.client().append("orders", {"item": "tea"})
        console.see("The first record is here")
        console.page.get_by_role("link", name="Open orders").click()
        console.see("Record 1")


def test_the_overview_draws_what_the_server_did(console: Console, server: ServerProcess) -> None:
    client = server.client()

    def busy() -> bool:
        client.append("traffic", *[{"click": number} for number in range(40)])
        client.diff("traffic", limit=100)
        series = client.get("/v0/history").json["series"]["records_in_per_s"]
        return len([value for value in series if value > 0]) >= 3

    eventually(busy, within_s=300)
    console.go("overview")
    expect(console.page.locator(".chart canvas")).to_have_count(10)
    legend = console.page.locator(".chart", has_text="Records").first.locator(".legend")
    expect(legend).to_contain_text(re.compile(r"in [1-9]"))
    console.picture("overview")


def test_a_dead_job_is_found_from_the_overview_and_rescued(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        fill_queue(client)
        page = console.page
        console.go("overview")
        console.see("6 jobs of mail are dead")
        page.get_by_role("link", name="Look at them").click()
        console.see("SMTP 550: mailbox unavailable")
        page.get_by_label("Select this page").check()
        console.picture("dead-jobs")
        console.button("Put back in the queue").click()
        expect(page.get_by_label("Jobs a second, at most")).to_be_visible()
        console.button("Put 6 jobs back").click()
        console.see("No job is dead")
        queue = client.state("mail")["queue"]
        assert (queue["dead"], queue["ready"], queue["in_flight"]) == (0, 66, 8)


def test_one_dead_job_is_explained_and_put_back_for_a_worker_that_must_still_come(
    browser: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/mail", {"type": "queue", "dead_letter": "mail.dead", "max_deliveries": 3})
        client.post("/v0/topics/mail", {"records": [{"data": {"to": "user0"}, "tag": "tenant-0"}]})
        client.post("/v0/topics/mail/claim", {"node": "w"})
        client.post("/v0/topics/mail/nack", {"node": "w", "seqs": [1], "dead_letter": True, "error": "SMTP 550"})
    # After a restart nobody has asked for jobs yet.
    with serving(tmp_path) as server, opened(browser, server) as console:
        page = console.page
        console.go("overview")
        page.get_by_role("link", name="Look at it").click()
        console.see("0 jobs, 1 dead")
        expect(page.get_by_role("navigation", name="Main").locator("[aria-current]")).to_contain_text("Queues")
        row = page.locator("tbody tr")
        expect(row).to_contain_text("1 of 3")
        expect(row).to_contain_text("rejected")
        row.click()
        console.see("gave it up (rejected it) at delivery 1 of 3")
        # Beside the open job, its list still shows what tells jobs apart.
        for cell in ("SMTP 550", "tenant-0", '{"to": "user0"}'):
            expect(row.get_by_text(cell).filter(visible=True)).to_be_in_viewport()
        console.button("Put back in the queue").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("It is tried again")
        expect(dialog).to_contain_text("No worker is asking for jobs")
        expect(dialog).to_contain_text("The job waits until one comes")
        expect(dialog).to_contain_text("redrive")
        expect(page.get_by_label("Jobs a second, at most")).to_have_count(0)
        console.button("Put 1 job back").click()
        console.see("1 job of mail is back in the queue")
        console.see("No job is dead")
        page.get_by_role("link", name="Ready").click()
        console.see("1 job waits, and no worker is asking for jobs: none has since the server started")
        console.see("topics queue work mail --exec")
        client = server.client()
        assert client.post("/v0/topics/mail/claim", {"node": "w"}).json["claimed"][0]["data"] == {"to": "user0"}
        console.see("Workers are busy with 1 job")
        client.post("/v0/topics/mail/ack", {"node": "w", "seqs": [2]})
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.client().post, "/v0/topics/mail/claim", {"node": "w", "wait_ms": 30_000})
            console.see("1 worker is connected and takes jobs as they come")
            client.append("mail", "next")
            assert waiting.result().json["count"] == 1


def test_jobs_are_released_by_tag_after_they_were_counted(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        fill_queue(client)
        console.go("topics/mail/leased")
        console.see("worker-a")
        console.page.get_by_label("Tag").fill("tenant-*")
        console.button("Search").click()
        console.button("Select all that match").click()
        console.button("Release").click()
        console.button("Release 8 jobs").click()
        console.see("No job")
        assert client.state("mail")["queue"]["in_flight"] == 0
        console.button("Pause the queue").click()
        console.see("No more jobs are handed out")
        assert client.state("mail")["queue"]["paused"] is True


def test_a_record_is_reached_by_its_link_its_seq_and_the_arrows(console: Console) -> None:
    page = console.page
    console.go("topics/orders/records?seq=60")
    console.see("Record 60")
    expect(page.locator(".json").first).to_contain_text('"order": 1059')
    console.picture("records")
    page.keyboard.press("ArrowDown")
    console.see("Record 61")
    expect(page).to_have_url(f"{console.root}/console/#/topics/orders/records?seq=61")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Record 61")).to_be_hidden()
    page.get_by_label("Go to seq").fill("20")
    page.keyboard.press("Enter")
    console.see("Record 20")
    console.button("Oldest").click()
    console.see("Seqs 1 – 19 are gone")


def test_records_are_filtered_by_tag_and_text(console: Console) -> None:
    console.go("topics/orders/records")
    console.page.get_by_label("Tag").fill("customer-3")
    console.page.get_by_label("Text").fill('"order": 11')
    console.button("Filter").click()
    console.see("in 281 records")
    rows = console.page.locator("tbody tr")
    expect(rows).to_have_count(6)
    for row in rows.all():
        expect(row).to_contain_text("customer-3")


def test_numbers_are_shown_as_they_were_appended(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        source = '{"big":123456789012345678901234567890,"one":1.0,"exp":1e3,"neg":-0}'
        body = ('{"records":[{"data":' + source + "}]}").encode()
        server.client().post("/v0/topics/numbers", body=body, headers={"Content-Type": "application/json"})
        console.go("topics/numbers/records?seq=1")
        shown = console.page.locator(".json").first
        for number in ("123456789012345678901234567890", "1.0", "1e3", "-0"):
            expect(shown).to_contain_text(number)
        console.go("topics/numbers/append")
        console.page.get_by_label("Data, any JSON").fill('{"big": 98765432109876543210.10}')
        console.button("Append").click()
        console.see("Appended as")
        raw = server.client().post("/v0/topics/numbers/diff", {"from_seq": 1}).body.decode()
        assert '"data":{"big": 98765432109876543210.10}' in raw


def test_an_editor_says_what_is_wrong_before_and_after_sending(console: Console) -> None:
    console.go("topics/orders/append")
    console.page.get_by_label("Data, any JSON").fill('{"a": }')
    console.see("Not valid JSON")
    expect(console.button("Append")).to_be_disabled()
    console.page.get_by_label("Data, any JSON").fill("1")
    console.page.get_by_label("Tag").fill("x" * 300)
    console.button("Append").click()
    expect(console.page.get_by_role("alert").first).to_contain_text("tag")


def test_a_change_of_the_configuration_is_previewed_with_what_it_evicts(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("t", *range(50))
        console.go("topics/t/configuration")
        console.page.get_by_label("cap_records").fill("20")
        console.button("Preview 1 change").click()
        console.see("30 of 50 records would be removed at once")
        console.picture("configuration")
        assert client.state("t")["count"] == 50
        console.button("Change, and lose 30 records").click()
        console.see("Changed 1 field")
        assert client.state("t")["count"] == 20
        console.page.get_by_label("cap_bytes").fill("-4")
        console.button("Preview 1 change").click()
        expect(console.page.get_by_role("alert").first).to_contain_text("cap_bytes")


def test_a_topic_is_deleted_only_by_its_name(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("precious", 1, 2, 3)
        console.go("topics/precious/delete")
        console.button("Delete precious…").click()
        console.see("3 records")
        expect(console.button("Delete the topic")).to_be_disabled()
        console.page.keyboard.press("Escape")
        expect(console.page.locator("dialog")).to_have_count(0)
        console.button("Delete precious…").click()
        console.page.get_by_label("Type precious to confirm").fill("precious")
        console.button("Delete the topic").click()
        console.see("Deleted precious")
        assert client.get("/v0/topics/precious").status == 404


def test_routers_are_drawn_with_their_cycle(console: Console) -> None:
    console.go("routers")
    graph = console.page.locator(".graph svg")
    expect(graph.locator("a")).to_have_count(6)
    expect(graph.locator(".edge")).to_have_count(5)
    expect(graph.locator(".edge.cycle")).to_have_count(1)
    console.picture("routers")


def test_a_failed_pipeline_shows_its_error_and_the_line(console: Console) -> None:
    console.go("overview")
    console.see("Pipeline revenue failed")
    console.page.get_by_role("link", name="Look at the pipeline: revenue").click()
    expect(console.page.get_by_label("Last error").last).to_contain_text(FAILURE)
    expect(console.page.locator(".json .bad")).to_contain_text("data.totl")
    console.picture("pipeline")


def test_a_group_is_reset_after_a_look_at_what_that_does(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.append("orders", *range(10))
        group = {"topic_id": "orders", "group_id": "billing"}
        client.post("/v1/api/topics/consume", {**group, "start": "Earliest"})
        client.post("/v1/api/topics/ack", {**group, "upto_offset": 7})
        console.go("groups")
        console.page.get_by_role("button", name="Reset billing in orders").click()
        console.button("Preview").click()
        console.see("2 → 10")
        assert client.get("/v0/groups").json["groups"][0]["lag"] == 2
        console.button("Reset the group").click()
        console.see("Reset billing in orders")
        assert client.get("/v0/groups").json["groups"][0]["lag"] == 10


def test_keys_search_and_go(console: Console) -> None:
    page = console.page
    console.go("overview")
    console.see("Oldest waiting job")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("EVENTS.07")
    expect(page.locator("#found li")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="shop.events.07")).to_be_visible()
    page.keyboard.press("?")
    console.see("Walk through records and jobs")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_the_server_page_hides_secrets_and_lists_every_endpoint(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="very-secret-key") as server, opened(browser, server) as console:
        console.go("server")
        console.page.get_by_label("API key").fill("very-secret-key")
        console.button("Open the console").click()
        console.see("TOPICS_API_KEYS")
        console.see("not shown")
        assert "very-secret-key" not in console.page.content()
        console.go("server/api")
        console.page.get_by_label("Search").fill("/v0/health")
        console.page.locator("summary", has_text="/v0/health").first.click()
        console.button("Send").click()
        expect(console.page.get_by_label("Answer")).to_contain_text('"status": "ok"')
        assert not [address for address in console.addresses if "very-secret-key" in address]
