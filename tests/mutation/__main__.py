"""Mutation testing: small faults put into one function at a time, and the tests that must notice each of them.

    python -m tests.mutation [AREA or MODULE …] [--sample N] [--lines 10,20-30] [--jobs N]

One process collects the tests, runs each once to see which lines it reaches, and forks for each mutant: the fork puts
the changed code into the functions that are there and runs the tests that reach the changed line, until one fails. What
changes a module or a class while it is imported is tried in a fork that imports the product with that module.

A mutant that no test notices survives, and is printed as what its line was and became, unless explained.toml says why
no test can or should notice it. What explained.toml says about no mutant at all is printed too, and has to go.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import os
import pickle
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.mutation.changed_module import SOURCE, path_of
from tests.mutation.explanations import Explanations
from tests.mutation.forks import forked
from tests.mutation.search import PYTEST_OPTIONS, Search, Trial, Verdict, run_with
from tests.mutation.small_faults import Finder

ROOT = SOURCE.parent


class Area(NamedTuple):
    """What is mutated, and the tests that are meant to notice."""

    modules: Sequence[str]
    tests: str


AREAS: Final = {
    "log": Area(
        [
            *(f"topics.storage.wal.{name}" for name in ("frame", "handover", "log_file", "log_scan", "replay")),
            *(f"topics.storage.wal.{name}" for name in ("sync_mark", "syncer", "wal")),
            *(f"topics.storage.{name}" for name in ("reserve", "snapshot")),
        ],
        "storage engine/test_recovery.py engine/test_checkpoint.py engine/test_durability.py",
    ),
    "fold": Area(
        [
            *(f"topics.engine.core.{name}" for name in ("appended", "fold", "op_table", "state")),
            *(f"topics.engine.{name}.fold" for name in ("groups", "queues", "queues.results", "routers")),
            *(f"topics.engine.{name}.fold" for name in ("schedules", "transactions", "webhooks")),
        ],
        "engine model/test_ops.py queues routers groups txns multi_append schedules webhooks",
    ),
    "recovery": Area(
        [
            *(f"topics.engine.opening.{name}" for name in ("loss_estimates", "repair", "restore")),
            *(f"topics.engine.opening.{name}" for name in ("single_appends", "skipping", "store")),
        ],
        "engine storage/test_old_directories.py crash routers/test_recovery.py txns/test_leftovers.py "
        "txns/test_transactions.py queues/test_jobs.py",
    ),
}


class Results:
    """What became of each mutant."""

    def __init__(self, trials: Sequence[Trial], explanations: Explanations) -> None:
        self._trials = trials
        self._explanations = explanations
        self.done = self.noticed = self.explained = self.survivors = 0
        # Those that change something while the product is imported.
        self.left: list[Verdict] = []

    def tell(self, verdict: Verdict) -> None:
        if verdict.noticed is None:
            self.left.append(verdict)
            return
        trial = self._trials[verdict.trial]
        if verdict.noticed:
            self.noticed += 1
        elif trial in self._explanations:
            self.explained += 1
        else:
            self.survivors += 1
            print(f"survived: {trial}", flush=True)
        self.done += 1
        if not self.done % 100:
            print(f"{self.done} of {len(self._trials)} mutants, {self.survivors} survived", flush=True)

    def __str__(self) -> str:
        return (
            f"{len(self._trials)} mutants: {self.noticed} noticed, {self.explained} explained, "
            f"{self.survivors} survived"
        )


def chosen(module: str, options: argparse.Namespace) -> Iterator[Trial]:
    source = path_of(module).read_bytes()
    found = Finder(source).found
    if options.lines:
        found = [mutant for mutant in found if mutant.line in _lines(options.lines)]
    if options.sample:
        generator = random.Random(f"{options.seed} {module}")
        found = sorted(generator.sample(found, min(options.sample, len(found))))
    for mutant in found:
        with contextlib.suppress(SyntaxError):
            ast.parse(mutant.applied(source))
            yield Trial(module, mutant, source)


def search(area: Area, trials: Sequence[Trial], jobs: int, explanations: Explanations) -> Results:
    """In another process, because this one must not import the product."""
    results = Results(trials, explanations)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        import pytest

        os.close(ours)
        with open(theirs, "wb", 0) as pipe:
            search = Search(trials, jobs, lambda verdict: pickle.dump(verdict, pipe) and None)
            paths = [str(ROOT / "tests" / name) for name in area.tests.split()]
            pytest.main([*PYTEST_OPTIONS, *paths], plugins=[search])
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        for _ in trials:
            results.tell(pickle.load(pipe))
    os.waitpid(child, 0)
    for verdict in results.left:
        run = forked(functools.partial(run_with, trials[verdict.trial], verdict.tests), verdict.usual)
        while (result := run.result) is None:
            time.sleep(0.02)
        results.tell(verdict._replace(noticed=result != 0))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"areas ({', '.join(AREAS)}) or modules of one; all without any")
    parser.add_argument("--sample", type=int, default=0, help="at most so many of each module, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", default="", help="only mutants in these lines, like 10,20-30")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many mutants at a time")
    options = parser.parse_args()
    known = {*AREAS, *(module for area in AREAS.values() for module in area.modules)}
    if unknown := set(options.names) - known:
        parser.error(f"no area or module named {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "few"
    sys.path[:0] = [str(ROOT), str(SOURCE)]
    # What a fork would otherwise import again; nothing of the product, which a mutant has to be part of.
    for name in ("pytest", "msgspec", "xxhash", "httptools", "h2.connection", "websockets", "asyncio", "coverage"):
        importlib.import_module(name)
    explanations = Explanations()
    problems = 0
    for name, area in AREAS.items():
        wanted = area.modules if not options.names or name in options.names else options.names
        trials = [trial for module in area.modules if module in wanted for trial in chosen(module, options)]
        if trials:
            results = search(area, trials, options.jobs, explanations)
            problems += results.survivors
            print(f"{name}: {results}", flush=True)
            if not (options.lines or options.sample):
                for explanation in explanations.without_mutant(trials):
                    problems += 1
                    print(f"explained, and no mutant: {explanation}", flush=True)
    return 1 if problems else 0


def _lines(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
