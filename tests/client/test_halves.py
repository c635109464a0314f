"""Two halves with the same names, one made from the other; and neither needs the server."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import topics.client
from tests.patience import PATIENCE_S
from topics.client import AsyncClient, Client

ROOT = Path(__file__).parent.parent.parent
SERVER_SIDE = (
    *("topics.api", "topics.embedded", "topics.engine", "topics.http", "topics.server", "topics.storage"),
    *("h2", "httptools", "jwt", "prometheus_client", "uvloop", "xxhash"),
)


def verbs(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_halves_have_the_same_names() -> None:
    assert verbs(Client) == verbs(AsyncClient)
    assert len(verbs(Client)) > 40


def test_the_synchronous_half_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/sync_half.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_that_is_named_can_be_imported() -> None:
    for name in topics.client.__all__:
        assert getattr(topics.client, name) is not None
    with pytest.raises(AttributeError):
        _ = topics.client.nothing_of_that_name


BLOCKED = """
import sys
blocked = {blocked!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in blocked or name.startswith(tuple(one + "." for one in blocked)):
            raise ImportError(name + " is not for clients")
sys.meta_path.insert(0, Blocker())
import asyncio
from topics.client import *
from topics.client import AsyncClient, Client, ConnectionFailed
client = Client("http://127.0.0.1:1", retries_max=0)
for call in (client.health, client.socket(reconnect_s_max=0).ping, client.producer("t").append(1).result):
    try:
        call()
    except ConnectionFailed:
        print("refused")
async def main():
    async with AsyncClient("http://127.0.0.1:1", retries_max=0) as client:
        try:
            await client.health()
        except ConnectionFailed:
            print("refused")
asyncio.run(main())
"""


def test_the_client_works_without_anything_of_the_server() -> None:
    code = BLOCKED.format(blocked=SERVER_SIDE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused"] * 4


def test_importing_the_client_loads_no_http_library() -> None:
    code = "import sys, topics.client; print({'httpx2', 'asyncio', 'websockets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
