"""Running worlds: one seed to its outcome, and a failing plan to the smallest one that still fails the same way."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.bucket_world import BucketWorld
from tests.simulation.checkers import check
from tests.simulation.plan import Plan
from tests.simulation.substitutes import REAL_PROCESS_TIME
from tests.simulation.world import World

SHARES = (0.1, 0.25, 0.5, 0.75)


@dataclass
class Outcome:
    """What became of a world."""

    plan: Plan
    world: World
    failures: list[str]
    cpu_s: float

    @property
    def simulated_s(self) -> float:
        return self.world.scheduler.now_s - self.world.began_s

    @property
    def kind(self) -> str:
        """What failed, without what differs between two worlds that fail alike."""
        return self.failures[0].partition(":")[0] if self.failures else ""

    @property
    def digests(self) -> str:
        return f"{self.world.history_digest()} {self.world.disk_digest()}"


def run(plan: Plan, *, trace: bool = False, data_dir: str = "/data", lying: bool = False) -> Outcome:
    """Run a world to its end and check it."""
    began_s = REAL_PROCESS_TIME()
    kind = BucketWorld if plan.machines else World
    world = kind(plan, trace=trace, data_dir=data_dir, lying=lying)
    try:
        world.run()
        failures = check(world)
    except Exception as error:  # noqa: BLE001  whatever ends a world is what was looked for
        where = traceback.format_exc(limit=-3)
        failures = [f"{type(error).__name__}: {error}\n{where}", *world.mistakes]
    gc.collect()
    return Outcome(plan, world, failures, REAL_PROCESS_TIME() - began_s)


def shrink(failed: Outcome, tell: Callable[[str], None], runs_max: int = 200) -> Outcome:
    """Leave out faults, clients and steps as long as the same thing fails."""
    best, runs = failed, 0

    def still_fails(plan: Plan) -> bool:
        nonlocal best, runs
        runs += 1
        outcome = run(plan)
        if outcome.kind != failed.kind:
            return False
        best = outcome
        tell(f"  {len(plan.faults)} faults, {len(plan.clients)} clients, {sum(c.steps for c in plan.clients)} steps")
        return True

    smaller = True
    while smaller and runs < runs_max:
        smaller = any(still_fails(best.plan.with_steps(share)) for share in SHARES if _has_steps(best.plan))
        for number in reversed(range(len(best.plan.clients))):
            smaller |= still_fails(best.plan.without(clients=frozenset({number})))
        for number in reversed(range(len(best.plan.faults))):
            smaller |= still_fails(best.plan.without(faults=frozenset({number})))
    return best


def _has_steps(plan: Plan) -> bool:
    return any(client.steps > 1 for client in plan.clients)
