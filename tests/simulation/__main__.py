"""`python -m tests.simulation`: run seeds, print those that fail and how to replay them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.substitutes import REAL_PERF_COUNTER, install, what_escaped

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.search import Outcome

PROGRESS_S = 10.0
# Of so many seeds that are asked for, there is one more with a bucket.
BUCKET_EVERY = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seeds",
        default="100",
        help="how many, from 0 on, and a tenth as many with a bucket; or ranges like 2,500-599,b0-b99: b is for bucket",
    )
    parser.add_argument("--seed", help="replay one, with everything that happened in it")
    parser.add_argument("--shrink", action="store_true", help="leave out what a failing seed does not need")
    parser.add_argument("--first", action="store_true", help="end the search at the first seed that fails")
    parser.add_argument("--without-faults", default="", help="numbers of faults to leave out, like 0,3")
    parser.add_argument("--without-clients", default="", help="numbers of clients to leave out")
    parser.add_argument("--digests", action="store_true", help="print a digest of history and disk for each seed")
    parser.add_argument("--data-dir", default="/data", help="where the simulated server has its data")
    parser.add_argument(
        "--lying",
        action="store_true",
        help="let syncs do nothing, or a bucket forget some of what it has taken, which must be found",
    )
    options = parser.parse_args()
    # Before anything of the product is imported.
    install()
    from tests.simulation import search as _everything  # noqa: F401  all of the product that a world uses

    if escaped := list(what_escaped()):
        print("the product has got hold of the real machine:", *escaped, sep="\n  ")
        return 2
    return replay(options) if options.seed is not None else search(options)


def search(options: argparse.Namespace) -> int:
    from tests.simulation.bucket_plan import any_plan_of
    from tests.simulation.search import run, shrink

    seeds = seeds_of(options.seeds)
    began_s = told_s = REAL_PERF_COUNTER()
    failed: list[str] = []
    simulated_s = cpu_s = 0.0
    happened: Counter[str] = Counter()
    done = 0
    for seed in seeds:
        outcome = run(any_plan_of(seed), data_dir=options.data_dir, lying=options.lying)
        simulated_s, cpu_s = simulated_s + outcome.simulated_s, cpu_s + outcome.cpu_s
        happened += what_happened(outcome)
        done += 1
        if options.digests:
            print(seed, outcome.digests)
        if outcome.failures:
            failed.append(seed)
            tell_failure(outcome)
            if options.shrink:
                tell_plan(shrink(outcome, print).plan)
            if options.first:
                break
        if REAL_PERF_COUNTER() - told_s > PROGRESS_S:
            told_s = REAL_PERF_COUNTER()
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed, {told_s - began_s:.0f} s", flush=True)
    print(
        f"{done} seeds, {len(failed)} failed {','.join(failed)}: "
        f"{simulated_s:.0f} simulated seconds in {cpu_s:.1f} s of CPU, {simulated_s / max(cpu_s, 1e-9):.0f} a second"
    )
    print(", ".join(f"{count} {what}" for what, count in happened.items()))
    return 1 if failed else 0


def what_happened(outcome: Outcome) -> Counter[str]:
    history, platters = outcome.world.history, [machine.platter for machine in outcome.world.machines]
    events = Counter(event.kind for event in history.events)
    return Counter(
        {
            "calls": len(history.calls),
            "starts of a server": events["start"],
            "kills": events["kill"],
            "power losses": events["power loss"],
            "disk faults": sum(platter.faults_met for platter in platters) + events["misdirected write"],
            "pauses": events["pause"],
            "lost disks": events["disk loss"],
        }
    )


def seeds_of(text: str) -> list[str]:
    """`30` is how many, from 0 on, and b0 to b2 besides; `2,500-599,b7-b9` names them."""
    from tests.simulation.bucket_plan import FAMILY

    if text.isdecimal():
        return [*map(str, range(int(text))), *(f"{FAMILY}{number}" for number in range(int(text) // BUCKET_EVERY))]
    seeds: list[str] = []
    for part in text.split(","):
        family = FAMILY if part.startswith(FAMILY) else ""
        first, _, last = part.replace(FAMILY, "").partition("-")
        seeds += [f"{family}{number}" for number in range(int(first), int(last or first) + 1)]
    return seeds


def replay(options: argparse.Namespace) -> int:
    from tests.simulation.bucket_plan import any_plan_of
    from tests.simulation.search import run, shrink

    plan = any_plan_of(options.seed).without(
        faults=_numbers(options.without_faults), clients=_numbers(options.without_clients)
    )
    outcome = run(plan, trace=True, data_dir=options.data_dir)
    history = outcome.world.history
    lines = [(call.began_s, str(call)) for call in history.calls] + [(one.at_s, str(one)) for one in history.events]
    for _, line in sorted(lines):
        print(line)
    tell_plan(plan)
    print(f"{outcome.simulated_s:.0f} simulated seconds in {outcome.cpu_s:.2f} s, digests {outcome.digests}")
    if not outcome.failures:
        print("nothing failed")
        return 0
    tell_failure(outcome)
    if options.shrink:
        tell_plan(shrink(outcome, print).plan)
    return 1


def tell_failure(outcome: Outcome) -> None:
    seed = outcome.plan.seed
    print(f"seed {seed} failed; replay it with `make simulate SEED={seed}`:")
    for failure in outcome.failures[:5]:
        print(f"  {failure[:2_000]}")
    if len(outcome.failures) > 5:
        print(f"  … and {len(outcome.failures) - 5} more", flush=True)


def tell_plan(plan: Plan) -> None:
    print("clients:")
    for number, client in enumerate(plan.clients):
        print(f"  {number:2} {client.name}, {client.steps} steps on {', '.join(client.topics)}")
    print("faults:")
    for number, fault in enumerate(plan.faults):
        print(f"  {number:2} {fault}")
    print("settings:", plan.settings, flush=True)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(",") if number)


if __name__ == "__main__":
    sys.exit(main())
