"""`topics backup` and `topics restore` on real servers: everything comes back, and no partial file is left."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import launching
from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import TOPICS, Client, ServerProcess, serving

# More than a pipe, two sockets and the server's own buffers take.
BULKY = "x" * 50_000
BULKY_RECORDS = 1_000
BUSY = {"checkpoint_ms": 50, "checkpoint_bytes": 1 << 20, "wal_file_bytes": 1 << 20}


def environ(port: int | None = None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return clean | ({} if port is None else {"TOPICS_URL": f"http://127.0.0.1:{port}"})


def run_topics(*arguments: object, port: int | None = None, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return launching.run([*map(str, arguments)], environ(port), given)


def assert_fine(ran: subprocess.CompletedProcess[bytes]) -> None:
    assert ran.returncode == 0, ran.stderr.decode()


def assert_refused(ran: subprocess.CompletedProcess[bytes], code: int, *words: str) -> None:
    line = ran.stderr.decode()
    assert ran.returncode == code, line
    assert line.count("\n") == 1, line
    assert all(word in line for word in words), line


def all_records(client: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        diff = client.diff(topic, from_seq=cursor, include_tags=True, limit=1000)
        found += diff["records"]
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A server with little in it, and a backup of it."""
    path = tmp_path_factory.mktemp("small")
    with serving(path / "data") as server:
        client = server.client()
        client.append("a", 1, 2, 3)
        assert_fine(run_topics("backup", path / "b.tar", port=server.port))
        yield server, path / "b.tar"


# --- everything comes back ---


def make_one_of_everything(client: Client) -> None:
    client.put("/v0/topics/src", {"durability": "fsync"})
    client.put("/v0/topics/jobs", {"type": "queue", "leases_durable": True})
    client.put("/v0/routers/r1", {"source": "src", "dest": "dst"})
    client.post("/v0/topics/src", {"records": [{"data": {"n": n}, "tag": f"t{n % 3}"} for n in range(50)]})
    client.post("/v0/topics/src", {"records": [{"data": "once"}], "idempotency_key": "key-1"})
    client.post("/v0/topics/src/delete", {"match": "t1"})
    client.append("jobs", *range(10))
    claimed = client.post("/v0/topics/jobs/claim", {"node": "w1", "max": 4, "lease_ms": 600_000})
    assert claimed.status == 200, claimed
    seqs = [job["$seq"] for job in claimed.json["claimed"]]
    assert client.post("/v0/topics/jobs/ack", {"node": "w1", "seqs": seqs[:2]}).status == 200
    client.append("news", *range(10))


def comparable(client: Client) -> dict[str, Any]:
    """What a reader can see, without what only time changes."""
    seen: dict[str, Any] = {topic: all_records(client, topic) for topic in ("src", "dst", "jobs")}
    for topic in ("src", "dst", "jobs"):
        state = client.state(topic)
        seen[f"{topic} state"] = {
            name: state[name] for name in ("head_seq", "epoch", "earliest_seq", "count", "config")
        }
    seen["router"] = {name: value for name, value in client.get("/v0/routers/r1").json.items() if name != "performance"}
    leases = client.get("/v0/topics/jobs/leases").json["leases"]
    seen["leases"] = [{name: lease[name] for name in ("$seq", "node", "lease_id", "deadline")} for lease in leases]
    return seen


def test_a_restored_server_has_records_queues_routers_groups_and_keys_as_they_were(tmp_path: Path) -> None:
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        client = server.client()
        make_one_of_everything(client)
        group = Consumer(server.client(token()), "news")
        assert group.offsets(limit=5) == [0, 1, 2, 3, 4]
        group.ack(2)
        standing = group.standing()
        while client.get("/v0/routers/r1").json["lag"]:
            pass
        before = comparable(client)
        assert_fine(run_topics("backup", tmp_path / "b.tar", port=server.port))
    assert_fine(run_topics("restore", tmp_path / "b.tar", tmp_path / "copy", "--moved"))
    with serving(tmp_path / "copy", jwt_secret=SECRET) as server:
        client = server.client()
        assert comparable(client) == before
        assert Consumer(server.client(token()), "news").standing() == standing
        again = client.post("/v0/topics/src", {"records": [{"data": "once"}], "idempotency_key": "key-1"}).json
        assert again["deduped"] is True
        next_jobs = client.post("/v0/topics/jobs/claim", {"node": "w2", "max": 10}).json["claimed"]
        assert [job["data"] for job in next_jobs] == list(range(4, 10)), "two are done and two are leased"


