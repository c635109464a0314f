"""docs/WEBHOOKS.md is true: its blocks run as they are printed; and `topics webhook` does what its flags say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Done, run
from tests.serving import TOPICS, ServerProcess
from tests.webhooks.receiver import Receiver, Reply, unused_port
from tests.webhooks.test_webhooks_served import until
from topics.engine.webhooks.delivery import WINDOW_MAX
from topics.engine.webhooks.dispatcher import SENDING_MAX
from topics.model.settings import Settings
from topics.model.webhooks.webhook_config import WebhookRequest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "WEBHOOKS.md").read_text()


@pytest.fixture
def url(local: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{local.port}"
    monkeypatch.setenv("TOPICS_URL", url)
    return url


def topics(*arguments: str) -> Done:
    return run(None, *arguments, TOPICS_URL=os.environ["TOPICS_URL"])


@pytest.mark.slow
def test_the_page_runs_as_it_stands(local: ServerProcess, url: str, tmp_path: Path) -> None:
    port = str(unused_port())
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "receiver.py").write_text(code.replace("8000", port))
    environ = {**os.environ, "PATH": f"{TOPICS.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = tmp_path / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-euc", script.replace("8000", port)],
            env=environ,
            cwd=tmp_path,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        assert process.wait() == 0, printed.read_text()
        until(local.client(), "shop", delivered_total=1)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
    assert "received {'test': True}" in printed.read_text()
    assert "received {'order': 1}" in printed.read_text()


def test_the_page_names_every_field_and_limit() -> None:
    for field in WebhookRequest.__struct_fields__:
        assert f"`{'from' if field == 'start' else field}`" in PAGE, field
    assert f"({Settings().max_webhooks:,})" in PAGE
    assert f"{WINDOW_MAX:,} records" in PAGE
    assert f"{SENDING_MAX} messages" in PAGE


def test_a_webhook_is_made_listed_tested_and_removed(url: str, receiver: Receiver) -> None:
    assert topics("topic", "create", "lines").code == 0
    made = topics(
        *("webhook", "create", "w", "lines", receiver.url, "--from", "earliest", "--tag", "x", "--format", "data"),
        *("--header", "X-Key: a:b", "--timeout", "2s", "--concurrency", "4", "--order", "none", "--attempts", "3"),
        *("--backoff", "1s", "--backoff-max", "2m", "--dead-letter", "lines.dead", "--pause-after", "9", "--paused"),
    )
    assert made.err == "topics: created the webhook w, paused\n"
    assert made.out.startswith("whsec_")
    (shown,) = map(json.loads, topics("webhook", "ls", "--topic", "lines", "-o", "json").out.splitlines())
    wanted = {
        "tag": "x",
        "format": "data",
        "headers": {"X-Key": "…"},
        "timeout_ms": 2_000,
        "concurrency": 4,
        "order": "none",
        "max_attempts": 3,
        "backoff_ms": 1_000,
        "backoff_ms_max": 120_000,
        "dead_letter": "lines.dead",
        "pause_after": 9,
        "paused": True,
        "paused_reason": "by request",
    }
    assert wanted.items() <= shown.items()
    assert topics("webhook", "test", "w").err.startswith("topics: delivered in ")
    assert receiver.received[0].headers["x-key"] == "a:b"
    receiver.answering = lambda _: Reply(400, body=b"unknown key")
    refused = topics("webhook", "test", "w")
    assert (refused.code, refused.err) == (1, "topics: not delivered: status 400: unknown key\n")
    rotated = topics("webhook", "rotate", "w", "--grace", "1h")
    assert rotated.out.startswith("whsec_")
    assert "the one before signs until" in rotated.err
    assert topics("webhook", "resume", "w").err == "topics: resumed w\n"
    assert json.loads(topics("webhook", "show", "w").out)["paused"] is False
    assert topics("webhook", "rm", "w", "v").code == 1
    assert topics("webhook", "ls", "--topic", "lines", "-o", "json").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--from", "soon"), 2, "--from is 'soon'"),
        (("--header", "novalue"), 2, "--header is 'novalue'"),
        (("--timeout", "soon"), 2, "--timeout is 'soon'"),
        (("--concurrency", "100"), 3, "concurrency must be 1 to 64"),
    ],
)
def test_mistakes_are_explained(url: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = topics("webhook", "create", "s", "lines", "https://example.org", *arguments)
    assert done.code == code
    assert said in done.err
