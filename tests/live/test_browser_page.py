"""docs/BROWSER.md is true: its lines are pasted into Chromium; tokens lapse, and no record is lost or repeated."""

import json
import re
from pathlib import Path
from typing import Any

from tests.live.chromium import MARKS, shown, site
from tests.serving import serving

pytestmark = MARKS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "BROWSER.md").read_text()
READ, OTHERS, FOLLOW, APPEND = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
KEY = "backend-key"
TTL_MS = 1_500


def test_the_lines_for_an_own_page_show_records_and_other_events(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.append("orders", "before")
        with shown(f"http://127.0.0.1:{server.port}/v0/health", tmp_path / "profile") as page:
            page.run("var seen = [], show = (seq, data) => seen.push([seq, data]);")
            page.run("var report = (name, data) => seen.push([name, data.reason]);")
            page.run(READ + OTHERS)
            page.run("new Promise(done => source.readyState ? done() : source.onopen = done)")
            client.append("orders", "after")
            page.wait_for([2, "after"])
            client.delete("/v0/topics/orders")
            assert page.wait_for(["topic-deleted", "deleted"]) == [[2, "after"], ["topic-deleted", "deleted"]]


def test_the_lines_for_tokens_go_on_after_a_401(tmp_path: Path) -> None:
    tokens: list[str] = []

    def backend() -> Any:
        # What the page's own server does: it has the key.
        reply = server.client(KEY).post("/v0/stream-tokens", {"topics": ["orders"], "ttl_ms": TTL_MS})
        tokens.append(reply.json["token"])
        return reply.json

    with site({"/stream-token": backend}) as app:
        origin = f"http://localhost:{app.port}"
        with serving(tmp_path / "data", api_keys=f"{KEY},writer:write", cors_origins=origin) as server:
            server.key = KEY
            client = server.client()
            client.append("orders", 0)
            with shown(f"{origin}/", tmp_path / "profile") as page:
                page.run(f"var seen = [], TOPICS_URL = {json.dumps(f'http://127.0.0.1:{server.port}')};")
                page.run(FOLLOW + 'follow("orders", record => seen.push(record.data), "from_seq=0");')
                page.wait_for(0)
                number = 0
                # Every token expires while the page reads; the browser's own attempt to continue with it gets a 401.
                while len(tokens) < 4:
                    number += 1
                    client.append("orders", number)
                    page.wait_for(number)
                assert page.run("seen") == list(range(number + 1))
                assert page.statuses_of(f"token={tokens[0]}", 2)[-1] == 401
                page.run("var clicks = [{x: 1}, {x: 2}];")
                with_key = APPEND.replace("headers: {", 'headers: {"Authorization": "Bearer writer", ')
                page.run(f"(async () => {{ {with_key} }})()")
                assert client.payloads("clicks") == [{"x": 1}, {"x": 2}]
                assert client.diff("clicks")["records"][0]["$node"] == "page-7"