def test_a_copy_numbers_on_above_what_the_server_may_have_handed_out(small: tuple[ServerProcess, Path]) -> None:
    _, archive = small
    copy = archive.with_name("copy")
    assert_fine(run_topics("restore", archive, copy))
    with serving(copy) as server:
        client = server.client()
        assert [record["data"] for record in all_records(client, "a")] == [1, 2, 3]
        told = client.diff("a", from_seq=1_000)
        assert told["tombstone"]["reason"] == "lost"
        assert client.append("a", 4).json["first_seq"] == told["tombstone"]["gap_to"] + 1 > 1_000_000


@pytest.mark.slow
def test_what_was_acknowledged_before_is_in_it_whatever_happens_meanwhile(tmp_path: Path) -> None:
    with serving(tmp_path / "data", **BUSY) as server:
        stop = threading.Event()
        acknowledged = {"w0": 0, "w1": 0}

        def write(topic: str) -> None:
            client = server.client()
            number = 0
            while not stop.is_set():
                count = 20
                payloads = [{"n": number + offset, "pad": "p" * 500} for offset in range(count)]
                assert client.append(topic, *payloads).status in (200, 201)
                number += count
                acknowledged[topic] = number
                if number % 2000 == 0:
                    client.delete("/v0/topics/churn")
                    client.append("churn", *["c" * 10_000] * 50)
                    client.post("/v0/topics/churn/delete", {"before_seq": 30})

        writers = [threading.Thread(target=write, args=(topic,)) for topic in acknowledged]
        for writer in writers:
            writer.start()
        while min(acknowledged.values()) < 3_000:
            time.sleep(0.01)
        before = dict(acknowledged)
        assert_fine(run_topics("backup", tmp_path / "b.tar", port=server.port))
        stop.set()
        for writer in writers:
            writer.join()
        originals = {topic: all_records(server.client(), topic) for topic in acknowledged}
    assert_fine(run_topics("restore", tmp_path / "b.tar", tmp_path / "copy"))
    with serving(tmp_path / "copy") as server:
        for topic, count in before.items():
            records = all_records(server.client(), topic)
            assert len(records) >= count
            assert records == originals[topic][: len(records)], "a prefix, record by record"


def test_a_backup_goes_through_pipes(small: tuple[ServerProcess, Path], tmp_path: Path) -> None:
    server, _ = small
    made = run_topics("backup", "-", port=server.port)
    assert_fine(made)
    assert_fine(run_topics("restore", "-", tmp_path / "copy", given=made.stdout))
    assert (tmp_path / "copy" / "meta.json").exists()


# --- what is refused, and leaves nothing ---


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_cut_backup_is_refused(small: tuple[ServerProcess, Path], tmp_path: Path, share: float) -> None:
    whole = small[1].read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: int(len(whole) * share)])
    assert_refused(run_topics("restore", tmp_path / "cut.tar", tmp_path / "copy"), 1, "cut", "nothing was restored")
    assert not (tmp_path / "copy").exists()


