"""One world: a machine, its server, clients and faults, run from a plan to its end, and then looked at.

set up topics ─▶ clients and faults, until all are through ─▶ heal ─▶ read everything ─▶ stop, start, read again
                 a server that ended is started again                                    ─▶ kill, start, read again
"""

from __future__ import annotations

import gc
import hashlib
import logging
import random
from dataclasses import dataclass, field
from typing import Any, cast

from tests.platter import Mode
from tests.simulation.clients import SimulatedClient
from tests.simulation.disk import DiskFault, Kind
from tests.simulation.history import Event, History
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import ClientPlan, Fault, Plan
from tests.simulation.scheduler import Fiber, Process, Scheduler, Stuck
from tests.simulation.substitutes import SURROUNDINGS
from topics.model.settings import Settings

SETUP_S_MAX, FINAL_S_MAX = 600.0, 3_000.0
# How often a server may end before it is ready, when nothing is in its way.
STARTS_MAX = 5
# Longer than all that clocks are put forward in a world: the window follows the clock.
WINDOW_MS = 30 * 24 * 3_600_000
# A router that does nothing for so long has nothing to do: it tries again every 500 ms.
ROUTER_REST_S = 5.0
# How long the disk stays full, or slow.
SPELL_S_MAX = 20.0


@dataclass
class Final:
    """What is there in the end, by topic."""

    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tombstones: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    router: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    read_s: float = 0.0


class Collected(logging.Handler):
    """The server's log lines that tell of a bug, and all of them if they are wanted."""

    def __init__(self, world: World, trace: bool) -> None:
        super().__init__(logging.INFO if trace else logging.WARNING)
        self._world = world
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.in_dead_process():
            return
        line = f"{record.name} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + logging.Formatter().formatException(record.exc_info)
            self._world.bugs.append(line)
        if self._trace:
            self._world.note("log", line)


