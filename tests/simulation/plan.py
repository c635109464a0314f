"""What a seed stands for: the topics, the clients and their steps, and the faults, each of which can be left out.

Everything is drawn here, before anything runs, from generators of its own: to leave a fault or a client out changes
nothing about the others. That is what shrinking lives on.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Durability = Literal["ephemeral", "memory", "disk", "fsync", "replicated"]
DURABILITIES: tuple[Durability, ...] = ("ephemeral", "memory", "disk", "disk", "fsync", "fsync")
FaultKind = Literal[
    "kill",
    "kill in a call",
    "power",
    "stop",
    "cut",
    "disk",
    "short",
    "stall",
    "full",
    "clock",
    "misdirect",
    # in worlds with a bucket
    "disk loss",
    "pause",
    "bucket cut",
    "bucket slow",
    "promote",
]
# Worlds in which the disk puts a write in a wrong place.
MISDIRECTED_SHARE = 0.1
# From then until the power goes and the machine reads what is on its disk: longer than the log's mark of what was
# synced can be behind, as nothing else shows that the end of a log is missing.
MISDIRECTED_S_MIN, MISDIRECTED_S_MAX = 3.0, 30.0
# Worlds in which writes of the log fail and servers are killed while the clients are at work, and not some time, with
# many checkpoints and more changes of several topics.
AT_WORK_SHARE = 0.15
# Worlds with a client that sends what is not quite HTTP, HTTP/2 or WebSocket.
GARBLED_SHARE = 0.15
# Worlds in which keys of a topic are forgotten after a minute, and those in which the source of the router has a cap.
SHORT_WINDOW_SHARE, SHORT_WINDOW_MS = 0.15, 60_000
CAPPED_SOURCE_SHARE = 0.15
# Worlds with a client whose jobs have unique keys.
UNIQUE_SHARE = 0.2
POWER_MODES = ("keep", "drop", "torn", "torn", "reorder", "reorder")


@dataclass(frozen=True)
class TopicPlan:
    """A topic and what is done with it."""

    name: str
    durability: Durability
    config: dict[str, object] = field(default_factory=dict)
    queue: bool = False


@dataclass(frozen=True)
class ClientPlan:
    """A client: its kind, its name, how often it does something, and the seed of its decisions."""

    kind: str
    name: str
    steps: int
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong `at_s` after the start of the clients."""

    at_s: float
    kind: FaultKind
    detail: str = ""
    number: float = 0.0
    # Which machine, if there are several: the one that is primary then, or a named one.
    machine: str = ""

    def __str__(self) -> str:
        where = f"{self.machine}: " if self.machine else ""
        return f"{self.at_s:8.3f} s  {where}{self.kind} {self.detail} {self.number:g}".rstrip(" 0")


@dataclass(frozen=True)
class Plan:
    """One world."""

    seed: str
    topics: tuple[TopicPlan, ...]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    settings: dict[str, int]
    restart_s_max: float
    pause_s: float
    # The machines that share a bucket; none: there is one machine, and no bucket.
    machines: tuple[str, ...] = ()

    def topic(self, name: str) -> TopicPlan:
        return next(topic for topic in self.topics if topic.name == name)

    def without(self, *, faults: frozenset[int] = frozenset(), clients: frozenset[int] = frozenset()) -> Plan:
        return replace(
            self,
            faults=tuple(fault for number, fault in enumerate(self.faults) if number not in faults),
            clients=tuple(client for number, client in enumerate(self.clients) if number not in clients),
        )

    def with_steps(self, share: float) -> Plan:
        clients = tuple(replace(client, steps=max(1, int(client.steps * share))) for client in self.clients)
        return replace(self, clients=clients)


