"""The lineage of pipelines, in a real Chromium: what each reads and writes, one leading to the next."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.browser import MARKS, opened
from tests.serving import serving

pytestmark = MARKS


def test_pipelines_are_drawn_with_what_they_read_and_write(browser: Browser, tmp_path: Path) -> None:
    clean = {
        "sources": {"o": {"topic": "orders", "schema": "id BIGINT", "dead_letter": "orders.misfits"}},
        "sql": "SELECT id FROM o",
        "sink": {"topic": "orders.clean"},
        "expect": {"known": {"condition": "id > 0", "otherwise": "quarantine to orders.bad"}},
    }
    keep = {
        "sources": {"all": {"pattern": r"orders\.cl.*"}, "names": {"table": "customers"}},
        "sql": "SELECT * FROM all",
        "sink": {"table": "kept"},
    }
    with serving(tmp_path) as server, opened(browser, server) as console:
        client = server.client()
        for name, definition in {"clean": clean, "keep": keep}.items():
            assert client.put(f"/v0/pipelines/{name}", definition).status in (200, 201)
        console.go("pipelines")
        lineage = console.page.get_by_role("region", name="Lineage")
        for said in (
            "Topic orders → Pipeline clean (o)",
            "Pipeline clean → Topic orders.clean",
            "Pipeline clean → Topic orders.misfits (rejected)",
            "Pipeline clean → Topic orders.bad (rejected)",
            r"Topic orders.clean → Topics like orders\.cl.*",
            r"Topics like orders\.cl.* → Pipeline keep (all)",
            "Table customers → Pipeline keep (names)",
            "Pipeline keep → Table kept",
        ):
            expect(lineage.get_by_role("listitem").filter(has_text=said).first).to_be_attached()
        expect(lineage.get_by_role("listitem")).to_have_count(8)
        expect(lineage.get_by_role("link", name="Topic orders.bad")).to_be_visible()
        lineage.get_by_role("link", name="Pipeline keep").click()
        expect(console.page.get_by_role("img", name="Table kept")).to_be_visible()
        expect(console.page.get_by_role("region", name="Lineage").get_by_role("listitem")).to_have_count(3)
