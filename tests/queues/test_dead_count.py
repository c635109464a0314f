"""`queue.dead`: how many of a queue's jobs are in its dead-letter topic now, whatever moves or removes them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.queues.queue_rig import QueueRig
from tests.serving import ServerProcess, serving
from topics.engine.log import seq_spans
from topics.engine.queues import dead_letters as letters
from topics.engine.queues.part import letters_of

RESTARTS: list[Any] = [
    pytest.param(QueueRig.reopen, id="stopped"),
    pytest.param(QueueRig.crash, id="killed"),
    pytest.param(lambda rig: (rig.checkpoint(), rig.crash()), id="killed after a checkpoint"),
]


def give_up(rig: QueueRig, count: int, name: str = "q", tag: str | None = None) -> None:
    """So many new jobs, all of them dead letters at once."""
    rig.append(name, *[{"data": number, **({} if tag is None else {"tag": tag})} for number in range(count)])
    rig.nack("w", *rig.claimed(max=count, name=name), name=name, dead_letter=True)


def dead(rig: QueueRig, name: str = "q") -> tuple[int, int]:
    """Now, and ever."""
    state = rig.counters(name)
    return state.dead, state.dead_lettered


@pytest.fixture
def buried(rig: QueueRig) -> QueueRig:
    """Two queues with five and three dead letters in one topic, in turns, among records of its own."""
    rig.queue("q", dead_letter="dead")
    rig.queue("p", dead_letter="dead")
    rig.append("dead", "not a letter")
    give_up(rig, 2)
    give_up(rig, 3, "p", tag="p")
    rig.append("dead", {"data": "neither", "tag": "p"})
    give_up(rig, 3, tag="late")
    return rig


def test_each_queue_counts_its_own(buried: QueueRig) -> None:
    assert dead(buried) == (5, 5)
    assert dead(buried, "p") == (3, 3)


def test_jobs_that_went_home_are_no_longer_dead(buried: QueueRig) -> None:
    buried.redrive("dead", match="late")
    assert dead(buried) == (2, 5)
    buried.redrive("dead")
    assert (dead(buried), dead(buried, "p")) == ((0, 5), (0, 3))
    buried.nack("w", *buried.claimed(max=1), dead_letter=True)
    assert dead(buried) == (1, 6)


def test_deleting_by_seq_and_by_tag_counts(buried: QueueRig) -> None:
    buried.delete("dead", before_seq=5)
    assert (dead(buried), dead(buried, "p")) == ((3, 5), (2, 3))
    buried.delete("dead", match="p")
    assert (dead(buried), dead(buried, "p")) == ((3, 5), (0, 3))
    buried.delete("dead", match="late")
    assert dead(buried) == (0, 5)


def test_retention_counts(buried: QueueRig) -> None:
    buried.configure("dead", cap_records=4)
    assert (dead(buried), dead(buried, "p")) == ((3, 5), (0, 3))
    buried.configure("dead", ttl_ms=1_000)
    buried.clock.advance(1_001)
    assert dead(buried) == (0, 5)


def test_letters_that_a_worker_acks_are_gone(rig: QueueRig) -> None:
    rig.queue(dead_letter="dead")
    rig.queue("dead", dead_letter="deader")
    give_up(rig, 3)
    rig.ack("w", *rig.claimed(name="dead"), name="dead")
    assert dead(rig) == (2, 3)
    rig.nack("w", *rig.claimed(name="dead"), name="dead", dead_letter=True)
    assert (dead(rig), dead(rig, "dead")) == ((1, 3), (1, 1))


def test_a_dropped_topic_holds_nothing_and_neither_does_its_successor(buried: QueueRig) -> None:
    buried.drop("dead")
    assert dead(buried) == (0, 5)
    give_up(buried, 1)
    assert dead(buried) == (1, 6)


def test_another_queue_of_the_same_name_starts_at_nothing(buried: QueueRig) -> None:
    buried.drop("q")
    buried.crash()
    buried.clock.advance(1)
    buried.queue("q", dead_letter="dead")
    assert dead(buried) == (0, 0)
    buried.redrive("dead")
    assert (dead(buried), dead(buried, "p")) == ((0, 0), (0, 3))


def test_only_the_dead_letter_topic_of_now_counts(buried: QueueRig) -> None:
    buried.queue("q", dead_letter="elsewhere")
    assert dead(buried) == (0, 5)
    give_up(buried, 1)
    assert dead(buried) == (1, 6)
    buried.queue("q", dead_letter="dead")
    assert dead(buried) == (5, 6)


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_restart_changes_nothing(buried: QueueRig, restart: Callable[[QueueRig], object]) -> None:
    buried.delete("dead", before_seq=3)
    restart(buried)
    assert (dead(buried), dead(buried, "p")) == ((4, 5), (3, 3))
    restart(buried)
    buried.redrive("dead", match="late")
    restart(buried)
    assert (dead(buried), dead(buried, "p")) == ((1, 5), (3, 3))


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("source", ["ephemeral", "disk"])
@pytest.mark.parametrize("destination", ["ephemeral", "fsync"])
def test_what_lasts_is_counted_after_a_restart(
    rig: QueueRig, source: str, destination: str, restart: Callable[[QueueRig], object]
) -> None:
    rig.queue(durability=source, dead_letter="dead")
    rig.configure("dead", durability=destination)
    give_up(rig, 3)
    assert dead(rig) == (3, 3)
    restart(rig)
    assert rig.look("dead").count == (0 if destination == "ephemeral" else 3)
    assert dead(rig) == (rig.look("dead").count, 3)


def test_at_random(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by reading the stamps, after every kind of change; spans of letters that are gone do not pile up."""
    monkeypatch.setattr(seq_spans, "SPANS_MIN", 4)
    monkeypatch.setattr(seq_spans, "SPANS_PER_SWEEP", 3)
    chance = random.Random(7)
    names = ("q", "p", "r")
    for name in names:
        rig.queue(name, dead_letter="dead")
    for _ in range(150):
        match chance.randrange(8):
            case 0:
                rig.delete("dead", match=chance.choice("xyz"))
            case 1:
                rig.delete("dead", before_seq=chance.randrange(rig.look("dead").head_seq + 2))
            case 2:
                rig.redrive("dead", match=chance.choice("xyz"), limit=chance.randrange(1, 4))
            case 3:
                chance.choice((rig.reopen, rig.crash, rig.checkpoint))()
            case _:
                give_up(rig, chance.randrange(1, 4), chance.choice(names), chance.choice("xyz"))
        homes = [record["meta"]["$dead_letter_from"] for record in rig.records("dead")]
        assert [dead(rig, name)[0] for name in names] == [homes.count(name) for name in names]
    found = letters_of(rig.store.state.by_name["dead"])
    assert found is not None
    assert len(found.encode()) <= 24 * (4 + 3 + 2 * rig.look("dead").count)


