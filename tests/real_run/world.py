"""Real processes under real faults: the clients of the simulation as threads, kills, pauses, a full disk, clock steps.

set up topics ─▶ clients in threads, faults in this one, until the time is up ─▶ heal ─▶ read everything
                                                            ─▶ stop, start, read again ─▶ kill, start, read again
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.real_run.machine import Machine
from tests.real_run.network import RealNetwork, RealTime
from tests.serving import free_port
from tests.simulation.clients import SimulatedClient
from tests.simulation.history import Call, Event, History
from tests.simulation.plan import ClientPlan, Plan, TopicPlan
from tests.simulation.reading import Final, make_topics, read_all

NO_END = 1 << 60
PAUSE_S = 0.05
# Between two faults, and how long one lasts that has a length.
FAULT_S_MIN, FAULT_S_MAX, SPELL_S_MAX = 0.2, 4.0, 6.0
FAULTS: tuple[str, ...] = ("kill", "kill", "kill early", "stop", "pause", "pause", "full", "clock", "cut", "cut")
STEPS_S = (-3_600.0, -5.0, 0.5, 30.0, 7_200.0)
BUG = "Traceback (most recent call last)"


class LockedHistory(History):
    """Calls begin in many threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def begin(self, client: str, verb: str, topic: str, request: dict[str, object], now_s: float) -> Call:
        with self._lock:
            return super().begin(client, verb, topic, request, now_s)


def plan_of_run(seed: int) -> Plan:
    """Eight writers, and the others by twos and threes, until the time is up."""
    topics = (
        TopicPlan("log-a", "fsync"),
        TopicPlan("log-b", "disk"),
        TopicPlan("capped", "disk", {"cap_records": 200}),
        TopicPlan("jobs", "fsync", {"type": "queue", "lease_ms": 2_000, "leases_durable": True}, queue=True),
        TopicPlan("routed", "disk"),
        TopicPlan("copies", "disk"),
        TopicPlan("shared", "fsync"),
        TopicPlan("left", "disk"),
        TopicPlan("right", "fsync"),
    )
    kinds: list[tuple[str, int, tuple[str, ...]]] = [
        ("writer", 8, ("log-a", "log-b", "capped", "routed", "shared")),
        ("producer", 2, ("jobs",)),
        ("worker", 3, ("jobs",)),
        ("consumer", 3, ("shared",)),
        ("transactor", 3, ("left", "right")),
        ("several", 1, ("left", "right", "log-b")),
        ("reader", 2, ("log-a", "log-b", "capped", "copies", "left", "right")),
        ("follower", 1, ("log-a",)),
        ("watcher", 1, ("copies",)),
        ("router", 1, ("routed", "copies")),
        ("admin", 1, ("log-b", "jobs", "capped")),
    ]
    clients = [
        ClientPlan(kind, f"{kind}-{number}", NO_END, topics_of)
        for kind, count, topics_of in kinds
        for number in range(count)
    ]
    settings = {"wal_file_bytes": 1 << 20, "checkpoint_bytes": 1 << 20, "segment_max_events": 500}
    return Plan(str(seed), topics, tuple(clients), (), settings, 0.5, PAUSE_S)


