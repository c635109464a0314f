"""What is there in the end: every topic of a plan read from its beginning, its router at rest, its transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clients import SimulatedClient, Surrounding
from tests.simulation.history import Call
from tests.simulation.plan import ClientPlan

# Longer than all that clocks are put forward in a world: the window follows the clock.
WINDOW_MS = 30 * 24 * 3_600_000
# A router that does nothing for so long has nothing to do: it tries again every 500 ms.
ROUTER_REST_S = 5.0
# Longer than any lease, delay or rest of a job in a world.
JOBS_REST_S = 120.0
LIMIT = 1_000


class Unreadable(AssertionError):
    """A topic cannot be read."""

    def __init__(self, call: Call) -> None:
        super().__init__(f"a topic cannot be read in the end: {call}")
        self.call = call


@dataclass
class Final:
    """What is there in the end, by topic."""

    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tombstones: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    router: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The queue's counts when every lease and every delay must be over; asked for at the last reading alone.
    rested: dict[str, Any] = field(default_factory=dict)
    read_s: float = 0.0


def make_topics(world: Surrounding) -> None:
    """The topics of the plan, before anything else."""
    client = SimulatedClient(world, ClientPlan("", "setup", 0, ()))
    for topic in world.plan.topics:
        config = {"durability": topic.durability, "idempotency_window_ms": WINDOW_MS, **topic.config}
        call = client.insist("put", topic.name, "PUT", f"/v0/topics/{topic.name}", config)
        assert call.ok, f"the topics of this world cannot be made: {call}"
    client.http.close()


def read_all(world: Surrounding) -> Final:
    """Raises Unreadable."""
    client = SimulatedClient(world, ClientPlan("", "final", 0, ()))
    final = Final()
    try:
        if any(plan.kind == "router" for plan in world.plan.clients):
            final.router = _router_at_rest(client)
        for name in [topic.name for topic in world.plan.topics] + ["dead", "churn"]:
            _read_topic(client, name, final)
        for plan in world.plan.clients:
            if plan.kind == "transactor":
                final.apps[plan.name] = client.insist("app", "", "GET", f"/v0/txns/{plan.name}").answer
    finally:
        client.http.close()
    final.read_s = world.scheduler.now_s
    return final


def read_copy(client: SimulatedClient) -> Final:
    """The topics, as a standby shows them."""
    final = Final()
    for name in [topic.name for topic in client.world.plan.topics] + ["dead", "churn"]:
        _read_topic(client, name, final)
    final.read_s = client.world.scheduler.now_s
    return final


def _read_topic(client: SimulatedClient, name: str, final: Final) -> None:
    state = client.insist("state", name, "GET", f"/v0/topics/{name}")
    if state.status == 404:
        return
    final.states[name] = state.answer
    records = final.records[name] = []
    tombstones = final.tombstones[name] = []
    from_seq, caught_up = 0, False
    while not caught_up:
        body = {"from_seq": from_seq, "include_tags": True, "limit": LIMIT}
        call = client.insist("diff", name, "POST", f"/v0/topics/{name}/diff", body)
        if not call.ok:
            raise Unreadable(call)
        records += call.answer["records"]
        if call.answer["tombstone"] is not None:
            tombstones.append(call.answer["tombstone"])
        from_seq, caught_up = call.answer["next_from_seq"], call.answer["caught_up"]


def queue_at_rest(world: Surrounding) -> dict[str, Any]:
    """What the queue counts when nobody has used it for long."""
    client = SimulatedClient(world, ClientPlan("", "rest", 0, ()))
    counts = client.insist("state", "jobs", "GET", "/v0/topics/jobs").answer.get("queue", {})
    if counts.get("in_flight") or counts.get("delayed"):
        world.scheduler.sleep(JOBS_REST_S)
        counts = client.insist("state", "jobs", "GET", "/v0/topics/jobs").answer.get("queue", {})
    client.http.close()
    return counts


def _router_at_rest(client: SimulatedClient) -> dict[str, Any]:
    """What is shown of it when it has done everything, or has not got any further for a while."""
    before = -1
    while True:
        call = client.insist("router state", "", "GET", "/v0/routers/copying")
        lag = call.answer.get("lag", 0)
        if not call.ok or lag in (0, before):
            return call.answer if call.ok else {}
        before = lag
        client.world.scheduler.sleep(ROUTER_REST_S)
