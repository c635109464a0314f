"""Keys in a running server: no object, no variable and no child process holds one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import Client, settle

KEY = "plaintext-of-a-key-that-nothing-may-keep"
SEARCH = Path(__file__).with_name("key_search.py")


class Searched:
    """A server that reports which of its objects hold the key."""

    def __init__(self, data_dir: Path, *arguments: str, **environ: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        settings = {"TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(data_dir), **environ}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, str(SEARCH), KEY[::-1], *arguments]
        self.process = subprocess.Popen(command, env={**clean, **settings}, text=True, **pipes)
        self.port = 0
        for line in self.process.stderr or ():
            if "listening on" in line:
                self.port = int(line.rstrip().rpartition(":")[2].split()[0])
            if "ready: " in line:
                break

    def look(self) -> dict[str, Any]:
        """After the server has left the requests that were answered: a reply is sent before its request is dropped."""
        settle(self.port)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.process.wait(PATIENCE_S), self.process.stderr and self.process.stderr.read())
        return json.loads(line)

    def __enter__(self) -> "Searched":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


NOTHING = {"objects": [], "environ": [], "child": False}


def test_the_search_finds_a_key_that_is_kept(tmp_path: Path) -> None:
    with Searched(tmp_path, TOPICS_API_KEYS="another", SOME_OTHER_VARIABLE=KEY) as server:
        found = server.look()
        assert found["objects"]
        assert (found["environ"], found["child"]) == (["SOME_OTHER_VARIABLE"], True)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(KEY, id="alone", marks=pytest.mark.slow),
        pytest.param(f"{KEY}:read+write:mine.", id="limited", marks=pytest.mark.slow),
        pytest.param(f"first,{KEY}:r,last", id="among others"),
    ],
)
def test_no_object_and_no_variable_holds_a_key_after_the_start(tmp_path: Path, entry: str) -> None:
    with Searched(tmp_path, TOPICS_API_KEYS=entry, TOPICS_API_KEY=KEY) as server:
        assert server.look() == NOTHING
        client = Client(server.port, KEY)
        assert client.get("/v0/topics").status == 200
        client.close()
        assert server.look() == NOTHING


@pytest.mark.slow
def test_a_connection_that_repeats_a_request_does_not_keep_its_key(tmp_path: Path) -> None:
    with Searched(tmp_path, TOPICS_API_KEYS=KEY) as server:
        client = Client(server.port, KEY)
        for _ in range(6):
            assert client.get("/v0/topics").status == 200
            # A server that lags, as one on a busy machine may, sheds other appends.
            assert client.append("t", {"n": 1}, disable_backpressure=True).status in (200, 201)
        assert server.look() == NOTHING
        client.key = KEY[:-1] + "x"
        assert client.append("t", {"n": 1}).status == 401
        client.close()


@pytest.mark.slow
def test_a_key_in_the_settings_file_is_not_kept_either(tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_text(f'api_keys = ["{KEY}:read"]\n')
    with Searched(tmp_path / "data", "--config", str(file)) as server:
        assert server.look() == NOTHING
