"""Watching a topic that matters little while the server is under pressure."""

from pathlib import Path

import pytest

from tests.contract.test_throttle import lagging
from tests.live.rig import Event, watching
from tests.serving import serving


@pytest.mark.slow
def test_a_paced_topic_is_told_by_a_429_frame_and_the_stream_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path) as server, watching(server) as watcher:
        client = watcher.client
        client.put("/v0/topics/low", {"priority": -1000})
        client.append("low", 1)
        stream = watcher.watch({"low": {"tail": True}}, heartbeat_ms=60_000)
        stream.until("caught-up")
        with lagging(server):
            while client.append("low", 1).status == 200:
                pass
            late = watcher.watch({"low": {"tail": True}})
            told = late.event()
            assert told.event == "error"
            assert told.id is None
            assert (told.data["code"], told.data["topics"]) == (429, ["low"])
            assert told.data["retry_after_ms"] > 0
        assert late.event(30).event == "caught-up"
        seen: list[Event] = [stream.event()]
        while seen[-1].event != "record":
            seen.append(stream.event())
        assert client.append("low", 2, disable_backpressure=True).status == 200