def test_a_changed_backup_is_refused_and_an_empty_directory_stays_empty(
    small: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    whole = bytearray(small[1].read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / "changed.tar").write_bytes(whole)
    (tmp_path / "copy").mkdir()
    assert_refused(run_topics("restore", tmp_path / "changed.tar", tmp_path / "copy"), 1, "nothing was restored")
    assert not list((tmp_path / "copy").iterdir())


@pytest.mark.slow
def test_damage_that_the_server_had_is_named_and_can_be_repaired(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.client().append("a", *["x" * 1000] * 100)
        assert server.terminate() == 0
    (pack,) = (tmp_path / "data").rglob("*.pack")
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    with serving(tmp_path / "data") as server:
        assert_fine(run_topics("backup", tmp_path / "b.tar", port=server.port))
    refused = run_topics("restore", tmp_path / "b.tar", tmp_path / "copy")
    assert_refused(refused, 1, "had damage", "topic a: seqs 5", "--no-verify")
    assert not (tmp_path / "copy").exists()
    assert_fine(run_topics("restore", "--no-verify", tmp_path / "b.tar", tmp_path / "copy"))
    assert_fine(run_topics("repair", "--yes", tmp_path / "copy"))
    with serving(tmp_path / "copy") as server:
        before = server.client().diff("a", from_seq=0)
        assert 40 <= before["next_from_seq"] < 60
        assert server.client().diff("a", from_seq=before["next_from_seq"])["tombstone"]["reason"] == "lost"


def test_a_directory_with_something_in_it_is_refused(small: tuple[ServerProcess, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert_refused(run_topics("restore", small[1], tmp_path), 2, "not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_that_is_there_is_replaced_only_by_force(small: tuple[ServerProcess, Path], tmp_path: Path) -> None:
    server, _ = small
    file = tmp_path / "b.tar"
    file.write_text("mine")
    assert_refused(run_topics("backup", file, port=server.port), 2, "--force")
    assert file.read_text() == "mine"
    assert_fine(run_topics("backup", file, "--force", port=server.port))
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_server_there_is_no_file(tmp_path: Path) -> None:
    assert_refused(run_topics("backup", tmp_path / "b.tar", port=9), 5, "topics serve")
    assert not list(tmp_path.iterdir())


# --- killed in the middle ---


def begun_backup(server: ServerProcess, target: str, **more: Any) -> Any:
    return subprocess.Popen([TOPICS, "backup", target], env=environ(server.port), **more)


def fill(client: Client) -> None:
    for _ in range(0, BULKY_RECORDS, 100):
        assert client.append("a", *[BULKY] * 100).status in (200, 201)


@pytest.mark.crash
@pytest.mark.slow
def test_a_killed_client_leaves_a_server_that_makes_the_next_backup(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        fill(server.client())
        # Nobody reads the pipe, so it is in the middle when it is killed.
        begun = begun_backup(server, "-", stdout=subprocess.PIPE)
        assert begun.stdout is not None
        begun.stdout.read(1000)
        begun.kill()
        begun.wait()
        begun.stdout.close()
        while (again := run_topics("backup", tmp_path / "b.tar", port=server.port)).returncode:
            assert b"already" in again.stderr
        assert_fine(run_topics("restore", tmp_path / "b.tar", tmp_path / "copy"))


@pytest.mark.crash
@pytest.mark.slow
def test_a_killed_server_leaves_no_file_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "data", **BUSY) as server:
        fill(server.client())
        begun = begun_backup(server, str(tmp_path / "b.tar"), stderr=subprocess.PIPE)
        while not (tmp_path / "b.tar.partial").exists():
            time.sleep(0.001)
        os.kill(begun.pid, signal.SIGSTOP)
        server.kill()
        os.kill(begun.pid, signal.SIGCONT)
        _, told = begun.communicate()
        # It may have had everything in its buffers when the server stopped.
        assert begun.returncode == 5 or (tmp_path / "b.tar").exists(), told
        assert not (tmp_path / "b.tar.partial").exists()
    with serving(tmp_path / "data") as server:
        assert len(all_records(server.client(), "a")) == BULKY_RECORDS


@pytest.mark.crash
@pytest.mark.slow
def test_a_killed_restore_is_never_served_and_can_be_run_again(
    small: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    whole = small[1].read_bytes()
    copy = tmp_path / "copy"
    begun = subprocess.Popen([TOPICS, "restore", "-", copy], env=environ(), stdin=subprocess.PIPE)
    assert begun.stdin is not None
    begun.stdin.write(whole[: len(whole) // 2])
    begun.stdin.flush()
    while not (copy / "restoring").exists():
        time.sleep(0.001)
    begun.kill()
    begun.wait()
    begun.stdin.close()
    refused = run_topics("serve", "--data-dir", copy, "--port", 0)
    assert refused.returncode == 2
    assert b"topics restore" in refused.stderr
    # Killed later, when the data is in its place and `meta.json` is not, it is the same.
    (copy / "shard-00").mkdir()
    assert b"topics restore" in run_topics("repair", "--yes", copy).stderr
    assert_fine(run_topics("restore", small[1], copy))
    with serving(copy) as server:
        assert json.loads(server.client().get("/v0/ready").body)["topics"] == 1
