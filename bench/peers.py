"""This server beside Redis, NATS, PostgreSQL, RQ and Celery: the same work in the same minutes, in turns."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.contestants.bare import Bare, RawSync
from bench.contestants.contestant import JOBS, LIBRARY_JOBS, Contestant, Missing
from bench.contestants.job_libraries import Celery, Rq, TopicsWorkers
from bench.contestants.nats import Nats
from bench.contestants.ours import Ours
from bench.contestants.postgres import Postgres
from bench.contestants.redis_streams import RedisStreams
from bench.contestants.replies import replies_of
from bench.load.directories import on_disk
from bench.load.trees import Tree, trees_for
from bench.load.wrk import WrkFailed
from bench.report import contest, page

ROUNDS = 5
RUN_S_MAX = 14 * 60
# Errors of one contestant in one round, which are reported with the figures.
FAULTS = (RuntimeError, AssertionError, OSError, ValueError, TimeoutError, subprocess.SubprocessError, WrkFailed)


def contestants(wanted: Sequence[Tree], root: Path) -> list[Contestant]:
    ours: list[Contestant] = [Ours(tree, root / "filled") for tree in wanted]
    workers: list[Contestant] = [TopicsWorkers(tree) for tree in wanted]
    replies = replies_of(wanted[0], root)
    return [*ours, RedisStreams(), Nats(), Postgres(), Bare(replies), RawSync(), *workers, Rq(), Celery()]


def prepared(wanted: Sequence[Contestant], root: Path, notes: list[str]) -> list[Contestant]:
    """Those that are installed; the others are named."""
    found: list[Contestant] = []
    for number, contestant in enumerate(wanted):
        directory = root / f"prepared-{number}"
        directory.mkdir()
        try:
            contestant.prepare(directory)
            found.append(contestant)
        except Missing as missing:
            notes.append(f"{contestant.name} is left out: there is no {missing}")
        except FAULTS as error:
            notes.append(f"{contestant.name} is left out: {error!r}")
    return found


def round_of(number: int, wanted: Sequence[Contestant], root: Path, results: contest.Results) -> None:
    """One round, in which each runs once, with another one first each time."""
    first = number % len(wanted)
    for contestant in [*wanted[first:], *wanted[:first]]:
        directory = root / "round"
        directory.mkdir()
        # Postgres is another user.
        directory.chmod(0o777)
        try:
            for row, value in contestant.measure(directory):
                results.add(row, contestant.name, number, value)
                print(f"{number} | {contestant.name} | {row} | {value:,.3f}", file=sys.stderr, flush=True)
        except FAULTS as error:
            results.notes.append(f"{contestant.name} failed in round {number}: {error!r}")
            print(results.notes[-1], file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def measure(wanted: Sequence[Tree], root: Path, rounds: int = ROUNDS) -> tuple[contest.Results, int]:
    """The results, and how many rounds there was time for."""
    notes: list[str] = []
    present = prepared(contestants(wanted, root), root, notes)
    started_s = time.monotonic()
    results = contest.Results([contest.Entrant(each.name, each.kind, each.promise) for each in present])
    results.notes = notes
    for note in notes:
        print(note, file=sys.stderr, flush=True)
    longest_s = 0.0
    for number in range(1, rounds + 1):
        begun_s = time.monotonic()
        if begun_s - started_s + longest_s > RUN_S_MAX:
            results.notes.append(f"only {number - 1} rounds: another one would have taken longer than there is time")
            return results, number - 1
        round_of(number, present, root, results)
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return results, rounds


HOW = f"""Each is driven by the best client that it comes with, on 127.0.0.1, without keys or passwords, with a
directory of its own on the same disk, one after the other in each round: `wrk` for us and the bare server,
`redis-benchmark` (a batch is a pipeline of 100), the Go client of NATS (a batch is 100 messages on the way, then their
acknowledgements), `pgbench` with prepared statements (a batch is one `INSERT` of 100 rows). The load takes its part of
the same cores.

- Watchers: one thread writes and waits for the delivery, by `XREAD BLOCK` in Redis, an ordered consumer in NATS.
- Jobs in a queue: {JOBS:,} are enqueued by 100, then claimed with a lease and acked by 8: in PostgreSQL by
  `SKIP LOCKED`, an `UPDATE` and a `DELETE`, in NATS by a pull consumer of a work-queue stream.
- Jobs of a library: {LIBRARY_JOBS:,} jobs that write 8 bytes to a file are enqueued by one process, a call each, then
  worked off by two. The time is that of enqueueing, and from the first job to the last.
- A ratio is the median of the ratios of each round. More than 1 is in our favour, for times as well."""


def report(results: contest.Results, rounds: int, conditions: str) -> str:
    notes = "".join(f"- {note}\n" for note in results.notes)
    parts = [
        f"{conditions} {rounds} alternating rounds, median and range.",
        contest.wanted_table(results),
        contest.ratio_table(results),
        "![rates beside others](pictures/peers-rates.svg)\n",
        "![times beside others](pictures/peers-times.svg)\n",
        HOW + "\n",
        contest.promise_table(results),
        f"Not as it should be:\n\n{notes}" if notes else "",
    ]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part)


def main() -> None:
    wanted = trees_for("peers")
    conditions = page.Conditions()
    with on_disk() as root:
        results, rounds = measure(wanted, root)
    if not rounds:
        sys.exit("bench peers: not a single round was done")
    text = report(results, rounds, conditions.sentence())
    print(text, flush=True)
    page.write({"peers": text}, contest.pictures(results))


if __name__ == "__main__":
    main()
