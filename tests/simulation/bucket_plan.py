"""What a seed of the second family stands for: machines that share a bucket, and what goes wrong between them.

Seeds of this family begin with a b. Topics and clients are those of the other worlds, so the same checkers judge them.
"""

from __future__ import annotations

import random

from tests.simulation.plan import (
    Durability,
    Fault,
    FaultKind,
    Plan,
    TopicPlan,
    clients_of,
    details_of,
    draw_settings,
    limited,
    plan_of,
    queue_config,
    requesters,
)

FAMILY = "b"
LOG: tuple[Durability, ...] = ("ephemeral", "memory", "disk", "fsync", "replicated", "replicated", "replicated")
LASTING: tuple[Durability, ...] = ("disk", "fsync", "replicated", "replicated")
ALONE_SHARE = 0.15
# How long a process, or the way to the bucket, is stopped: less than a lease, and more.
SPELLS_S = (0.3, 1.5, 4.0, 12.0, 30.0)
DAY_MS = 86_400_000


def any_plan_of(seed: str) -> Plan:
    """The world of a seed of either family."""
    return bucket_plan_of(seed) if seed.startswith(FAMILY) else plan_of(seed)


def bucket_plan_of(seed: str) -> Plan:
    rng = random.Random(f"bucket plan {seed}")
    topics = (
        TopicPlan("log-a", rng.choice(LOG)),
        TopicPlan("log-b", rng.choice(LASTING)),
        TopicPlan("capped", rng.choice(LOG), {"cap_records": rng.choice((5, 40, 200))}),
        TopicPlan("jobs", rng.choice(LASTING), queue_config(rng), queue=True),
        TopicPlan("routed", rng.choice(LOG)),
        TopicPlan("copies", rng.choice(LASTING)),
        TopicPlan("shared", rng.choice(LASTING)),
        TopicPlan("left", rng.choice(LASTING)),
        TopicPlan("right", rng.choice(LASTING)),
    )
    length = rng.choice((10, 30))
    clients = [*clients_of(rng, length), *requesters(seed, length)]
    machines = ("a",) if rng.random() < ALONE_SHARE else ("a", "b")
    return Plan(
        seed,
        limited(topics, seed),
        tuple(clients),
        tuple(_faults(rng, machines)),
        {
            **draw_settings(rng),
            "bucket_lease_ms": rng.choice((1_000, 3_000, 10_000)),
            "bucket_piece_ms": rng.choice((5, 50, 500)),
            "bucket_backlog_bytes": rng.choice((1 << 20, 1 << 30, 1 << 30)),
            "bucket_keep_ms": rng.choice((5_000, 7 * DAY_MS, 7 * DAY_MS)),
            "local_bytes": rng.choice((0, 0, 0, 10_000)),
        },
        restart_s_max=rng.choice((0.01, 0.5, 5.0, 20.0)),
        pause_s=rng.choice((0.02, 0.2, 1.0)),
        machines=machines,
    )


def _faults(rng: random.Random, machines: tuple[str, ...]) -> list[Fault]:
    """None in one world of eight: the standby follows, and takes over at the end."""
    if rng.random() < 0.125:
        return []
    kinds: list[tuple[FaultKind, float]] = [
        ("kill", 3),
        ("kill in a call", 3),
        ("power", 2),
        ("stop", 1.5),
        ("cut", 1),
        ("disk", 1),
        ("short", 0.5),
        ("stall", 0.5),
        ("clock", 1),
        ("disk loss", 1),
        ("pause", 3),
        ("bucket cut", 4),
        ("bucket slow", 1),
        ("promote", 1 if len(machines) > 1 else 0),
    ]
    weights = [weight * rng.choice((0, 1, 1, 3)) for _, weight in kinds]
    weights[0] += 0.01
    at_s = 0.0
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 12)):
        at_s += rng.expovariate(1.0) * rng.choice((0.01, 0.2, 2.0, 10.0))
        kind = kinds[rng.choices(range(len(kinds)), weights)[0]][0]
        # Most of them meet whoever is primary by then.
        machine = rng.choice(("primary", "primary", "primary", "standby", *machines))
        faults.append(Fault(at_s, kind, *_details(kind, rng), machine=machine))
    return faults


def _details(kind: FaultKind, rng: random.Random) -> tuple[str, float]:
    match kind:
        case "pause" | "bucket slow":
            return "", rng.choice(SPELLS_S)
        case "bucket cut":
            # From the machine, or from all of them.
            where = rng.choice(("one", "one", "all"))
            return f"{where} {rng.choice(('lost', 'lost', 'unanswered', 'refused'))}", rng.choice(SPELLS_S)
        case "promote":
            return rng.choice(("", "force")), 0.0
        case _:
            return details_of(kind, rng)
