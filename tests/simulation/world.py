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
from tests.simulation.bucket import ObjectStore
from tests.simulation.clients import SimulatedClient
from tests.simulation.disk import DiskFault, Kind, Platter
from tests.simulation.history import Event, History
from tests.simulation.http_client import Connecting
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import ClientPlan, Fault, Plan
from tests.simulation.reading import Final, Unreadable, make_topics, queue_at_rest, read_all
from tests.simulation.scheduler import Fiber, Host, Process, Scheduler, Stuck
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
            self._world.note("log", line, self._world.machine_that_runs())


class World:
    """Runs once."""

    def __init__(self, plan: Plan, *, trace: bool = False, data_dir: str = "/data", lying: bool = False) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan.seed)
        SURROUNDINGS.enter(self.scheduler, plan.seed)
        self.history = History()
        self.rng = random.Random(f"world {plan.seed}")
        self.began_s = self.scheduler.now_s
        self._data_dir = data_dir
        self.bucket: ObjectStore | None = None
        self.machines = self._make_machines()
        # The one that is meant if there is one.
        self.machine = self.machines[0]
        self.network = self.machine.network
        self._let_lie(lying)
        self.machine.platter.on_misdirected = self._misdirected
        self.bugs: list[str] = []
        # Failed writes that could not be removed from the log.
        self.broken_logs = 0
        self.finals: list[Final] = []
        # What a standby showed in the end.
        self.copies: list[Final] = []
        self._trace = trace
        self._outside = Process("outside")
        self._clients: list[Fiber] = []
        self._done = False
        # Whether a server that has ended is started again.
        self._restart = True
        self._supervisors: list[Fiber] = []
        # How long after a write in a wrong place the power goes; whether it has yet to.
        self._power_after_s = 0.0
        self._power_due = False

    def _make_machines(self) -> list[Machine]:
        return [self._new_machine("server", "")]

    def _let_lie(self, lying: bool) -> None:
        self.machine.platter.lies = lying

    def _new_machine(self, name: str, place: str, **settings: object) -> Machine:
        """`place` tells it from others, if there are any."""
        plan = self.plan
        apart = f" {place}" if place else ""
        machine = Machine(
            self.scheduler,
            Network(self.scheduler, random.Random(f"network{apart} {plan.seed}"), place),
            Settings(data_dir=self._data_dir, **cast("Any", {**plan.settings, **settings})),
            random.Random(f"disk{apart} {plan.seed}"),
            lambda kind, detail: self.note(kind, detail, place),
            Host(name),
            self.bucket,
        )
        machine.platter.on_failed_sync = lambda path: self.note("failed sync", path, place)
        return machine

    @property
    def over(self) -> bool:
        """Clients do all their steps."""
        return False

    def network_of(self, client: str) -> Connecting:
        """All of them have one."""
        del client
        return self.network

    # --- what the checkers ask for ---

    @property
    def failed_syncs(self) -> int:
        """Or failed writes that could not be removed: their requests may have been carried out all the same."""
        return sum(machine.platter.failed_syncs for machine in self.machines) + self.broken_logs

    @property
    def skews_s(self) -> dict[str, float]:
        """How far the wall clock of each machine is from where it should be."""
        return {machine.host.name: machine.host.skew_s for machine in self.machines}

    @property
    def damaged(self) -> bool:
        """Whether records may be lost at any place, as long as readers hear of it."""
        return bool(self.machine.platter.misdirected)

    @property
    def mistakes(self) -> list[str]:
        """What the server itself took for a bug."""
        logged = [f"a bug was logged: {line}" for line in self.bugs]
        failed = [f"a callback failed: {line}" for machine in self.machines for line in machine.failures]
        return logged + failed

    def note(self, kind: str, detail: str, machine: str = "") -> None:
        self.history.events.append(Event(self.scheduler.now_s, kind, detail, machine))
        if kind in ("kill", "power loss", "disk loss", "end", "failed sync"):
            self._wake_supervisors()

    def machine_that_runs(self) -> str:
        """The one that a line of the log comes from, if there are several."""
        fiber = self.scheduler.current
        return "" if fiber is None or not self.plan.machines else fiber.process.host.name

    def in_dead_process(self) -> bool:
        fiber = self.scheduler.current
        return fiber is not None and fiber.process.dead

    # --- running ---

    def run(self) -> None:
        logger = logging.getLogger("topics")
        logger.handlers, logger.propagate = [Collected(self, self._trace)], False
        logger.setLevel(logging.INFO if self._trace else logging.WARNING)
        logging.setLogRecordFactory(self._record)
        gc.disable()
        try:
            self.scheduler.start(self._outside, self._life, "life")
            self.scheduler.run(lambda: self._done)
        finally:
            logger.handlers = []
            logging.setLogRecordFactory(logging.LogRecord)
            gc.unfreeze()
            gc.enable()

    def _record(self, name: str, level: int, *args: Any, **more: Any) -> logging.LogRecord:
        """A line that only a replay has takes no time: what is replayed is what failed."""
        self.scheduler.frozen = level < logging.WARNING
        try:
            return logging.LogRecord(name, level, *args, **more)
        finally:
            self.scheduler.frozen = False

    def _life(self) -> None:
        self._begin()
        make_topics(self)
        self._topics_made()
        started_s = self.scheduler.now_s
        self._clients = [
            self.scheduler.start(self._outside, SimulatedClient.kinds[client.kind](self, client).run, client.name)
            for client in self.plan.clients
        ]
        self._supervisors = [
            self.scheduler.start(self._outside, lambda machine=machine: self._supervise(machine), "supervisor")
            for machine in self.machines
        ]
        for fault in self.plan.faults:
            self.scheduler.at(started_s + fault.at_s, self._strike, fault)
        for fiber in self._clients:
            self.scheduler.join(fiber, None)
        self._restart = False
        self._wake_supervisors()
        for supervisor in self._supervisors:
            self.scheduler.join(supervisor, None)
        self._end()
        self._done = True

    def _begin(self) -> None:
        self.machine.start()
        self._wait_ready(SETUP_S_MAX)

    def _topics_made(self) -> None:
        """Clients come next."""

    def _supervise(self, machine: Machine) -> None:
        """Start the server again whenever it has ended, also by itself; and when it is read-only."""
        platter, rng = machine.platter, self.rng
        failed_syncs, refused = platter.failed_syncs, 0
        while self._restart:
            if machine.running and platter.failed_syncs == failed_syncs:
                self.scheduler.park()
                continue
            refused = refused + 1 if machine.refused else 0
            self._repair_if_refused()
            if refused > self._refusals_max():
                raise Stuck(f"the server does not start any more: {self._last_end()}")
            self.scheduler.sleep(rng.random() * self.plan.restart_s_max + 0.001)
            self._start_again(machine)
            if platter.failed_syncs != failed_syncs:
                failed_syncs = platter.failed_syncs
                self.scheduler.sleep(rng.random() * 5)
                if rng.random() < 0.5:
                    machine.stop()
                else:
                    machine.kill("it is read-only")

    def _refusals_max(self) -> int:
        return STARTS_MAX

    def _start_again(self, machine: Machine) -> None:
        machine.start()

    def _wake_supervisors(self) -> None:
        for supervisor in self._supervisors:
            self.scheduler.unpark(supervisor)

    def _strike(self, fault: Fault) -> None:
        if self._restart:
            self.note("fault", str(fault))
            self._strike_at(self.machine, fault)

    def _strike_at(self, machine: Machine, fault: Fault) -> None:
        platter = machine.platter
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
                machine.network.cut_some(fault.number)
            case "disk":
                kind, error, path = fault.detail.split(" ")
                platter.faults.append(DiskFault(cast("Kind", kind), path, int(error), int(fault.number)))
            case "short":
                platter.faults.append(DiskFault("pwritev", "", 0, 1, fault.number))
            case "stall":
                platter.stalled = fault.number
                self.scheduler.after(self.rng.random() * SPELL_S_MAX, self._calm, platter)
            case "full":
                platter.room_bytes = platter.used_bytes + int(fault.number)
                self.scheduler.after(self.rng.random() * SPELL_S_MAX, self._make_room, platter)
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

    def _calm(self, platter: Platter) -> None:
        platter.stalled = 0.0

    def _make_room(self, platter: Platter) -> None:
        platter.room_bytes = None

    # --- the end ---

    def _heal(self) -> None:
        for machine in self.machines:
            platter = machine.platter
            platter.faults.clear()
            platter.kill_in_calls = platter.room_bytes = platter.misdirect = None
            platter.stalled = 0.0
            machine.network.trouble = 0.0

    def _end(self) -> None:
        self._heal()
        if self._power_due:
            self.scheduler.sleep(self._power_after_s)
        self.note("end of faults", "")
        if not self.machine.running:
            self.machine.start()
        self._wait_ready(FINAL_S_MAX)
        for how in ("as it is", "stop", "kill"):
            if how == "stop":
                self._stop()
            elif how == "kill":
                self.machine.kill("at the end")
            self.machine.start()
            self._wait_ready(FINAL_S_MAX)
            self.finals.append(self._read_all())
        self.finals[-1].rested = queue_at_rest(self)
        self._stop()

    def _stop(self, machine: Machine | None = None) -> None:
        machine = machine or self.machine
        machine.stop()
        until_s = self.scheduler.now_s + FINAL_S_MAX
        while machine.running:
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
            if call.code == "read_only":
                self._stop()
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
                if not self.damaged or error.call.code != "internal":
                    raise
                self._repair_stopped()

    def _repair_stopped(self) -> None:
        self._stop()
        self.machine.repair()
        self.machine.start()
        self._wait_ready(FINAL_S_MAX)

    # --- what is compared between two runs ---

    def history_digest(self) -> str:
        return self.history.digest(self._data_dir)

    def disk_digest(self) -> str:
        """The same for the same bytes on disk."""
        digest = hashlib.sha256()
        for machine in self.machines:
            for path, file in machine.platter.files().items():
                digest.update(path.removeprefix(self._data_dir).encode() + b"\0" + bytes(file.content))
        if self.bucket is not None:
            for key, one in self.bucket.objects.items():
                digest.update(key.encode() + b"\0" + one.data)
        return digest.hexdigest()
