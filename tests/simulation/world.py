"""One world: a machine, its server, clients and faults, run from a plan to its end, and then looked at.

set up topics ─▶ clients and faults, until all are through ─▶ heal ─▶ read everything ─▶ stop, start, read again
                 a server that ended is started again                                    ─▶ kill, start, read again
"""

from __future__ import annotations

import gc
import hashlib
import logging
import random
from typing import Any, cast

from tests.platter import Mode
from tests.simulation.clients import SimulatedClient
from tests.simulation.disk import DiskFault, Kind
from tests.simulation.history import Event, History
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import ClientPlan, Fault, Plan
from tests.simulation.reading import Final, Unreadable, make_topics, read_all
from tests.simulation.scheduler import Fiber, Process, Scheduler, Stuck
from tests.simulation.substitutes import SURROUNDINGS
from topics.model.settings import Settings

SETUP_S_MAX, FINAL_S_MAX = 600.0, 3_000.0
# How often a server may end before it is ready, when nothing is in its way.
STARTS_MAX = 5
# What the server logs when a write or a sync of its log failed for good: what waited for it may be there, or not.
LOG_BROKEN = ("the log accepts no more writes", "nothing is acknowledged until a restart")
# How long the disk stays full, or slow.
SPELL_S_MAX = 20.0


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
        self._world.broken_logs += any(words in line for words in LOG_BROKEN)
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
        self.machine.platter.on_misdirected = self._misdirected
        self.bugs: list[str] = []
        # Failed writes that could not be removed from the log.
        self.broken_logs = 0
        self.finals: list[Final] = []
        self._trace = trace
        self._outside = Process("outside")
        self._clients: list[Fiber] = []
        self._done = False
        # Whether a server that has ended is started again.
        self._restart = True
        self._supervisor: Fiber | None = None
        # How long after a write in a wrong place the power goes; whether it has yet to.
        self._power_after_s = 0.0
        self._power_due = False

    @property
    def over(self) -> bool:
        """Clients do all their steps."""
        return False

    # --- what the checkers ask for ---

    @property
    def failed_syncs(self) -> int:
        """Or failed writes that could not be removed: their requests may have been carried out all the same."""
        return self.machine.platter.failed_syncs + self.broken_logs

    @property
    def damaged(self) -> bool:
        """Whether records may be lost at any place, as long as readers hear of it."""
        return bool(self.machine.platter.misdirected)

    @property
    def mistakes(self) -> list[str]:
        """What the server itself took for a bug."""
        logged = [f"a bug was logged: {line}" for line in self.bugs]
        return logged + [f"a callback failed: {line}" for line in self.machine.failures]

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
        make_topics(self)
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

    def _supervise(self) -> None:
        """Start the server again whenever it has ended, also by itself; and when it is read-only."""
        platter, rng = self.machine.platter, self.rng
        failed_syncs, refused = platter.failed_syncs, 0
        while self._restart:
            if self.machine.running and platter.failed_syncs == failed_syncs:
                self.scheduler.park()
                continue
            refused = refused + 1 if self.machine.refused else 0
            self._repair_if_refused()
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
            case "misdirect":
                platter.misdirect, self._power_after_s = fault.detail, fault.number
            case _:
                raise AssertionError(fault.kind)

    def _misdirected(self, detail: str) -> None:
        self.note("misdirected write", detail)
        self._power_due = True
        self.scheduler.after(self._power_after_s, self._lose_power_after_it)

    def _lose_power_after_it(self) -> None:
        self._power_due = False
        self.machine.lose_power("keep")

    def _repair_if_refused(self) -> None:
        """What its operator does, if the disk has put a write in a wrong place and the server has found that."""
        if self.machine.refused and self.damaged:
            self.machine.repair()

    def _calm(self) -> None:
        self.machine.platter.stalled = 0.0

    def _make_room(self) -> None:
        self.machine.platter.room_bytes = None

    # --- the end ---

    def _end(self) -> None:
        platter = self.machine.platter
        platter.faults.clear()
        platter.kill_in_calls = platter.room_bytes = platter.misdirect = None
        platter.stalled = 0.0
        self.network.trouble = 0.0
        if self._power_due:
            self.scheduler.sleep(self._power_after_s)
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
                self._repair_if_refused()
                self.machine.start()
            self.scheduler.sleep(1.0)
        client.http.close()

    def _last_end(self) -> str:
        ends = [str(event) for event in self.history.events if event.kind == "end"]
        return ends[-1] if ends else ""

    def _read_all(self) -> Final:
        while True:
            try:
                return read_all(self)
            except Unreadable as error:
                code = error.call.answer.get("error", {}).get("code")
                if not self.damaged or code != "internal":
                    raise
                self._repair_stopped()

    def _repair_stopped(self) -> None:
        self.machine.stop()
        self._wait_ended()
        self.machine.repair()
        self.machine.start()
        self._wait_ready(FINAL_S_MAX)

    # --- what is compared between two runs ---

    def history_digest(self) -> str:
        return self.history.digest(self._data_dir)

    def disk_digest(self) -> str:
        """The same for the same bytes on disk."""
        digest = hashlib.sha256()
        for path, file in self.machine.platter.files().items():
            digest.update(path.removeprefix(self._data_dir).encode() + b"\0" + bytes(file.content))
        return digest.hexdigest()
