"""Clients that stop reading: bounded memory, no delay for others, a last event, and no loss when they reconnect."""

import os
import time
from pathlib import Path

import pytest

from tests.live.rig import eventually, watching
from tests.live.test_websocket import open_socket
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, serving

STOPPED = 200
RECEIVE_BYTES = 4096


def rss_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def cpu_s(server: ServerProcess) -> float:
    """What the server has worked so far, however long that took beside its neighbours."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_two_hundred_stopped_readers_neither_grow_memory_nor_delay_others(tmp_path: Path) -> None:
    with serving(tmp_path, hot_retain_bytes=1 << 20) as server, watching(server) as watcher:
        client = watcher.client
        client.put("/v0/topics/t", {"cap_bytes": 4 << 20})
        client.append("t", "first")
        reader = watcher.watch({"t": {"tail": True}})
        reader.until("caught-up")
        payload = ["x" * 1000] * 50

        def write(times: int) -> None:
            for _ in range(times):
                head = client.append("t", *payload).json["head_seq"]
                while True:
                    frame = reader.event()
                    if frame.event == "record" and frame.seqs[-1] == head:
                        break

        write(100)
        alone_s = -cpu_s(server)
        write(300)
        alone_s += cpu_s(server)
        url = [watcher.session({"t": {"tail": True}})["stream_url"] for _ in range(STOPPED)]
        stopped = [watcher.open(path, receive_bytes=RECEIVE_BYTES) for path in url]
        write(100)  # 5 MB: more than socket buffers of 200 stopped readers take is held back by now
        before = rss_bytes(server)
        beside_s = -cpu_s(server)
        write(300)
        beside_s += cpu_s(server)
        assert rss_bytes(server) - before < 40 << 20
        assert beside_s < 3 * alone_s + 0.1, "stopped readers cost the server no work"
        assert len(stopped) == STOPPED


def test_a_reader_that_stalls_past_the_grace_is_told_that_it_came_too_late(tmp_path: Path) -> None:
    with serving(tmp_path, buffer_grace_ms=300, slow_consumer_timeout_ms=60_000) as server, watching(server) as watcher:
        client = watcher.client
        client.put("/v0/topics/t", {"cap_records": 20})
        client.append("t", 0)
        stream = watcher.open(watcher.session({"t": {}})["stream_url"], receive_bytes=RECEIVE_BYTES)
        stream.until("caught-up")
        for _ in range(300):
            client.append("t", *["x" * 10_000] * 5)
        time.sleep(0.6)
        seqs: list[int] = []
        gaps: list[tuple[int, int, str]] = []
        while not seqs or seqs[-1] < 1501:
            frame = stream.event()
            if frame.event == "record":
                seqs += frame.seqs
            elif frame.event == "tombstone":
                gaps.append((frame.data["gap_from"], frame.data["gap_to"], frame.data["reason"]))
        missing = {seq for first, last, _ in gaps for seq in range(first, last + 1)}
        assert "from_seq_too_old" in {reason for _, _, reason in gaps}
        assert sorted([*seqs, *missing]) == list(range(2, 1502))
        assert stream.event().event == "caught-up"


def test_a_reader_that_stops_for_good_is_told_and_cut_off_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, slow_consumer_timeout_ms=500) as server, watching(server) as watcher:
        client = watcher.client
        client.append("t", 0)
        url = watcher.session({"t": {}})["stream_url"]
        stream = watcher.open(url, receive_bytes=RECEIVE_BYTES)
        stream.until("caught-up")
        for _ in range(200):
            client.append("t", *["x" * 10_000] * 5)
        eventually(lambda: watcher.metric("topics_sse_connections") == 0)
        assert watcher.metric("topics_watch_sessions") == 1
        seqs: list[int] = []
        while (frame := stream.event()).event != "error":
            seqs += frame.seqs
        assert frame.data["code"] == 408
        with pytest.raises(EOFError):
            stream.event()
        again = watcher.open(url, stream.last_id)
        while not seqs or seqs[-1] < 1001:
            frame = again.event()
            if frame.event == "error":
                # On a busy machine this reader, too, may pause for that long.
                again = watcher.open(url, again.last_id)
            seqs += frame.seqs if frame.event == "record" else []
        assert seqs == list(range(2, 1002))


def test_a_websocket_that_stops_reading_is_cut_off(tmp_path: Path) -> None:
    with serving(tmp_path, slow_consumer_timeout_ms=500) as server, watching(server) as watcher:
        client = watcher.client
        client.append("t", 0)
        with open_socket(server, max_queue=1, close_timeout=0.1) as ws:
            ws.ask("subscribe", topic="t")
            for _ in range(400):
                client.append("t", *["x" * 10_000] * 5)
            eventually(lambda: watcher.metric("topics_sse_connections") == 0, within_s=PATIENCE_S)
