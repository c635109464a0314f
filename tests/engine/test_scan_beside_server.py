"""Files read while a server process writes, checkpoints, recycles its log and unlinks packs."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.serving import Client, ServerProcess, serving
from topics.engine.log.retention import Tombstone
from topics.engine.opening.scan import Part, Scan, read_part

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

BUSY: dict[str, object] = {
    "checkpoint_bytes": 200_000,
    "wal_file_bytes": 100_000,
    "segment_max_events": 200,
    "hot_retain_segments": 1,
    "checkpoint_ms": 100,
}
SCANS = 60
ROUNDS_LATER = 12


class Writer(threading.Thread):
    """Appends as fast as it can, deletes every tag a moment later, and trims a topic with a cap."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._client: Client = server.client()
        self.stopped = threading.Event()
        # The head that was acknowledged last, by topic.
        self.heads: dict[str, int] = {}

    def run(self) -> None:
        self._client.put("/v0/topics/capped", {"cap_records": 500})
        number = 0
        while not self.stopped.is_set():
            number += 1
            records = [{"data": [number, "w" * 200], "tag": f"t{number % 7}"} for _ in range(20)]
            for topic in ("kept", "capped", "thinned"):
                reply = self._client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": records})
                assert reply.status in (200, 201), reply
                self.heads[topic] = reply.json["head_seq"]
            if number % 5 == 0:
                self._client.post("/v0/topics/thinned/delete", {"match": f"t{(number + 3) % 7}"})


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[tuple[Writer, str]]:
    with serving(tmp_path / "data", **BUSY) as server:
        writer = Writer(server)
        writer.start()
        while len(writer.heads) < 3:
            time.sleep(0.01)
        yield writer, str(tmp_path / "data")
        writer.stopped.set()
        writer.join()
        assert "error" not in server.log.lower(), server.log


def read(parts: list[Part]) -> tuple[list[int], list[tuple[int, int]]]:
    """Seqs and gaps."""
    seqs: list[int] = []
    gaps: list[tuple[int, int]] = []
    for part in parts:
        for piece in read_part(part):
            if isinstance(piece, Tombstone):
                gaps.append((piece.gap_from, piece.gap_to))
            else:
                seqs += [msgspec.json.decode(line)["$seq"] for line in piece.lines().splitlines()]
    return seqs, gaps


def check(topic: str, parts: list[Part], head_seq: int) -> None:
    seqs, gaps = read(parts)
    assert seqs == sorted(set(seqs))
    assert all(seq <= head_seq for seq in seqs)
    if topic == "kept":
        assert (seqs, gaps) == (list(range(1, head_seq + 1)), [])
    elif topic == "capped":
        # Records that were removed before they were read are reported as a gap: nothing is lost silently.
        told = {seq for first, last in gaps for seq in range(first, last + 1)}
        assert set(seqs) | told == set(range(1, head_seq + 1))
    else:
        assert gaps == []


def test_a_scan_finds_all_that_was_acknowledged_before_it(writing: tuple[Writer, str]) -> None:
    writer, path = writing
    # Read some rounds after they were planned, when files have gone.
    plans: deque[tuple[str, list[Part], int]] = deque()
    for _ in range(SCANS):
        acknowledged = dict(writer.heads)
        scan = Scan.open(path)
        for topic, head_seq in acknowledged.items():
            found = scan.topic(topic)
            assert found.head_seq >= head_seq
            plans.append((topic, scan.plan(topic, parts=4), found.head_seq))
        scan.close()
        while len(plans) > 3 * ROUNDS_LATER:
            check(*plans.popleft())


def test_copies_of_routers_and_committed_transactions_are_found_and_what_is_staged_is_not(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.put("/v0/topics/dest", {})
        client.append("source", "before")
        assert client.put("/v0/routers/r", {"source": "source", "dest": "dest", "backfill": True}).status in (200, 201)
        client.append("source", *[["copied", number] for number in range(50)])
        for version in (1, 2):
            records = [{"topic": topic, "data": [version, topic]} for topic in ("source", "fresh")]
            change = {"stage": f"s{version}", "part": 0, "records": records}
            assert client.post(f"/v0/txns/app/{version}/stage", change).status == 200
        assert client.post("/v0/txns/app/1/commit", {"stages": ["s1"]}).status == 200
        while client.state("dest")["head_seq"] < 52:
            time.sleep(0.01)
        scan = Scan.open(str(tmp_path / "data"))
        assert scan.names() == ["dest", "fresh", "source"]
        for topic in scan.names():
            *served, _ = client.get(f"/v0/topics/{topic}/export").body.splitlines(keepends=True)
            (part,) = scan.plan(topic)
            assert b"".join(piece.lines() for piece in read_part(part) if not isinstance(piece, Tombstone)) == b"".join(
                served
            )
        scan.close()
