"""What clients written for these routes do all day, beside a fleet whose consumers die: every message is accounted for.

The whole server runs in the test, on a clock that is moved by hand: no message comes twice because a machine is slow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from topics.client import Client
from topics.client.messages import Consumed
from topics.testing import Engine, ManualClock, engine

VISIBLE_MS = 60_000
COMMIT_EVERY_MS = 5_000
TOPIC = "app.events"


@pytest.fixture
def kit() -> Iterator[Engine]:
    with engine() as opened:
        yield opened


def now_ms(kit: Engine) -> int:
    assert isinstance(kit.clock, ManualClock)
    return kit.clock.now_ms()


class AutoCommitter:
    """Consumes on and on; every five seconds it acks the highest offset it has seen, and never a lower one again."""

    def __init__(self, kit: Engine, client: Client) -> None:
        self.kit = kit
        self.client = client
        self.got: Counter[int] = Counter()
        self._start: Any = "Earliest"
        self._committed_ms = now_ms(kit)
        self._highest = -1

    def poll(self, limit: int = 10) -> Consumed:
        batch = self.client.consume(TOPIC, "auto", start=self._start, limit=limit)
        self.got.update(message.offset for message in batch.messages)
        if batch.messages:
            self._highest = max(self._highest, batch.messages[-1].offset)
            self._start = batch.next_offset
        if now_ms(self.kit) - self._committed_ms >= COMMIT_EVERY_MS:
            self.commit()
        return batch

    def commit(self) -> None:
        self._committed_ms = now_ms(self.kit)
        if self._highest >= 0:
            done = self.client.commit(TOPIC, "auto", self._highest)
            assert done.acknowledged_offset == self._highest
            assert done.held_back == []


def test_a_client_that_commits_its_highest_offset_makes_progress_and_gets_nothing_twice(kit: Engine) -> None:
    client = kit.client()
    client.append_many(TOPIC, list(range(105)))
    syncer = AutoCommitter(kit, client)
    for _ in range(15):
        syncer.poll()
        kit.advance(1_000)
    syncer.commit()
    kit.advance(10 * VISIBLE_MS)
    assert syncer.poll().messages == []
    assert syncer.got == Counter(range(105))
    (standing,) = client.groups(TOPIC, "auto")
    assert (standing.committed_offset, standing.lag, standing.open_claims, standing.expired_claims) == (104, 0, 0, 0)


class Mortal:
    """A consumer of a fleet: takes a batch, works on it for some time, and commits that batch, if it lives."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.batch: Consumed | None = None

    def turn(self, chance: random.Random, handled: Counter[int]) -> bool:
        """Whether it is still alive; it may die with a batch in its hands, or just after it has handled one."""
        if self.batch is None:
            taken = self.client.consume(TOPIC, "fleet", start="Earliest", limit=chance.randint(1, 9))
            self.batch = taken if taken.messages else None
            return chance.random() > 0.1
        handled.update(message.offset for message in self.batch.messages)
        if chance.random() < 0.1:
            return False
        self.client.commit_batch(TOPIC, "fleet", self.batch)
        self.batch = None
        return True


@pytest.mark.parametrize("seed", range(5))
def test_beside_a_fleet_whose_consumers_die_nothing_is_lost(kit: Engine, seed: int) -> None:
    """The fleet acks ranges, the auto-committer everything below its highest offset; each in its own group."""
    chance = random.Random(seed)
    client = kit.client()
    client.append(TOPIC, 0)
    total = 1
    syncer, fleet = AutoCommitter(kit, client), [Mortal(kit.client()) for _ in range(4)]
    handled: Counter[int] = Counter()
    for turn in range(120):
        if turn < 60:
            count = chance.randint(0, 6)
            if count:
                client.append_many(TOPIC, list(range(count)))
            total += count
        place = chance.randrange(len(fleet))
        if not fleet[place].turn(chance, handled):
            fleet[place] = Mortal(kit.client())
        syncer.poll()
        kit.advance(chance.choice((0, 500, 2_000)))
        if turn in (40, 80):
            kit.restart()
    # The living finish, and what the dead left runs out.
    for _ in range(2):
        kit.advance(VISIBLE_MS)
        while (taken := client.consume(TOPIC, "fleet", start="Earliest")).messages:
            handled.update(message.offset for message in taken.messages)
            client.commit_batch(TOPIC, "fleet", taken)
    assert set(handled) == set(range(total)), "whichever consumer died, every message was handled"
    syncer.commit()
    assert syncer.got == Counter(range(total))
    standings = {standing.group: standing for standing in client.groups(TOPIC)}
    for group in ("auto", "fleet"):
        assert (standings[group].committed_offset, standings[group].lag) == (total - 1, 0)


def test_a_worker_that_passes_next_offset_on_sees_everything_once(kit: Engine) -> None:
    """Consume, process, ack, consume with the next offset; most of the time there is nothing new."""
    client = kit.client()
    client.append_many(TOPIC, list(range(7)))
    seen: list[int] = []
    start: Any = "Earliest"
    for turn in range(12):
        batch = client.consume(TOPIC, "workers", start=start, limit=3)
        start = batch.next_offset
        if batch.messages:
            seen += [message.offset for message in batch.messages]
            assert client.commit(TOPIC, "workers", seen[-1]).acknowledged_offset == seen[-1]
        elif turn < 10:
            client.append(TOPIC, turn)
    assert seen == list(range(len(seen)))
    assert client.latest_offsets(TOPIC)[0].last_offset == seen[-1]


def test_a_worker_that_starts_at_the_end_misses_nothing_between_its_polls(kit: Engine) -> None:
    client = kit.client()
    client.append_many(TOPIC, list(range(5)))
    start: Any = "Latest"
    empty = client.consume(TOPIC, "workers", start=start)
    assert (empty.messages, empty.next_offset) == ([], 5)
    client.append_many(TOPIC, [5, 6])
    kit.restart()
    client.append(TOPIC, 7)
    assert [message.offset for message in client.consume(TOPIC, "workers", start=start).messages] == [5, 6, 7]
    client.append(TOPIC, 8)
    assert [message.offset for message in client.consume(TOPIC, "workers", start=start).messages] == [8]


def test_a_client_that_logs_in_first_works_with_a_server_that_asks_for_nothing(kit: Engine) -> None:
    kit.client().append(TOPIC, 0)
    client = kit.client(user="ada", password="whatever")
    assert client.login().user["role"] == "dba"
    assert [message.offset for message in client.consume(TOPIC, "workers", start="Earliest").messages] == [0]
    kit.restart()
    assert client.commit(TOPIC, "workers", 0).acknowledged_offset == 0, "with the token of before"


@pytest.mark.parametrize(("asked_s", "waited_ms"), [(30, 20_000), (20, 16_000), (10, 8_000), (1, 800), (3_600, 20_000)])
def test_a_poll_is_answered_before_a_request_timeout_of_the_same_length(
    kit: Engine, asked_s: int, waited_ms: int
) -> None:
    client = kit.client()
    client.append(TOPIC, 0)
    began_ms = now_ms(kit)
    assert client.consume(TOPIC, "workers", timeout_s=asked_s).messages == []
    assert waited_ms <= now_ms(kit) - began_ms <= waited_ms + 10
