"""What scans are compared with: any history of a topic, and the records and gaps that a reader of its server gets."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.engine.rig import Rig
from topics.engine.log.retention import Tombstone
from topics.engine.opening.scan import Part, read_part

Gap = tuple[int, int]

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30), st.sampled_from(["x", "x" * 3000])),
    st.tuples(st.just("delete"), st.sampled_from(["t0", "t1", "t2"])),
    st.tuples(st.just("trim"), st.integers(1, 200)),
    st.tuples(
        st.just("configure"), st.sampled_from([{}, {"cap_records": 40}, {"cap_bytes": 20_000}, {"ttl_ms": 1000}])
    ),
    st.tuples(st.just("class"), st.sampled_from(["ephemeral", "memory", "disk", "fsync"])),
    st.tuples(st.just("wait"), st.integers(1, 900)),
    st.tuples(st.sampled_from(["checkpoint", "reopen", "crash", "drop"])),
)


def take(rig: Rig, step: tuple[Any, ...]) -> None:
    match step:
        case "append", count, text:
            rig.append("t", *[{"data": [text, n], "tag": f"t{n % 4}", "meta": {"n": n}} for n in range(count)])
        case "delete", tag:
            rig.delete("t", match=tag)
        case "trim", seq:
            rig.delete("t", before_seq=seq)
        case "configure", config:
            rig.configure("t", **config)
        case "class", durability:
            rig.configure("t", durability=durability)
        case "wait", ms:
            rig.clock.advance(ms)
        case ("checkpoint",):
            rig.checkpoint()
        case ("reopen",):
            rig.reopen()
        case ("crash",):
            rig.crash()
        case _:
            rig.drop("t")
            rig.append("t", "anew")


def content(parts: list[Part]) -> tuple[list[Any], list[Gap]]:
    """Records and gaps of all parts, each sent through a pickle as to another machine."""
    records: list[Any] = []
    gaps: list[Gap] = []
    for part in parts:
        for piece in read_part(pickle.loads(pickle.dumps(part))):
            if isinstance(piece, Tombstone):
                gaps.append((piece.gap_from, piece.gap_to))
            else:
                records += [msgspec.json.decode(line) for line in piece.lines().splitlines()]
    return records, gaps


def served(rig: Rig, topic: str, from_seq: int = 0) -> tuple[list[Any], list[Gap]]:
    """The same as reads of the server give it."""
    records: list[Any] = []
    gaps: list[Gap] = []
    while True:
        diff = rig.diff(topic, from_seq, limit=1000)
        if diff.tombstone is not None:
            gaps.append((diff.tombstone.gap_from, diff.tombstone.gap_to))
        records += msgspec.json.decode(b"[%b]" % diff.records())
        if diff.caught_up:
            return records, gaps
        from_seq = diff.next_from_seq
