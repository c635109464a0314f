"""docs/SCHEDULES.md is true: its blocks run as they are printed; and `topics schedule` does what its flags say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Done, run
from tests.serving import TOPICS, ServerProcess, serving
from tests.workers.rig import empty, running
from topics.client import Client
from topics.model.schedules.schedule_config import EVERY_MS_MIN, ScheduleRequest
from topics.model.settings import Settings

PAGE = (Path(__file__).parent.parent.parent / "docs" / "SCHEDULES.md").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("TOPICS_URL", url)
    return url


def topics(*arguments: str) -> Done:
    return run(None, *arguments, TOPICS_URL=os.environ["TOPICS_URL"])


@pytest.mark.slow
def test_the_page_runs_as_it_stands(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    environ = {**os.environ, "PATH": f"{TOPICS.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 3 * * * (Europe/Vienna)" in done.stdout
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)
    with running(names["app"]), Client() as client:
        while not any(each.schedule == "nightly-report" for each in client.schedules()):
            pass
        client.run_schedule("nightly-report")
        empty(client, "nightly-report")
    assert "{'report': 'sales'}" in capsys.readouterr().out


def test_the_page_names_every_field_and_limit() -> None:
    for field in ScheduleRequest.__struct_fields__:
        assert f"`{field}`" in PAGE
    assert f"{EVERY_MS_MIN} ms" in PAGE
    assert f"({Settings().max_schedules:,})" in PAGE


def test_a_schedule_is_made_listed_run_and_removed(url: str) -> None:
    assert topics("topic", "create", "lines").code == 0
    made = topics(
        *("schedule", "create", "tick", "lines", '{"a":1}', "--every", "1h", "--tag", "x", "--missed", "all"),
        *("--jitter", "10s", "--paused"),
    )
    assert made.err == "topics: created the schedule tick, paused\n"
    (shown,) = map(json.loads, topics("schedule", "ls", "--topic", "lines", "-o", "json").out.splitlines())
    assert (shown["every_ms"], shown["tag"], shown["missed"]) == (3_600_000, "x", "all")
    assert (shown["jitter_ms"], shown["paused"], shown["data"]) == (10_000, True, {"a": 1})
    assert topics("schedule", "run", "tick").out == "1\n"
    once = topics("schedule", "create", "tick", "lines", "--at", "2h")
    assert once.err.startswith("topics: changed the schedule tick, next at 2")
    assert topics("schedule", "rm", "tick", "tock").code == 1
    assert topics("schedule", "ls", "--topic", "lines", "-o", "json").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("lines", "{x", "--every", "1h"), 2, "DATA is not valid JSON"),
        (("lines", "1", "--every", "soon"), 2, "--every is 'soon'"),
        (("lines", "1", "--cron", "* * *"), 3, "cron '* * *' is not valid"),
        (("lines", "1"), 3, "exactly one of cron, every_ms and at"),
    ],
)
def test_mistakes_are_explained(url: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = topics("schedule", "create", "s", *arguments)
    assert done.code == code
    assert said in done.err
