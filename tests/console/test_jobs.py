"""Lists of jobs while others change them, and on a small screen, in a real Chromium against a real server."""

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, opened
from tests.serving import Client, serving

pytestmark = MARKS

SMALL = {"width": 390, "height": 844}


def bury(client: Client, tags: list[str]) -> None:
    """A queue `mail` whose jobs, one for each tag, are all dead."""
    client.put("/v0/topics/mail", {"type": "queue", "dead_letter": "mail.dead", "max_deliveries": 2})
    client.post("/v0/topics/mail", {"records": [{"data": {"to": f"{tag}@example.org"}, "tag": tag} for tag in tags]})
    seqs = [
        job["$seq"] for job in client.post("/v0/topics/mail/claim", {"node": "w", "max": len(tags)}).json["claimed"]
    ]
    client.post("/v0/topics/mail/nack", {"node": "w", "seqs": seqs, "dead_letter": True, "error": "SMTP 550"})


def put_back(client: Client, *seqs: int) -> None:
    reply = client.post("/v0/topics/mail/jobs", {"action": "redrive", "state": "dead", "seqs": list(seqs)})
    assert reply.json["changed"] == len(seqs)


def test_an_open_job_that_another_person_put_back_offers_nothing_more(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        bury(client, ["one", "two"])
        console.go("topics/mail/dead")
        console.page.locator("tbody tr", has_text="one@").click()
        panel = console.page.get_by_label("Job 1", exact=True)
        expect(panel.get_by_role("button", name="Delete")).to_be_visible()
        # Of another tag: the job is not in the list, and still dead.
        console.page.get_by_label("Tag").fill("two")
        console.button("Search").click()
        expect(console.page.locator("tbody tr")).to_have_count(1)
        expect(panel.get_by_role("button", name="Delete")).to_be_visible()
        put_back(client, 1)
        expect(panel).to_contain_text("This job is no longer dead.")
        expect(panel.get_by_role("button", name=re.compile("Put back|Delete"))).to_have_count(0)
        assert console.violations() == []


def test_an_open_job_that_a_worker_took_offers_nothing_more(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        client.put("/v0/topics/mail", {"type": "queue", "max_deliveries": 2, "dead_letter": "mail.dead"})
        client.append("mail", "first", "second")
        console.go("topics/mail/ready")
        row = console.page.locator("tbody tr", has_text="first")
        expect(row).to_contain_text("0 of 2")
        row.click()
        panel = console.page.get_by_label("Job 1", exact=True)
        expect(panel.get_by_role("button", name="Delete")).to_be_visible()
        client.post("/v0/topics/mail/claim", {"node": "w"})
        expect(panel).to_contain_text("This job is no longer ready.")
        expect(panel.get_by_role("button", name="Delete")).to_have_count(0)


def test_a_dialog_about_jobs_that_are_gone_says_so_and_can_only_be_closed(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        bury(client, ["one", "two", "three"])
        for seq, action in ((1, "Put back in the queue"), (2, "Delete")):
            console.go("topics/mail/dead")
            console.page.get_by_label(f"Select job {seq}").check()
            put_back(client, seq)
            chosen = console.page.get_by_role("region", name="What to do with the selected jobs")
            chosen.get_by_role("button", name=action).click()
            dialog = console.page.get_by_role("dialog")
            expect(dialog).to_contain_text("This job is no longer dead.")
            expect(dialog.get_by_role("button")).to_have_text(["Close"])
            assert console.violations() == []
            dialog.get_by_role("button", name="Close").click()
            expect(dialog).to_have_count(0)
            expect(chosen).to_have_count(0)


def test_jobs_that_were_put_back_are_shown_by_a_link(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        bury(client, ["one", "two"])
        put_back(client, 2)
        console.go("topics/mail/dead")
        console.page.locator("tbody tr").click()
        console.button("Put back in the queue").click()
        console.button("Put 1 job back").click()
        console.page.get_by_role("link", name="Show", exact=True).click()
        expect(console.page.get_by_label("Tag")).to_have_value("one")
        expect(console.page.get_by_role("table", name="Jobs that are ready").locator("tbody tr")).to_have_count(1)


def test_a_dead_letter_topic_leads_to_the_queue(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        bury(client, ["one"])
        console.go("topics/mail.dead")
        console.see("Dead letters of mail")
        console.page.get_by_role("link", name="put them back on its Dead tab").click()
        expect(console.page.get_by_role("table", name="Jobs that are dead").locator("tbody tr")).to_have_count(1)


def test_on_a_small_screen_a_list_has_the_tags_fits_and_can_be_touched(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, opened(browser, server, viewport=SMALL, has_touch=True) as console:
        client = server.client()
        bury(client, ["tenant-of-a-rather-long-name", "two", "three", "four"])
        put_back(client, 2, 3, 4)
        client.post("/v0/topics/mail/claim", {"node": "a-worker-with-a-rather-long-name"})
        taken = client.post("/v0/topics/mail/claim", {"node": "w"}).json["claimed"]
        client.post("/v0/topics/mail/nack", {"node": "w", "seqs": [taken[0]["$seq"]], "delay_ms": 600_000})
        tags = {"dead": "tenant-of", "leased": "two", "delayed": "three", "ready": "four"}
        for state, tag in tags.items():
            console.go(f"topics/mail/{state}")
            table = console.page.get_by_role("table", name=f"Jobs that are {state}")
            row = table.locator("tbody tr")
            expect(row).to_have_count(1)
            expect(row.locator(".payload").get_by_text(tag).first).to_be_in_viewport()
            wide = table.locator("..").evaluate("box => box.scrollWidth - box.clientWidth")
            assert wide == 0, f"{state}: {wide} px too wide"
            for target in (row, row.locator("label"), console.page.locator(".tabs a").first):
                box = target.bounding_box()
                assert box is not None
                assert box["height"] >= 40, (state, box)
            assert console.violations() == []