class RealWorld:
    """Runs once, for `seconds` of clients and faults; then the checkers of the simulation judge it."""

    def __init__(self, root: Path, seed: int, seconds: float, tell: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan_of_run(seed)
        port = free_port()
        self.network = RealNetwork(port)
        self.history: History = LockedHistory()
        self.machine = Machine(root, port, self.plan.settings)
        self.finals: list[Final] = []
        self.faults: Counter[str] = Counter()
        self.over = False
        self.failed_syncs = 0
        self.damaged = False
        self.bucket = None
        self.copies: list[Final] = []
        self.skews_s: dict[str, float] = {}
        self.mistakes: list[str] = []
        self._rng = random.Random(f"real {seed}")
        self._seconds = seconds
        self._tell = tell
        self._room_at_s = float("inf")

    @property
    def scheduler(self) -> RealTime:
        return self.network.scheduler

    def network_of(self, client: str) -> RealNetwork:
        """All of them have one."""
        del client
        return self.network

    def note(self, kind: str, detail: str = "") -> None:
        self.history.events.append(Event(self.scheduler.now_s, kind, detail))

    def run(self) -> None:
        try:
            self._run()
        finally:
            self.over = True
            self.machine.close()

    def _run(self) -> None:
        self._start()
        self._wait_ready()
        make_topics(self)
        threads = [threading.Thread(target=self._live, args=(plan,), name=plan.name) for plan in self.plan.clients]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + self._seconds
        while time.monotonic() < until_s:
            time.sleep(self._rng.uniform(FAULT_S_MIN, FAULT_S_MAX))
            self._strike(self._rng.choice(FAULTS))
            self._look_after()
        self.over = True
        self.machine.make_room()
        self._look_after()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._end()

    def _live(self, plan: ClientPlan) -> None:
        try:
            SimulatedClient.kinds[plan.kind](self, plan).run()
        except Exception as error:  # noqa: BLE001  a client that breaks is a finding, and the others go on
            self.mistakes.append(f"{plan.name} ended with {error!r}")

    # --- faults ---

    def _strike(self, fault: str) -> None:
        rng = self._rng
        self.faults[fault] += 1
        match fault:
            case "kill":
                self._kill()
                self._start()
            case "kill early":
                # In its recovery, wherever that is by then.
                self._kill()
                self.machine.start()
                time.sleep(rng.random())
                self._kill()
                self._start()
            case "stop":
                self.note("stop")
                self._stop()
                self._start()
            case "pause":
                self.note("pause")
                self.machine.pause(rng.random() * SPELL_S_MAX)
            case "full":
                self.note("full", str(self.machine.fill_disk()))
                self._room_at_s = time.monotonic() + rng.random() * SPELL_S_MAX
            case "clock":
                step_s = rng.choice(STEPS_S)
                self.note("clock", f"{step_s:+}")
                self.machine.step_clock(step_s)
            case _:
                self.note("cut", str(self.network.cut_some(rng.choice((0.3, 1.0)), rng)))

    def _look_after(self) -> None:
        """The disk gets room again, and a server that ended by itself is started again."""
        if time.monotonic() >= self._room_at_s or self.over:
            self.machine.make_room()
            self._room_at_s = float("inf")
        while self.machine.server is not None and not self.machine.running:
            self._ended_by_itself()
            self.machine.make_room()
            self._start()

    def _ended_by_itself(self) -> None:
        code, log = self.machine.ended()
        self._look_at(log)
        self.note("end", f"with {code}: {log[-600:]}")

    def _kill(self) -> None:
        if self.machine.server is not None:
            self._look_at(self.machine.server.log)
        self.machine.kill()
        # The time is taken when it is gone for certain: what was answered was answered before.
        self.note("kill")

    def _stop(self) -> None:
        server = self.machine.server
        self.machine.stop()
        if server is not None:
            self._look_at(server.log)

    def _look_at(self, log: str) -> None:
        self.note("log", log)
        if BUG in log:
            self.mistakes.append(f"a bug was logged: {log[log.index(BUG) - 300 :][:2_000]}")

    def _start(self) -> None:
        self.machine.start()
        self.note("start")

    # --- the end ---

    def _end(self) -> None:
        self._tell(f"{len(self.history.calls)} calls, {dict(self.faults)}; reading everything three times")
        for how in ("as it is", "stop", "kill"):
            if how == "stop":
                self.note("stop")
                self._stop()
                self._start()
            elif how == "kill":
                self._kill()
                self._start()
            self._wait_ready()
            self.finals.append(read_all(self))
        self._stop()

    def _wait_ready(self) -> None:
        client = SimulatedClient(self, ClientPlan("", "probe", 0, ()))
        until_s = time.monotonic() + PATIENCE_S
        while not client.ask("ready", "", "GET", "/v0/ready").ok:
            self._look_after()
            log = self.machine.server.log[-800:] if self.machine.server is not None else ""
            assert time.monotonic() < until_s, f"the server does not become ready: {log}"
            time.sleep(0.05)
        client.http.close()
