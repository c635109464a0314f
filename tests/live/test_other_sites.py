"""What pages of other sites can do, in a real browser, with a server without keys: nothing, unless they are listed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.chromium import MARKS, Page, shown, site
from tests.serving import Client, ServerProcess, serving

pytestmark = MARKS

JOBS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        client = server.client()
        client.put("/v0/topics/jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
        client.append("jobs", *range(JOBS))
        client.append("log", "a secret")
        yield server


@pytest.fixture(params=["http://evil.test", "http://127.0.0.1", "http://localhost"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """A page of another site, of another port on this host, and of this machine by another name."""
    with site() as other, shown(f"{request.param}:{other.port}/", tmp_path / "profile") as page:
        yield page


def unharmed(client: Client) -> bool:
    queue = client.state("jobs")
    return (
        (queue["queue"]["ready"], queue["queue"]["in_flight"], queue["count"]) == (JOBS, 0, JOBS)
        and client.get("/v0/topics/dead").status == 404
        and client.payloads("log") == ["a secret"]
        and [item["topic"] for item in client.get("/v0/topics").json["topics"]] == ["jobs", "log"]
    )


def test_a_page_of_another_site_does_nothing(server: ServerProcess, elsewhere: Page) -> None:
    base = f"http://127.0.0.1:{server.port}/v0/topics"
    script = f"""
    var seen = [], base = {json.dumps(base)};
    const image = new Image();
    image.onerror = () => seen.push("img");
    image.src = base + "/jobs/work?node=img&max=1000";
    const style = document.head.appendChild(document.createElement("link"));
    style.rel = "stylesheet";
    style.href = base + "/jobs/work?node=style";
    for (const [method, body] of [["GET"], ["POST", '{{"records":[{{"data":1}}]}}']])
        fetch(base + "/log?by=fetch" + method, {{method, body, mode: "no-cors"}})
            .then(() => seen.push("fetch " + method));
    fetch(base + "/log?by=preflight", {{method: "POST", body: "{{}}", headers: {{"content-type": "application/json"}}}})
        .catch(() => seen.push("preflight"));
    for (const path of ["/log/stream", "/jobs/work?node=events"]) {{
        const source = new EventSource(base + path);
        source.onmessage = () => seen.push("a record");
        source.onerror = () => seen.push("EventSource " + source.readyState);
    }}
    const socket = new WebSocket(base.replace("http", "ws").replace("/topics", "/ws"));
    socket.onopen = () => {{
        seen.push("WebSocket open");
        socket.send(JSON.stringify({{op: "publish", topic: "log", records: [{{data: "x"}}]}}));
    }};
    socket.onclose = () => seen.push("WebSocket closed");
    """
    elsewhere.run(script)
    for what in ("img", "fetch GET", "fetch POST", "preflight", "EventSource 2", "WebSocket closed"):
        elsewhere.wait_for(what)
    for part in ("node=img", "node=style", "by=fetchGET", "by=fetchPOST", "log/stream", "node=events"):
        assert elsewhere.statuses_of(part) == [403], part
    assert not {"a record", "WebSocket open"} & set(elsewhere.run("seen"))
    assert unharmed(server.client())


def test_a_form_and_a_link_of_another_site_do_nothing(server: ServerProcess, elsewhere: Page) -> None:
    base = f"http://127.0.0.1:{server.port}"
    home = elsewhere.run("location.href")
    form = f"""
    document.body.innerHTML = '<form method="post" enctype="text/plain" action="{base}/v0/topics/log?by=form">'
        + '<input name=\\'{{"records":[{{"data":1}}],"node":"\\' value=\\'"}}\\'></form>';
    document.forms[0].submit();
    """
    elsewhere.run(form)
    assert elsewhere.statuses_of("by=form") == [403]
    elsewhere.go(home)
    link = "document.body.innerHTML = '<a href=\"%s\">a link</a>'; document.links[0].click();"
    elsewhere.run(link % f"{base}/v0/topics/jobs/work?node=link")
    assert elsewhere.statuses_of("node=link") == [403]
    for path in ("/", "/console/"):
        # A person may follow a link to a page; there is none yet.
        elsewhere.go(home)
        elsewhere.run(link % f"{base}{path}")
        assert elsewhere.statuses_of(f"{server.port}{path}")[-1] != 403
    assert unharmed(server.client())


def test_a_name_that_comes_to_lead_here_does_nothing(server: ServerProcess, tmp_path: Path) -> None:
    """DNS rebinding: the page and the server have one origin, as far as the browser can tell."""
    with shown(f"http://rebound.test:{server.port}/v0/health", tmp_path / "profile") as page:
        assert page.run("fetch('/v0/topics/log').then(reply => reply.status)") == 403
        assert (
            page.run(
                """new Promise(done => {
                const socket = new WebSocket("ws://" + location.host + "/v0/ws");
                socket.onopen = () => done("open");
                socket.onclose = () => done("closed");
            })"""
            )
            == "closed"
        )
        assert (
            page.run(
                """new Promise(done => {
                const source = new EventSource("/v0/topics/log/stream");
                source.onerror = () => done(source.readyState);
            })"""
            )
            == 2
        )
    assert unharmed(server.client())


def test_the_servers_own_page_and_typed_addresses_are_served(server: ServerProcess, tmp_path: Path) -> None:
    with shown(f"http://127.0.0.1:{server.port}/v0/health", tmp_path / "profile") as page:
        assert page.run("fetch('/v0/topics/log').then(reply => reply.status)") == 200
        page.go(f"http://localhost:{server.port}/v0/topics/log?touch=false")
        assert page.run("JSON.parse(document.body.innerText).topic") == "log"


# --- origins that are listed ---

CORS_SCRIPT = """
(async () => {
    const json = {"content-type": "application/json", "idempotency-key": "k", ...HEADERS};
    const url = BASE + "/v0/topics/page";
    const put = await fetch(url, {method: "POST", headers: json, body: '{"records":[{"data":"hello"}]}'});
    const missing = await fetch(BASE + "/v0/topics/missing", {headers: HEADERS});
    const large = await fetch(url, {method: "POST", headers: json, body: "x".repeat(3000)});
    const patch = await fetch(BASE + "/v0/nothing", {method: "PATCH", headers: json, body: "{}"});
    const first = await new Promise(done => {
        const source = new EventSource(BASE + "/v0/topics/page/stream" + TOKEN);
        source.onmessage = event => { source.close(); done(JSON.parse(event.data).data); };
        source.onerror = () => done("refused");
    });
    return [put.status, missing.status, (await missing.json()).error.code, large.status, patch.status, first];
})()
"""


@pytest.mark.parametrize("key", ["", "a-key"])
def test_a_page_of_a_listed_origin_reads_answers_errors_and_streams(tmp_path: Path, key: str) -> None:
    with site() as friend, site() as other:
        settings: dict[str, Any] = {"api_keys": key} if key else {}
        origin = f"http://friend.test:{friend.port}"
        with serving(
            tmp_path / "data", cors_origins=f"https://app.example, {origin}", max_body_bytes=2000, **settings
        ) as server:
            names = {
                "BASE": f"http://127.0.0.1:{server.port}",
                "HEADERS": {"authorization": f"Bearer {key}"} if key else {},
                "TOKEN": f"?token={key}" if key else "",
            }
            start = "".join(f"var {name} = {json.dumps(value)};" for name, value in names.items())
            with shown(f"{origin}/", tmp_path / "profile") as page:
                page.run(start)
                # A body that is refused before it is read is an answer as well.
                assert page.run(CORS_SCRIPT) == [201, 404, "topic_not_found", 413, 404, "hello"]
                page.go(f"http://friend.test:{other.port}/")
                page.run(start)
                assert (
                    page.run("fetch(BASE + '/v0/topics/page', {headers: HEADERS}).catch(() => 'refused')") == "refused"
                )
