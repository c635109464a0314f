"""docs/WORKERS.md is true: its code runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.workers.rig import empty, eventually, running
from topics.client import Client

PAGE = (Path(__file__).parent.parent.parent / "docs" / "WORKERS.md").read_text()


def test_the_code_of_the_page_runs(
    url: str, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPICS_URL", url)
    the_app, producing, results, chain, fan_in, the_test = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(the_app, names)
    exec(producing, names)
    with running(names["app"]):
        empty(client, "thumbnails")
        empty(client, "mails")
    assert "delivery 1 clip.mov" in capsys.readouterr().out
    (letter,) = client.diff("thumbnails.dead").records
    assert letter.meta is not None
    assert letter.meta["$dead_letter_error"] == "no src"
    exec(the_test, names)
    names["test_a_busy_mailbox_is_tried_again"]()

    later: dict[str, Any] = {"__name__": "page"}
    for code in (results, chain, fan_in):
        exec(code, later)
    client.create("sums", type="queue", keep_results_ms=3_600_000, dead_letter="sums.dead")
    client.create("resize", type="queue")
    client.create("albums", type="queue")
    with later["client"], running(later["app"]):
        later["ask"]()
        later["start"]("holiday", ["a.png", "b.png"])
        eventually(lambda: client.job_group("resize", "holiday").notified_seq is not None)
        empty(client, "albums")
    said = capsys.readouterr().out
    assert "6 {'added': 3}" in said
    assert "nothing to add" in said
    assert "holiday has 2 of 2 images" in said
    assert len(client.diff("publish").records) == 2
