"""`python -m tests.real_run`: minutes of kills, pauses, full disks and clock steps on real processes, and a verdict."""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.real_run.world import RealWorld
from tests.simulation.checkers import check

BUILD = Path(__file__).parent.parent.parent / "build"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the faults and what clients do")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-real-run-") as root:
        world = RealWorld(Path(root), options.seed, options.minutes * 60, print)
        for what in world.machine.missing:
            print(f"without {what}")
        failures = judged(world)
    for failure in failures[:20]:
        print(f"  {failure[:2_000]}")
    if failures:
        print(f"  everything that happened is in {keep(world, failures)}")
    history = world.history
    records = sum(map(len, world.finals[0].records.values())) if world.finals else 0
    unanswered = sum(not call.status for call in history.calls)
    print(
        f"seed {options.seed}, {options.minutes:g} minutes: {len(failures)} failures; {len(history.calls)} calls, "
        f"{unanswered} of them without an answer; {records} records in the end; "
        f"{len(history.times('start'))} starts, {world.machine.kills} kills; faults: "
        + ", ".join(f"{name} {count}" for name, count in sorted(world.faults.items()))
    )
    return 1 if failures else 0


def judged(world: RealWorld) -> list[str]:
    """Run it to its end; whatever ends it before is a failure like what the checkers find."""
    try:
        world.run()
        return check(world)
    except Exception:  # noqa: BLE001  its history is kept, and tells why
        return [traceback.format_exc(), *world.mistakes]


def keep(world: RealWorld, failures: list[str]) -> Path:
    """No second run is like the first: all calls, what befell the server, and its logs, in the order of time."""
    history = world.history
    lines = [(call.began_s, repr(call)) for call in history.calls]
    lines += [(one.at_s, str(one)) for one in history.events]
    BUILD.mkdir(exist_ok=True)
    path = BUILD / f"real-run-{world.plan.seed}.txt.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(f"{failure}\n" for failure in failures)
        file.writelines(f"{line}\n" for _, line in sorted(lines))
    return path


if __name__ == "__main__":
    sys.exit(main())