class World:
    """Runs once."""

    def __init__(self, plan: Plan, *, trace: bool = False, data_dir: str = "/data", lying_disk: bool = False) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan.seed)
        SURROUNDINGS.enter(self.scheduler, plan.seed)
        self.network = Network(self.scheduler, random.Random(f"network {plan.seed}"))
        self.history = History()
        self.rng = random.Random(f"world {plan.seed}")
        self.began_s = self.scheduler.now_s
        self._data_dir = data_dir
        settings = Settings(data_dir=data_dir, **cast("Any", plan.settings))
        self.machine = Machine(
            self.scheduler,
            self.network,
            SURROUNDINGS,
            settings,
            random.Random(f"disk {plan.seed}"),
            self.note,
        )
        self.machine.platter.lies = lying_disk
        self.machine.platter.on_failed_sync = lambda path: self.note("failed sync", path)
        self.bugs: list[str] = []
        self.finals: list[Final] = []
        self._trace = trace
        self._outside = Process("outside")
        self._clients: list[Fiber] = []
        self._done = False
        # Whether a server that has ended is started again.
        self._restart = True
        self._supervisor: Fiber | None = None

    def note(self, kind: str, detail: str) -> None:
        self.history.events.append(Event(self.scheduler.now_s, kind, detail))
        if kind in ("kill", "power loss", "end", "failed sync"):
            self._wake_supervisor()

    def in_dead_process(self) -> bool:
        fiber = self.scheduler.current
        return fiber is not None and fiber.process.dead

    # --- running ---

    def run(self) -> None:
        logger = logging.getLogger("topics")
        logger.handlers, logger.propagate = [Collected(self, self._trace)], False
        logger.setLevel(logging.INFO if self._trace else logging.WARNING)
        gc.disable()
        try:
            self.scheduler.start(self._outside, self._life, "life")
            self.scheduler.run(lambda: self._done)
        finally:
            logger.handlers = []
            gc.unfreeze()
            gc.enable()

    def _life(self) -> None:
        self.machine.start()
        self._wait_ready(SETUP_S_MAX)
        self._set_up()
        started_s = self.scheduler.now_s
        self._clients = [
            self.scheduler.start(self._outside, SimulatedClient.kinds[client.kind](self, client).run, client.name)
            for client in self.plan.clients
        ]
        self._supervisor = supervisor = self.scheduler.start(self._outside, self._supervise, "supervisor")
        for fault in self.plan.faults:
            self.scheduler.at(started_s + fault.at_s, self._strike, fault)
        for fiber in self._clients:
            self.scheduler.join(fiber, None)
        self._restart = False
        self._wake_supervisor()
        self.scheduler.join(supervisor, None)
        self._end()
        self._done = True

    def _set_up(self) -> None:
        client = SimulatedClient(self, ClientPlan("", "setup", 0, ()))
        for topic in self.plan.topics:
            config = {"durability": topic.durability, "idempotency_window_ms": WINDOW_MS, **topic.config}
            call = client.insist("put", topic.name, "PUT", f"/v0/topics/{topic.name}", config)
            assert call.ok, f"the topics of this world cannot be made: {call}"
        client.http.close()

    def _supervise(self) -> None:
        """Start the server again whenever it has ended, also by itself; and when it is read-only."""
        platter, rng = self.machine.platter, self.rng
        failed_syncs, refused = platter.failed_syncs, 0
        while self._restart:
            if self.machine.running and platter.failed_syncs == failed_syncs:
                self.scheduler.park()
                continue
            refused = refused + 1 if self.machine.refused else 0
            if refused > STARTS_MAX:
                raise Stuck(f"the server does not start any more: {self._last_end()}")
            self.scheduler.sleep(rng.random() * self.plan.restart_s_max + 0.001)
            self.machine.start()
            if platter.failed_syncs != failed_syncs:
                failed_syncs = platter.failed_syncs
                self.scheduler.sleep(rng.random() * 5)
                if rng.random() < 0.5:
                    self.machine.stop()
                else:
                    self.machine.kill("it is read-only")

    def _wake_supervisor(self) -> None:
        if self._supervisor is not None:
            self.scheduler.unpark(self._supervisor)

    def _strike(self, fault: Fault) -> None:
        machine, platter = self.machine, self.machine.platter
        if not self._restart:
            return
        self.note("fault", str(fault))
        match fault.kind:
            case "kill":
                machine.kill()
            case "kill in a call":
                platter.kill_in_calls = int(fault.number)
            case "power":
                machine.lose_power(cast("Mode", fault.detail))
            case "stop":
                machine.stop()
            case "cut":
                self.network.cut_some(fault.number)
            case "disk":
                kind, error, path = fault.detail.split(" ")
                platter.faults.append(DiskFault(cast("Kind", kind), path, int(error), int(fault.number)))
            case "short":
                platter.faults.append(DiskFault("pwritev", "", 0, 1, fault.number))
            case "stall":
                platter.stalled = fault.number
                self.scheduler.after(self.rng.random() * SPELL_S_MAX, self._calm)
            case "full":
                platter.room_bytes = platter.used_bytes + int(fault.number)
                self.scheduler.after(self.rng.random() * SPELL_S_MAX, self._make_room)
            case "clock":
                machine.step_clock(fault.number)
            case _:
                raise AssertionError(fault.kind)

    def _calm(self) -> None:
        self.machine.platter.stalled = 0.0

    def _make_room(self) -> None:
        self.machine.platter.room_bytes = None

    # --- the end ---

    def _end(self) -> None:
        platter = self.machine.platter
        platter.faults.clear()
        platter.kill_in_calls = platter.room_bytes = None
        platter.stalled = 0.0
        self.network.trouble = 0.0
        self.note("end of faults", "")
        if not self.machine.running:
            self.machine.start()
        self._wait_ready(FINAL_S_MAX)
        for how in ("as it is", "stop", "kill"):
            if how == "stop":
                self.machine.stop()
                self._wait_ended()
            elif how == "kill":
                self.machine.kill("at the end")
            self.machine.start()
            self._wait_ready(FINAL_S_MAX)
            self.finals.append(self._read_all())
        self.machine.stop()
        self._wait_ended()

    def _wait_ended(self) -> None:
        until_s = self.scheduler.now_s + FINAL_S_MAX
        while self.machine.running:
            if self.scheduler.now_s > until_s:
                raise Stuck("the server does not stop")
            self.scheduler.sleep(0.05)

    def _wait_ready(self, at_most_s: float) -> None:
        """Until the server takes writes; one that is read-only, or has refused to start, is started again."""
        until_s = self.scheduler.now_s + at_most_s
        client = SimulatedClient(self, ClientPlan("", "probe", 0, ()))
        starts_left = STARTS_MAX
        while True:
            call = client.ask("ready", "", "GET", "/v0/ready")
            if call.ok:
                break
            if self.scheduler.now_s > until_s or not starts_left:
                raise Stuck(f"the server does not become ready: {call}; {self._last_end()}")
            if call.answer.get("error", {}).get("code") == "read_only":
                self.machine.stop()
                self._wait_ended()
            if not self.machine.running:
                starts_left -= 1
                self.machine.start()
            self.scheduler.sleep(1.0)
        client.http.close()

    def _last_end(self) -> str:
        ends = [str(event) for event in self.history.events if event.kind == "end"]
        return ends[-1] if ends else ""

    def _read_all(self) -> Final:
        client = SimulatedClient(self, ClientPlan("", "final", 0, ()))
        final = Final()
        if any(plan.kind == "router" for plan in self.plan.clients):
            final.router = self._router_at_rest(client)
        names = [topic.name for topic in self.plan.topics] + ["dead", "churn"]
        for name in names:
            state = client.insist("state", name, "GET", f"/v0/topics/{name}")
            if state.status == 404:
                continue
            final.states[name] = state.answer
            records = final.records[name] = []
            tombstones = final.tombstones[name] = []
            from_seq = 0
            while True:
                body = {"from_seq": from_seq, "include_tags": True, "limit": 1_000}
                call = client.insist("diff", name, "POST", f"/v0/topics/{name}/diff", body)
                if not call.ok:
                    raise Stuck(f"a topic cannot be read in the end: {call}")
                records += call.answer["records"]
                if call.answer["tombstone"] is not None:
                    tombstones.append(call.answer["tombstone"])
                from_seq = call.answer["next_from_seq"]
                if call.answer["caught_up"]:
                    break
        for plan in self.plan.clients:
            if plan.kind == "transactor":
                final.apps[plan.name] = client.insist("app", "", "GET", f"/v0/txns/{plan.name}").answer
        client.http.close()
        final.read_s = self.scheduler.now_s
        return final

    def _router_at_rest(self, client: SimulatedClient) -> dict[str, Any]:
        """Seqs that the source skipped after a crash count as its lag until the next record comes: it need not be 0."""
        before = -1
        while True:
            call = client.insist("router state", "", "GET", "/v0/routers/copying")
            lag = call.answer.get("lag", 0)
            if not call.ok or lag in (0, before):
                return call.answer if call.ok else {}
            before = lag
            self.scheduler.sleep(ROUTER_REST_S)

    # --- what is compared between two runs ---

    def disk_digest(self) -> str:
        """The same for the same bytes on disk."""
        digest = hashlib.sha256()
        for path, file in self.machine.platter.files().items():
            digest.update(path.removeprefix(self._data_dir).encode() + b"\0" + bytes(file.content))
        return digest.hexdigest()
