"""Groups over restarts and crashes of the server and of its consumers, and the settings that they are used with."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jwt
import pytest

from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import START_S_MAX, ServerProcess, serving
from topics.model.setting_types import WrongSetting
from topics.model.settings import load_settings


def consumer_of(server: ServerProcess, topic: str = "t") -> Consumer:
    return Consumer(server.client(token()), topic)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_restart_in_the_middle_of_open_claims(tmp_path: Path, how: str) -> None:
    """That the claims then end in their time is shown in test_claims.py, with a clock moved by hand."""
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        server.stranger().append("t", *range(10))
        first, second, third = (consumer_of(server) for _ in range(3))
        assert first.offsets(limit=2) == [0, 1]
        assert second.offsets(limit=3) == [2, 3, 4]
        assert third.offsets(limit=2) == [5, 6]
        third.ack(6, from_offset=5)
        first.ack(1, from_offset=0)
        getattr(server, how)()
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        consumer = consumer_of(server)
        standing = consumer.standing()
        assert (standing["committed_offset"], standing["open_claims"], standing["acked_ahead"]) == (1, 1, 2)
        assert consumer.offsets(limit=1) == [7], "neither acked nor claimed"
        assert consumer.offsets(limit=10) == [8, 9]
        assert consumer.offsets() == []
        consumer.ack(4, from_offset=2)
        assert consumer.standing()["committed_offset"] == 6


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_who_holds_a_claim_is_known_after_a_restart(tmp_path: Path, how: str) -> None:
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        server.stranger().append("t", *range(10))
        consumer_of(server).offsets(limit=2)
        consumer_of(server).offsets(limit=2, member="host-7")
        refused = consumer_of(server).ask(member="x" * 300)
        assert (refused.status, refused.json["error"]) == (400, "member must be at most 256 bytes")
        getattr(server, how)()
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        (group,) = server.stranger().get("/v0/groups").json["groups"]
        user = jwt.decode(token(), options={"verify_signature": False})["sub"]
        assert [claim["member"] for claim in group["claims"]] == [user, "host-7"]


def test_the_first_latest_is_kept_while_its_poll_still_waits(tmp_path: Path) -> None:
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        server.stranger().append("t", 0)
        waiting = consumer_of(server)

        def wait() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                waiting.ask(start="Latest", timeout_seconds=20)

        thread = threading.Thread(target=wait)
        thread.start()
        watching = consumer_of(server)
        deadline_s = time.monotonic() + START_S_MAX
        while not watching.client.get("/v1/api/topics/groups?topic_id=t").json["groups"]:
            assert time.monotonic() < deadline_s
        server.kill()
        thread.join()
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        server.stranger().append("t", 1)
        assert consumer_of(server).offsets(start="Latest") == [1]


WORKER = """
    import json, sys, time, urllib.request
    port, token, topic, pause_s = sys.argv[1:4] + [float(sys.argv[4])]
    def post(path, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/api/topics/{path}", json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)
    def note(word, offset):
        # One write: a kill leaves whole lines.
        sys.stdout.write(f"{word} {offset}\\n")
        sys.stdout.flush()
    while True:
        request = {"topic_id": topic, "group_id": "workers", "start": "Earliest", "limit": 7, "timeout_seconds": 1}
        batch = post("consume", request)
        for message in batch["messages"]:
            note("got", message["offset"])
        if batch["messages"]:
            time.sleep(pause_s)
            first, last = (batch["messages"][place]["offset"] for place in (0, -1))
            note("acking", last)
            post("ack", {"topic_id": topic, "group_id": "workers", "from_offset": first, "upto_offset": last})
            note("acked", last)
"""


class Worker:
    """A consumer in a process of its own; notes what it got, what it is about to ack, and what it acked."""

    def __init__(self, port: int, topic: str, pause_s: float) -> None:
        arguments = [sys.executable, "-c", textwrap.dedent(WORKER), str(port), token(), topic, str(pause_s)]
        self.got: list[int] = []
        self.acking: list[int] = []
        self.acked: list[int] = []
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, offset = line.split()
            getattr(self, word).append(int(offset))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.crash
@pytest.mark.parametrize("round_number", range(3))
def test_of_two_consumers_one_dies_and_nothing_is_lost_or_acked_twice(tmp_path: Path, round_number: int) -> None:
    total = 200
    with serving(tmp_path / "data", jwt_secret=SECRET, visibility_timeout_secs=10) as server:
        producer = server.stranger()
        producer.append("t", *range(total))
        mortal, survivor = (Worker(server.port, "t", pause_s) for pause_s in (0.05 + 0.03 * round_number, 0.01))
        try:
            deadline_s = time.monotonic() + 2 * START_S_MAX
            while not mortal.acked:
                assert time.monotonic() < deadline_s
                # The other one may be quick enough to leave it nothing.
                producer.append("t", total)
                total += 1
                time.sleep(0.01)
            mortal.kill()
            standing = consumer_of(server).standing()
            while standing["lag"]:
                assert time.monotonic() < deadline_s, standing
                time.sleep(0.05)
                standing = consumer_of(server).standing()
        finally:
            mortal.process.kill()
            survivor.kill()
        assert set(mortal.got) | set(survivor.got) == set(range(total))
        # What the mortal one acked, the survivor was never handed; what it left, it was.
        done = {offset for offset in mortal.got if offset <= max(mortal.acked)}
        assert not done & set(survivor.got)
        left = {offset for offset in mortal.got if offset > max(mortal.acking)}
        assert left <= set(survivor.got)
        # An ack that was on its way when it died was taken as a whole or not at all.
        assert (set(mortal.got) - done - left) & set(survivor.got) in (set(), set(mortal.got) - done - left)
        assert len(survivor.got) == len(set(survivor.got))


def test_a_claim_ends_by_the_setting_of_seconds(hasty_server: ServerProcess) -> None:
    hasty_server.stranger().append("t", 0, 1)
    first, second = consumer_of(hasty_server), consumer_of(hasty_server)
    assert first.offsets() == [0, 1]
    assert second.offsets(timeout_seconds=20) == [0, 1]


@pytest.mark.parametrize(
    ("environ", "seconds", "origin"),
    [
        ({"TOPICS_VISIBILITY_TIMEOUT_SECS": "5"}, 5, "TOPICS_VISIBILITY_TIMEOUT_SECS"),
        ({"KALAMDB_TOPIC_VISIBILITY_TIMEOUT_SECS": "6"}, 6, "KALAMDB_TOPIC_VISIBILITY_TIMEOUT_SECS"),
        ({"KALAMDB_VISIBILITY_TIMEOUT_SECS": "7"}, 7, "KALAMDB_VISIBILITY_TIMEOUT_SECS"),
        (
            {"KALAMDB_TOPIC_VISIBILITY_TIMEOUT_SECS": "6", "KALAMDB_VISIBILITY_TIMEOUT_SECS": "7"},
            6,
            "KALAMDB_TOPIC_VISIBILITY_TIMEOUT_SECS",
        ),
    ],
)
def test_the_visibility_timeout_is_read_from_its_variables(
    tmp_path: Path, environ: dict[str, str], seconds: int, origin: str
) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[topics]\nvisibility_timeout_secs = 90\n")
    settings, origins = load_settings({}, environ, str(path))
    assert (settings.visibility_timeout_secs, origins["visibility_timeout_secs"]) == (seconds, f"environment {origin}")


def test_the_visibility_timeout_is_read_from_the_table_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("max_limit = 7\n[topics]\nvisibility_timeout_secs = 90\n")
    settings, _ = load_settings({}, {}, str(path))
    assert (settings.visibility_timeout_secs, settings.max_limit) == (90, 7)
    path.write_text("visibility_timeout_secs = 91\n")
    assert load_settings({}, {}, str(path))[0].visibility_timeout_secs == 91
    assert load_settings({}, {})[0].visibility_timeout_secs == 60


@pytest.mark.parametrize(
    "text", ["[topics]\nvisibility = 1\n", "topics = 3\n", "[topics]\nvisibility_timeout_secs=0\n"]
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(WrongSetting):
        load_settings({}, {}, str(path))