def plan_of(seed: str) -> Plan:
    """The world that a seed stands for, of those without a bucket."""
    rng = random.Random(f"plan {seed}")
    topics = [
        TopicPlan("log-a", rng.choice(DURABILITIES)),
        TopicPlan("log-b", rng.choice(("disk", "fsync"))),
        TopicPlan("capped", rng.choice(DURABILITIES), {"cap_records": rng.choice((5, 40, 200))}),
        TopicPlan("jobs", rng.choice(("disk", "fsync")), queue_config(rng), queue=True),
        TopicPlan("routed", rng.choice(DURABILITIES)),
        TopicPlan("copies", rng.choice(("disk", "fsync"))),
        TopicPlan("shared", rng.choice(("disk", "fsync"))),
        TopicPlan("left", rng.choice(("disk", "fsync"))),
        TopicPlan("right", rng.choice(("disk", "fsync"))),
    ]
    length = rng.choice((10, 30, 60))
    clients, faults = clients_of(rng, length), _faults(rng)
    # What came later is drawn apart: a seed keeps the rest of its world.
    more = random.Random(f"more {seed}")
    watched = [topic for topic in ("log-a", "log-b", "copies", "left", "routed") if more.random() < 0.2]
    clients += [ClientPlan("watcher", f"watcher-{topic}", more.randint(1, length), (topic,)) for topic in watched]
    if more.random() < MISDIRECTED_SHARE:
        faults = _misdirected(more)
    if random.Random(f"noise {seed}").random() < GARBLED_SHARE:
        clients.append(ClientPlan("garbler", "garbler", more.randint(1, length), ("garbled",)))
    clients += requesters(seed, length)
    settings = draw_settings(rng)
    restart_s_max, pause_s = rng.choice((0.01, 0.5, 5.0)), rng.choice((0.002, 0.05, 1.0, 20.0))
    at_work = random.Random(f"at work {seed}")
    if at_work.random() < AT_WORK_SHARE:
        faults = _faults_at_work(at_work, length * pause_s)
        settings["checkpoint_bytes"] = 2_000
        clients += [ClientPlan("several", f"several-{number}", length, ("left", "right")) for number in ("x", "y")]
    return Plan(
        seed,
        limited(topics, seed),
        tuple(clients),
        tuple(faults),
        settings,
        restart_s_max,
        pause_s,
    )


def limited(topics: Sequence[TopicPlan], seed: str) -> tuple[TopicPlan, ...]:
    """Some worlds have limits besides. Drawn apart, and in words that leave the seeds that once failed as they were."""
    rng = random.Random(f"has brief {seed}")
    more: dict[str, dict[str, object]] = {}
    if rng.random() < SHORT_WINDOW_SHARE:
        more["log-a"] = {"idempotency_window_ms": SHORT_WINDOW_MS}
    if rng.random() < CAPPED_SOURCE_SHARE:
        more["routed"] = {"cap_records": rng.choice((3, 20, 100))}
    return tuple(replace(topic, config={**topic.config, **more.get(topic.name, {})}) for topic in topics)


def requesters(seed: str, length: int) -> list[ClientPlan]:
    rng = random.Random(f"unique keys {seed}")
    if rng.random() >= UNIQUE_SHARE:
        return []
    return [ClientPlan("requester", f"requester-{number}", rng.randint(1, length), ("jobs",)) for number in range(2)]


def queue_config(rng: random.Random) -> dict[str, object]:
    config: dict[str, object] = {
        "type": "queue",
        "lease_ms": rng.choice((200, 2_000, 30_000)),
        "leases_durable": rng.random() < 0.5,
    }
    if rng.random() < 0.4:
        config |= {"max_deliveries": rng.choice((1, 3)), "dead_letter": "dead"}
    return config


def clients_of(rng: random.Random, length: int) -> list[ClientPlan]:
    kinds: list[tuple[str, tuple[str, ...]]] = [
        ("writer", ("log-a", "log-b", "capped", "routed", "shared")),
        ("writer", ("log-a", "log-b", "jobs", "routed", "shared")),
        ("reader", ("log-a", "log-b", "capped", "copies", "left", "right")),
        ("follower", (rng.choice(("log-a", "log-b", "copies", "capped")),)),
    ]
    optional: list[tuple[str, tuple[str, ...]]] = [
        ("producer", ("jobs",)),
        ("worker", ("jobs",)),
        ("worker", ("jobs",)),
        ("consumer", ("shared",)),
        ("consumer", ("shared",)),
        ("transactor", ("left", "right")),
        ("transactor", ("left", "right")),
        ("several", ("left", "right", "log-b")),
        ("deleter", ("log-a", "left")),
        ("admin", ("log-b", "jobs", "capped")),
        ("router", ("routed", "copies")),
        ("churner", ("churn",)),
        ("follower", (rng.choice(("left", "shared", "routed")),)),
    ]
    kinds += [kind for kind in optional if rng.random() < 0.6]
    return [
        ClientPlan(kind, f"{kind}-{number}", rng.randint(1, length), topics)
        for number, (kind, topics) in enumerate(kinds)
    ]


