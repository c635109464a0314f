"""Who was primary when, what the bucket had when, and so what a take-over may lose.

term 1 of a ━━━━━━━━━━━━━━━━━━━━━━━┓ closed by b
a acknowledges ●        ●      ●   ┗━━━━━━━━━━ term 2 of b ━━━━━
               in the bucket   not: may be gone, unless `replicated`     ○ a: replaced, and does not know it
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.history import Call
from tests.simulation.substitutes import WALL_START_S

if TYPE_CHECKING:
    from tests.simulation.bucket import ObjectStore, Reign


# Reading a clock takes time, and shows milliseconds.
READING_S = 0.01


class Reigns:
    """For the checkers, of a world that has ended."""

    def __init__(self, store: ObjectStore) -> None:
        self._reigns: Sequence[Reign] = store.reigns
        self._times = [reign.from_s for reign in store.reigns]
        self._pieces = store.pieces
        self._renewals = store.renewals
        # A snapshot leads over each of them: some records came to the bucket in no piece.
        self.gaps = store.gaps
        # When a directory was replaced by another one: what only it had is gone.
        self.replaced = [after.from_s for before, after in pairwise(store.reigns) if before.holder != after.holder]

    def owned(self, call: Call) -> bool:
        """Whether the machine that was asked had the newest term at some moment of the call."""
        first = max(0, bisect_right(self._times, call.began_s) - 1)
        last = bisect_right(self._times, call.ended_s)
        return any(reign.machine == call.server for reign in self._reigns[first:last])

    def began(self, machine: str, from_s: float, to_s: float) -> bool:
        """Whether the machine became primary in that time."""
        return any(reign.machine == machine and from_s <= reign.from_s <= to_s for reign in self._reigns)

    def others_announced(self, machine: str, from_s: float, to_s: float) -> bool:
        """Whether the bucket named another machine in that time as the one that has the newest term."""
        return any(
            reign.machine != machine and any(from_s <= at_s < to_s for at_s in self._renewals.get(reign.term, ())[:1])
            for reign in self._reigns
        )

    def hasty(self, lease_s: float, skews_s: Mapping[str, float]) -> Iterator[Reign]:
        """Those that began although the one before had its lease all the time: it was never due for renewal."""
        for before, after in pairwise(self._reigns):
            asked_s = after.asked_ms / 1000 - WALL_START_S - skews_s[after.machine]
            renewals = [at_s for at_s in self._renewals.get(before.term, ()) if at_s < asked_s]
            if before.holder == after.holder or not renewals:
                continue
            rests = [later - earlier for earlier, later in pairwise([before.from_s, *renewals, asked_s])]
            if max(rests) < lease_s - READING_S:
                yield after

    def may_be_gone(self, call: Call) -> bool:
        """Whether the server that answered was replaced since, or had been without knowing it."""
        return not self.owned(call) or any(at_s > call.began_s for at_s in self.replaced)

    def outlived(self, data: str, call: Call) -> bool:
        """Whether the bucket had a record before the server that showed it was replaced: later it may come again."""
        until_s = call.began_s
        if self.owned(call):
            until_s = next((at_s for at_s in self.replaced if at_s > call.began_s), float("inf"))
        return self.has(data, until_s)

    def has(self, data: str, until_s: float = float("inf")) -> bool:
        """Whether a piece of the log has a record with this payload."""
        payload = json.dumps(data).encode()
        return any(payload in frames for at_s, frames in self._pieces if at_s <= until_s)
