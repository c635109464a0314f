"""The server as a process: starting, failing to start, draining, dying and coming back."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import START_S_MAX, TOPICS, Client, ServerProcess, free_port, serving

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program as it is installed, from its first line."""
    monkeypatch.setattr(ServerProcess, "command", (TOPICS,))


# --- starting ---


BUSY = "a server may already run there: --port or TOPICS_PORT chooses another"


@pytest.mark.usefixtures("installed")
def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ServerProcess(tmp_path, "--log-level", "error", port=port)
        assert server.exit_code() == 2
    assert server.lines == [f"topics: cannot listen on 127.0.0.1:{port}: address already in use; {BUSY}"]


def test_an_unusable_directory_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = ServerProcess(tmp_path / "file" / "data", "--log-level", "error")
    assert server.exit_code() == 2
    assert len(server.lines) == 1
    assert str(tmp_path / "file") in server.log


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path):
        second = ServerProcess(tmp_path, "--log-level", "error")
        assert second.exit_code() == 2
        assert len(second.lines) == 1
        assert str(tmp_path) in second.log


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("keys", "counted"), [("k1,k2:read", "2 API keys"), ("k1", "1 API key")])
def test_the_boot_log_says_what_holds_and_can_be_json_lines(tmp_path: Path, keys: str, counted: str) -> None:
    with serving(tmp_path, "--log-format", "json", api_keys=keys) as server:
        lines = [json.loads(line) for line in server.lines]
        assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
        said = "\n".join(line["message"] for line in lines)
        assert str(tmp_path) in said
        assert counted in said.splitlines()
        assert re.search(r"listening on http://127\.0\.0\.1:\d+", said)
        assert re.search(r"ready: 0 topics, 0 records, recovered in \d+ ms", said)


def test_host_may_carry_the_port(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port="", host=f"127.0.0.1:{port}")
    try:
        assert server.ready().port == port
    finally:
        server.kill()


# --- stopping ---


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_sigterm_ends_long_polls_properly_and_exits_0(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client, waiting = server.client(), server.client()
        client.append("a", 1)
        replies: list[Any] = []
        thread = threading.Thread(
            target=lambda: replies.append(waiting.post("/v0/topics/a/diff", {"from_seq": 1, "wait_ms": 30_000}))
        )
        thread.start()
        while client.state("a")["last_read_ts"] is None:
            time.sleep(0.01)
        assert server.terminate() == 0
        thread.join(timeout=START_S_MAX)
        assert replies[0].status == 200
        assert (replies[0].json["records"], replies[0].json["next_from_seq"]) == ([], 1)
        assert "stopped" in server.log


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_sigint_drains_too_and_nothing_is_accepted_any_more(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        port = server.port
        server.client().append("a", 1)
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=START_S_MAX)


def test_a_clean_stop_keeps_everything_but_ephemeral_records(tmp_path: Path) -> None:
    same = ("head_seq", "earliest_seq", "count", "bytes", "config", "epoch", "last_write_ts")
    classes = ("memory", "disk", "fsync")
    with serving(tmp_path) as server:
        client = server.client()
        client.append("ephemeral", 1, 2, 3, config={"durability": "ephemeral"})
        for name in classes:
            client.append(name, *range(100), config={"durability": name})
            client.post(f"/v0/topics/{name}/delete", {"before_seq": 11})
            client.append(name, "k", idempotency_key="k")
        before = {name: client.state(name) for name in classes}
        assert server.terminate() == 0
    assert list((tmp_path / "shard-00" / "snapshots").iterdir()), "a last checkpoint was written"
    with serving(tmp_path) as server:
        client = server.client()
        for name in classes:
            after = client.state(name)
            assert {field: after[field] for field in same} == {field: before[name][field] for field in same}
            assert client.payloads(name) == [*range(10, 100), "k"]
            assert client.append(name, "k", idempotency_key="k").json["deduped"] is True
            assert client.append(name, 1).json["first_seq"] == 102
        assert client.state("ephemeral")["config"]["durability"] == "ephemeral"
        assert client.payloads("ephemeral") == []
        assert client.append("ephemeral", 4).json["first_seq"] == 4


# --- dying ---


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_kill_9_again_and_again_loses_nothing_that_was_acknowledged(tmp_path: Path, durability: str) -> None:
    acknowledged: dict[int, str] = {}
    rounds = 4 * int(os.environ.get("TOPICS_TORTURE", "1"))
    for round_number in range(rounds):
        with serving(tmp_path) as server:
            keys = [f"{round_number}-{writer}" for writer in range(4)]
            clients = [server.client() for _ in keys]
            threads = [
                threading.Thread(target=write_until_killed, args=(client, durability, key, acknowledged))
                for client, key in zip(clients, keys, strict=True)
            ]
            for thread in threads:
                thread.start()
            while len(acknowledged) < 50 * (round_number + 1):
                time.sleep(0.001)
            server.kill()
            for thread in threads:
                thread.join(timeout=START_S_MAX)
    with serving(tmp_path) as server:
        stored = read_all(server.client())
    assert {seq: stored.get(seq) for seq in acknowledged} == acknowledged
    assert sorted(stored) == list(range(1, len(stored) + 1)), "no gap and nothing twice"


def write_until_killed(client: Client, durability: str, key: str, acknowledged: dict[int, str]) -> None:
    for number in range(1_000_000):
        payload = f"{key}-{number}"
        try:
            reply = client.append("a", payload, config={"durability": durability})
        except OSError:
            return
        acknowledged[reply.json["first_seq"]] = payload


def read_all(client: Client) -> dict[int, str]:
    stored: dict[int, str] = {}
    cursor = 0
    while True:
        diff = client.diff("a", from_seq=cursor, limit=1000)
        assert diff["tombstone"] is None
        for record in diff["records"]:
            assert record["$seq"] not in stored
            stored[record["$seq"]] = record["data"]
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            return stored


# --- the README ---


def first_screen() -> list[str]:
    """The curl lines of the README, as it prints them."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("curl ")]


def test_the_first_screen_of_the_readme_works_as_printed(tmp_path: Path) -> None:
    append, diff = first_screen()[:2]
    with serving(tmp_path) as server:

        def run(command: str) -> Any:
            shell = command.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
            done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)

        assert run(append)["seqs"] == [1, 2]
        assert [(record["$seq"], record.get("$tag")) for record in run(diff)["records"]] == [
            (1, "customer-7"),
            (2, None),
        ]
