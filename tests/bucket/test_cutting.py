"""A long log that waits is sent in several pieces: each is short enough for one request of a slow line."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bucket.interrupted import Interrupted, die, nothing, refuse, shipping_of, until_shipped
from tests.engine.rig import Rig
from topics.storage.bucket.cutting import PIECE_BYTES_TIMES_MAX, read_frames
from topics.storage.bucket.slots import LOG, LogPiece, decode_slot
from topics.storage.disk import Disk
from topics.storage.wal.log_scan import read_window
from topics.storage.wal.wal import LogSpan

PIECE_BYTES = 1_000
PIECE_BYTES_MAX = PIECE_BYTES * PIECE_BYTES_TIMES_MAX


def pieces(bucket: Interrupted) -> list[tuple[LogPiece, bytes]]:
    found: list[tuple[LogPiece, bytes]] = []
    for listed in bucket.listing(LOG):
        stored = bucket.read(listed.key)
        assert stored is not None
        head, frames = decode_slot(listed.key, stored.data)
        if isinstance(head, LogPiece) and frames:
            found.append((head, bytes(frames)))
    return found


def test_a_start_with_a_long_log_that_was_not_sent_sends_it_in_short_pieces_of_whole_frames(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a", bucket_piece_bytes=PIECE_BYTES)
    rig.configure("r", durability="replicated")
    until_shipped(rig)
    interrupted.before = refuse
    for number in range(100):
        rig.append("t", f"{number} {'x' * 500}")
    rig.append("t", "y" * 10_000)
    rig.append("t", "last")
    sent = len(pieces(interrupted))
    die(rig, interrupted)
    rig.store.directory.close()
    rig = opened("a", bucket_piece_bytes=PIECE_BYTES)
    until_shipped(rig)
    rest = pieces(interrupted)[sent:]
    assert len(rest) >= 10
    for head, frames in rest:
        whole, end = read_window(frames, head.from_position, head.salt)
        assert end == len(frames), "a reader finds whole frames in a piece"
        assert len(frames) <= PIECE_BYTES_MAX or len(whole) == 1
    die(rig, interrupted)
    assert [str(record["data"])[:4].strip("x ") for record in opened("b").records("t")] == [
        *map(str, range(100)),
        "yyyy",
        "last",
    ]


def test_what_waits_while_the_bucket_is_away_is_sent_in_order_when_it_is_back(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    """One change is longer than all that may be sent at once, and what follows it is not left out."""
    rig = opened("a", bucket_piece_bytes=1)
    rig.append("t", 1)
    until_shipped(rig)
    interrupted.before = refuse
    rig.append("t", *[{"data": number} for number in range(50)])
    for number in range(50):
        rig.append("t", number)
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    interrupted.before = nothing
    until_shipped(rig)
    die(rig, interrupted)
    assert len(opened("b").records("t")) == 101


def test_a_log_without_a_frame_where_one_must_be_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(10_000))
    with pytest.raises(OSError, match="no frame at position 64") as refused:
        read_frames(Disk(), LogSpan(str(path), 64, 5_000, 64, 7), 1_000)
    assert refused.value.errno == errno.EIO
