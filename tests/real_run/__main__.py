"""`python -m tests.real_run`: minutes of kills, pauses, full disks and clock steps on real processes, and a verdict."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.real_run.world import RealWorld
from tests.simulation.checkers import check


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the faults and what clients do")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-real-run-") as root:
        world = RealWorld(Path(root), options.seed, options.minutes * 60, print)
        for what in world.machine.missing:
            print(f"without {what}")
        world.run()
    failures = check(world)
    for failure in failures[:20]:
        print(f"  {failure[:2_000]}")
    history, final = world.history, world.finals[0]
    unanswered = sum(not call.status for call in history.calls)
    print(
        f"seed {options.seed}, {options.minutes:g} minutes: {len(failures)} failures; {len(history.calls)} calls, "
        f"{unanswered} of them without an answer; {sum(map(len, final.records.values()))} records in the end; "
        f"{len(history.times('start'))} starts; faults: "
        + ", ".join(f"{name} {count}" for name, count in sorted(world.faults.items()))
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
