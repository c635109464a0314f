"""Continuing from a checkpoint: the versions of its batches, and the refusal of one that does not fit the commits.

    <state>/<pipeline>/<generation>/topics.json   {"base": …, "start": …}    written before the first batch
                                    offsets/<N>   Spark: batch N is planned; it commits version base + N

The server answers a version that was committed before with "done", so a batch must never get the version of a batch of
another checkpoint: its records would vanish. A checkpoint therefore has a base of its own, above everything that
was committed when it was made, and it fits only if no later version than that of its last planned batch is committed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final, Literal

import msgspec

from topics_spark.errors import NeedsDecision

# Where a pipeline begins if its checkpoint is not there: not at all, where its sources say, or after existing records.
Start = Literal["checkpoint", "start", "end"]
FILE: Final = "topics.json"
OFFSETS: Final = "offsets"
# Between the last commit and the first version of a new checkpoint: more than the batches without rows, which take no
# version, that the old checkpoint can have planned after its last commit.
VERSIONS_APART: Final = 1 << 24


class Resumed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Batch N commits version `base` + N; `start`: where the checkpoint began, unless where its sources say."""

    base: int
    start: Start = "checkpoint"


_decoder = msgspec.json.Decoder(Resumed)


def resume(checkpoint: Path, floor: int, ceiling: int, committed: int | None, start: Start) -> Resumed:
    """How to continue from this directory, which may be new.

    Versions of this generation are from `floor` to below `ceiling`; `committed` is the highest version on the server.
    """
    kept = _load(checkpoint)
    planned = last_planned(checkpoint)
    if kept is None and planned >= 0:
        # Made before checkpoints had bases.
        kept = Resumed(floor)
    if kept is not None and (committed is None or committed <= kept.base + planned):
        return kept
    if kept is None and (committed is None or committed < floor):
        return _store(checkpoint, Resumed(floor))
    assert committed is not None
    if start == "checkpoint":
        raise NeedsDecision("no_checkpoint" if kept is None else "old_checkpoint", _choices(checkpoint, kept is None))
    base = committed + VERSIONS_APART
    if base + VERSIONS_APART > ceiling:
        raise NeedsDecision("no_checkpoint", "it was started anew too often; define it under another name")
    if kept is not None:
        checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}-{uuid.uuid4().hex[:8]}"))
    return _store(checkpoint, Resumed(base, start))


def _choices(checkpoint: Path, absent: bool) -> str:
    what = "is not in this directory" if absent else "is older than what was committed"
    return (
        f"the checkpoint of its batches {what}: {checkpoint}. "
        "Start the runner with the --state that it had, or choose where the pipeline continues: "
        "--from start reads its sources from the beginning again and repeats its output, "
        "--from end leaves out the records that exist now"
    )


def last_planned(checkpoint: Path) -> int:
    """The number of the last batch that Spark has planned; -1 if there is none."""
    return max(batches(checkpoint / OFFSETS), default=-1)


def batches(log: Path) -> list[int]:
    """The numbers of the batches in one of Spark's logs."""
    try:
        return [int(entry.name) for entry in os.scandir(log) if entry.name.isdecimal()]
    except FileNotFoundError:
        return []


def _load(checkpoint: Path) -> Resumed | None:
    with contextlib.suppress(FileNotFoundError):
        return _decoder.decode((checkpoint / FILE).read_bytes())
    return None


def _store(checkpoint: Path, resumed: Resumed) -> Resumed:
    """Complete or not at all: a torn file would be a checkpoint without its base."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    aside = checkpoint / f".{FILE}.{uuid.uuid4().hex}"
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(resumed))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(checkpoint / FILE)
    return resumed