def test_letters_that_an_older_version_left_are_found_by_their_stamps(
    buried: QueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters.DeadLetters, "encode", lambda _: None)
    buried.reopen()
    assert (dead(buried), dead(buried, "p")) == ((5, 5), (3, 3))
    buried.redrive("dead", match="late")
    assert dead(buried) == (2, 5)


def test_over_http_and_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue", "dead_letter": "d"})
        client.post("/v0/topics/q", {"records": [{"data": 1}, {"data": 2}]})
        client.post("/v0/topics/q/claim", {"node": "w", "max": 2})
        client.post("/v0/topics/q/nack", {"node": "w", "seqs": [1, 2], "dead_letter": True, "error": "no such user"})
        assert counters(server) == (2, 2)
        (letter, _) = client.post("/v0/topics/d/diff", {}).json["records"]
        assert letter["meta"]["$dead_letter_error"] == "no such user"
        server.kill()
    with serving(tmp_path) as server:
        assert counters(server) == (2, 2)
        server.client().post("/v0/topics/d/redrive", {"limit": 1})
        assert counters(server) == (1, 2)


def counters(server: ServerProcess) -> tuple[int, int]:
    queue = server.client().get("/v0/topics/q").json["queue"]
    return queue["dead"], queue["dead_lettered"]
