"""A server without work rests: a few wake-ups a second instead of seventy, until the next request."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_faults import ServerThread
from tests.faults import FaultyDisk
from tests.live.rig import eventually
from topics.http.loop.sampler import REST_S
from topics.model.settings import Settings
from topics.server import HOUSEKEEPING_S


@pytest.fixture
def resting(tmp_path: Path) -> Iterator[ServerThread]:
    server = ServerThread(Settings(port=0, data_dir=str(tmp_path / "data"), checkpoint_ms=3_600_000), FaultyDisk())
    # A machine that is busy with others lets the loop come late, and a late loop does not rest.
    sampled = server.server._sampled
    server.server._sampler._sampled = lambda _, now_s: sampled(0.0, now_s)
    server.client.append("t", 1)
    eventually(lambda: server.server._sampler.resting)
    yield server
    server.stop()


def test_an_idle_server_wakes_up_a_few_times_a_second(resting: ServerThread) -> None:
    planned_s = {resting.on_loop(lambda: resting.server._turn_s)}

    def five_turns_are_planned() -> bool:
        planned_s.add(resting.on_loop(lambda: resting.server._turn_s))
        return len(planned_s) >= 5

    eventually(five_turns_are_planned)
    # A slow machine makes it longer, and nothing makes it shorter. The first one was planned before the rest.
    assert max(planned_s) - min(planned_s) >= 3 * REST_S


def test_a_request_ends_the_rest(resting: ServerThread) -> None:
    server = resting.server

    def until_next_turn_s() -> float:
        return server._turn_s - server._loop.time()

    def is_awake() -> bool:
        """The turn that a request asks for may come after this question: then the next request is looked at."""
        resting.client.append("t", 2)
        return resting.on_loop(lambda: not server._sampler.resting and until_next_turn_s() <= HOUSEKEEPING_S)

    eventually(is_awake)
    eventually(lambda: server._sampler.resting)


def test_what_a_request_leaves_to_do_is_done_at_once(resting: ServerThread) -> None:
    """A compaction is not the tick's own work: the turn after it begins with it."""
    assert resting.client.post("/v0/compact").status == 200
    assert resting.server.store.snapshots.newest_position > 0