def _faults(rng: random.Random) -> list[Fault]:
    """None in one world of eight, so that what needs no fault to go wrong is found without one."""
    if rng.random() < 0.125:
        return []
    kinds: list[tuple[FaultKind, float]] = [
        ("kill", 3),
        ("kill in a call", 4),
        ("power", 3),
        ("stop", 1.5),
        ("cut", 3),
        ("disk", 3),
        ("short", 1),
        ("stall", 1),
        ("full", 0.7),
        ("clock", 1),
    ]
    # A world has its own favourites: faults of a kind come in bunches.
    weights = [weight * rng.choice((0, 1, 1, 3)) + 0.01 for _, weight in kinds]
    at_s = 0.0
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 14)):
        at_s += rng.expovariate(1.0) * rng.choice((0.002, 0.01, 0.2, 2.0, 20.0))
        kind = kinds[rng.choices(range(len(kinds)), weights)[0]][0]
        faults.append(Fault(at_s, kind, *details_of(kind, rng)))
    return faults


def _misdirected(rng: random.Random) -> list[Fault]:
    """Kills and cuts, and then a write in a wrong place; that is found when the machine starts again."""
    at_s = 0.0
    faults: list[Fault] = []
    for _ in range(rng.randint(0, 5)):
        at_s += rng.expovariate(1.0) * rng.choice((0.01, 0.2, 2.0))
        kind: FaultKind = rng.choice(("kill", "kill in a call", "stop", "cut"))
        faults.append(Fault(at_s, kind, *details_of(kind, rng)))
    path = rng.choice((".log", ".log", ".log", ".pack", ".snap", ""))
    faults.append(Fault(at_s, "misdirect", path, rng.uniform(MISDIRECTED_S_MIN, MISDIRECTED_S_MAX)))
    return faults


def _faults_at_work(rng: random.Random, clients_s: float) -> list[Fault]:
    """Within the time that the clients take for about half of their steps."""
    faults: list[Fault] = []
    for at_s in sorted(rng.random() * clients_s / 2 for _ in range(rng.randint(2, 12))):
        kind: FaultKind = rng.choice(("disk", "disk", "disk", "short", "kill", "kill in a call", "power", "clock"))
        details = details_of(kind, rng)
        if kind == "disk":
            details = f"pwritev {rng.choice(_errors('pwritev'))} .log", 1
        if kind == "clock":
            # It is wrong when the server starts again.
            faults.append(Fault(at_s, "kill"))
        faults.append(Fault(at_s, kind, *details))
    return faults


def details_of(kind: FaultKind, rng: random.Random) -> tuple[str, float]:
    match kind:
        case "kill in a call":
            return "", rng.choice((1, 2, 3, 5, 8, 13, 30, 80))
        case "power":
            return rng.choice(POWER_MODES), 0.0
        case "cut":
            return "", rng.choice((0.3, 1.0))
        case "disk":
            call = rng.choice(("pwritev",) * 5 + ("open", "fdatasync", "fsync_dir", "truncate", "allocate", "rename"))
            path = rng.choice((".log", ".log", ".log", "", ".snap", ".pack"))
            return f"{call} {rng.choice(_errors(call))} {path}", rng.choice((1, 1, 2, 5))
        case "short":
            return "", rng.choice((0.0, 0.1, 0.5, 0.99))
        case "stall":
            return "", rng.choice((0.2, 1.0))
        case "full":
            return "", rng.choice((0.0, 10_000.0, 200_000.0))
        case "clock":
            return "", rng.choice((-3_600.0, -5.0, -0.1, 0.2, 30.0, 7_200.0))
        case _:
            return "", 0.0


def _errors(call: str) -> list[int]:
    if call == "open":
        return [errno.EMFILE, errno.EIO, errno.ENOMEM]
    if call == "fdatasync":
        return [errno.EIO, errno.ENOSPC]
    return [errno.EIO, errno.ENOSPC, errno.ENOMEM]


def draw_settings(rng: random.Random) -> dict[str, int]:
    """Small, so that files, checkpoints and blocks end often."""
    return {
        "wal_file_bytes": rng.choice((4_096, 16_384, 65_536)),
        "checkpoint_bytes": rng.choice((2_000, 20_000, 1 << 20)),
        "checkpoint_ms": rng.choice((500, 5_000, 60_000)),
        "segment_max_events": rng.choice((5, 50, 10_000)),
        "hot_retain_segments": rng.choice((0, 1, 4)),
        "hot_retain_bytes": rng.choice((0, 10_000, 1 << 24)),
        "visibility_timeout_secs": rng.choice((1, 5, 60)),
    }
