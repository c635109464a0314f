"""docs/PIPELINES.md does what it says: its definitions are taken, and its first example is run as it stands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.serving import serving
from tests.spark import quick_java
from topics.client import Client, Record, TopicNotFound
from topics.model.requests.ready_made import READY_OPTIONS
from topics_spark.pipelines.definition import load_cases, load_file

PAGE = (Path(__file__).parents[2] / "docs" / "PIPELINES.md").read_text()
BLOCK = re.compile(r"(?:<!-- terminal: (\w+) -->\n)?```sh\n(.*?)```", re.DOTALL)
FIRST = PAGE.partition("## Count errors")[2].partition("\n## ")[0]
WAIT_S_MAX = 720.0


def test_every_definition_on_the_page_is_one(tmp_path: Path) -> None:
    uses: set[str | None] = set()
    for number, text in enumerate(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)):
        file = tmp_path / f"p{number}.toml"
        file.write_text(text)
        assert load_cases(file).keys() == load_file(file).keys()
        uses |= {definition.use for definition in load_file(file).values()}
    assert uses - {None} == set(READY_OPTIONS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_example_counts_errors(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        environ["TOPICS_URL"] = client.url
        environ |= quick_java.environ()
        going: dict[str, subprocess.Popen[bytes]] = {}
        printed = tmp_path / "printed"
        try:
            for terminal, commands in BLOCK.findall(FIRST):
                if terminal:
                    with printed.open("ab") as out:
                        going[terminal] = subprocess.Popen(
                            ["bash", "-c", f"exec {commands}"],
                            cwd=tmp_path,
                            env=environ,
                            stdout=out if terminal == "tail" else subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL,
                        )
                    continue
                done = subprocess.run(
                    ["bash", "-ec", commands],
                    cwd=tmp_path,
                    env=environ,
                    capture_output=True,
                    text=True,
                    timeout=WAIT_S_MAX,
                    check=False,
                )
                assert done.returncode == 0, (commands, done)
                if "pipelines check" in commands:
                    assert "minute:timestamp,errors:bigint" in done.stderr
                    assert json.loads(done.stdout.splitlines()[0])["errors"] >= 1
            deadline_s = time.monotonic() + WAIT_S_MAX
            while counted(client) != 3:
                assert time.monotonic() < deadline_s
                assert going["runner"].poll() is None
                time.sleep(0.2)
            while b'"errors":' not in printed.read_bytes():
                assert time.monotonic() < deadline_s
                assert going["tail"].poll() is None
                time.sleep(0.2)
            going["runner"].send_signal(signal.SIGINT)
            assert going["runner"].wait(WAIT_S_MAX) == 0
        finally:
            for process in going.values():
                process.kill()
                process.wait()


def counted(client: Client) -> int:
    """The newest count of each minute; the example may go over the full minute."""
    try:
        found = [record.data for record in client.read("errors-per-minute") if isinstance(record, Record)]
    except TopicNotFound:
        return 0
    return sum({row["minute"]: row["errors"] for row in found}.values())
