"""Following the log: what was removed is not taken for its end, and a closing without an answer is repeated."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.bucket.interrupted import Interrupted
from tests.bucket.standbys import until
from topics.storage.bucket.bucket import Unreachable
from topics.storage.bucket.following import FellBehind, Following, Identity
from topics.storage.bucket.slots import LogPiece, TermClosing, encode_slot, slot_key
from topics.storage.bucket.standby_start import StartingPoint
from topics.storage.bucket.terms import BEGINNING, Place, read_slot, run
from topics.storage.disk import Buffer


class LosesAnswers(Interrupted):
    """The first closing is carried out, and its answer is lost."""

    lost = 0

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        if not self.lost:
            self.lost = 1
            raise Unreachable("no answer")


def following(bucket: Interrupted, place: Place = BEGINNING, position: int = 0) -> Following:
    start = StartingPoint("standby", place, "", position, 0)
    mine = Identity("http://standby", 50)
    found = Following(bucket, start, mine, by_itself=True, notify=lambda: None, now_ms=lambda: int(time.time() * 1000))
    found.start()
    return found


def test_a_closing_without_an_answer_is_repeated_and_its_term_is_used(tmp_path: Path) -> None:
    bucket = LosesAnswers(tmp_path / "bucket")
    found = following(bucket)
    taken = until(lambda: found.taken)
    assert taken.joined.term == 1
    assert bucket.lost == 1
    slot = run(bucket, read_slot(BEGINNING))
    assert slot is not None
    assert isinstance(slot[0], TermClosing)
    assert run(bucket, read_slot(Place(1, 0))) is None


@pytest.mark.parametrize("slot", [1, 5])
def test_a_slot_that_was_removed_is_not_the_end_of_the_log(tmp_path: Path, slot: int) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    bucket.create(slot_key(1, slot), encode_slot(LogPiece(1, slot, "primary", 0, 64, 128, 7), b"x" * 64))
    found = following(bucket, Place(1, 0))
    lost = until(lambda: found.lost)
    assert isinstance(lost, FellBehind)
    assert run(bucket, read_slot(Place(1, 0))) is None


def test_a_piece_that_does_not_follow_is_a_gap(tmp_path: Path) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    bucket.create(slot_key(1, 0), encode_slot(LogPiece(1, 0, "primary", 0, 64, 128, 7), b"x" * 64))
    found = following(bucket, Place(1, 0))
    assert isinstance(until(lambda: found.lost), FellBehind)
    assert found.take() is None
